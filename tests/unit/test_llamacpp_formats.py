"""The family's formats: what recipes come to, and what is refused."""

from __future__ import annotations

import pytest

from edgewise.core.formats import Activation
from edgewise.core.recipe import Recipe
from edgewise.errors import EdgewiseError, UnsupportedError
from edgewise.models.gguf_types import GgmlType
from edgewise.runtimes.llamacpp.formats import (
    FORMATS,
    GGML_TYPES,
    TENSOR_FORMATS,
    WEIGHT_FORMATS,
    is_exact,
    offers,
    resolve_formats,
    tensor_type,
)


def resolved(**fields: object) -> tuple[str, str, str]:
    recipe = Recipe(name="x", **fields)  # type: ignore[arg-type]
    offer, embedding, output = resolve_formats(recipe, FORMATS, runtime="llamacpp")
    assert str(offer.embedding) == str(TENSOR_FORMATS[embedding])
    assert str(offer.output) == str(TENSOR_FORMATS[output])
    return offer.name, embedding, output


def test_tables_name_the_same_things() -> None:
    assert [offer.name for offer in FORMATS if offer.name not in WEIGHT_FORMATS] == []
    assert set(WEIGHT_FORMATS) == {offer.name for offer in FORMATS}
    assert set(TENSOR_FORMATS) == set(GGML_TYPES)
    assert len({offer.name for offer in FORMATS}) == len(FORMATS)


@pytest.mark.parametrize("name", [name for name in TENSOR_FORMATS if "_k" not in name])
def test_group_sizes_are_those_of_the_blocks(name: str) -> None:
    exact, block = TENSOR_FORMATS[name], GgmlType[name.upper()]
    if exact.kind == "float":
        assert exact.bits == 8 * block.type_size
    elif exact.kind == "int":
        assert exact.group_size == block.block_size
        beside = 8 * block.type_size - exact.bits * block.block_size
        assert beside == (16 if exact.symmetric else 32)  # a scale, and a minimum


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        ("int4", "q4_0"),
        ("int4-g32-sym", "q4_0"),
        ("int4-g32-sym-f16", "q4_0"),
        ("int4-asym", "q4_1"),
        ("w4a8-g32", "q4_0"),
        ("int5", "q5_0"),
        ("int5-g32-asym", "q5_1"),
        ("int8", "q8_0"),
        ("f16", "f16"),
        ("bf16", "bf16"),
        ("f32", "f32"),
        ("w16a16", "f16"),
        ("Q4_K_M", "q4_k_m"),
        ("iq4_nl", "iq4_nl"),
    ],
)
def test_a_recipe_comes_to_one_format(weights: str, name: str) -> None:
    assert resolved(weights=weights)[0] == name


@pytest.mark.parametrize(
    "weights", ["int6", "int3", "int4-g64", "int4-channel", "w4a16", "w8a8s", "int4-g32-sym-f32"]
)
def test_nothing_is_approximated(weights: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        resolved(weights=weights)
    assert caught.value.code == "recipe-unsupported"
    assert caught.value.context["nearest"]


def test_embedding_and_head_are_kept_apart() -> None:
    assert resolved(weights="int4") == ("q4_0", "q8_0", "q8_0")
    assert resolved(weights="int4", embedding="int4", output="f16") == ("q4_0", "q4_0", "f16")
    assert resolved(weights="q4_k_m", output="q5_k") == ("q4_k_m", "q6_k", "q5_k")
    assert resolved(weights="f16") == ("f16", "f16", "f16")


@pytest.mark.parametrize("text", ["int3", "q4_9", "int4-g64", "w16a16-g3x"])
def test_a_type_that_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(EdgewiseError) as caught:
        tensor_type(text, runtime="llamacpp")
    assert caught.value.code == "tensor-type-unsupported"


def test_mixtures_answer_to_their_names_only() -> None:
    mixtures = {offer.name for offer in FORMATS if not is_exact(offer.name)}
    assert mixtures == {"q4_k_m", "q4_k_s", "q5_k_m", "q3_k_m", "q6_k", "iq4_nl", "iq4_xs"}
    assert all(offer.note for offer in FORMATS if offer.name in mixtures)


def test_calibration_is_offered_where_it_can_change_something() -> None:
    with_method = {offer.name for offer in FORMATS if "imatrix" in offer.methods}
    assert {"q4_0", "q5_1", "q4_k_m", "iq4_nl"} <= with_method
    assert not {"q8_0", "f16", "f32"} & with_method
    assert all(offer.methods[0] == "rtn" for offer in FORMATS)
    assert all(offer.methods == ("rtn",) for offer in offers(extras=False))
    assert resolved(weights="int4", method="imatrix")[0] == "q4_0"
    with pytest.raises(UnsupportedError):
        resolved(weights="int8", method="imatrix")


def test_integer_kernels_round_activations() -> None:
    for offer in FORMATS:
        integers = offer.weights.kind != "float"
        assert (offer.activation is Activation.INT8_DYNAMIC) == integers
