"""Number formats: what a text states, what is offered, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.formats import (
    Activation,
    OfferedFormat,
    TensorFormat,
    choose,
    parse_format,
    parse_query,
)
from edgewise.core.recipe import Recipe, resolve
from edgewise.errors import InputError, UnsupportedError


def offer(name: str, weights: str, **more: Any) -> OfferedFormat:
    embedding = str(more.pop("embedding", weights))
    output = str(more.pop("output", weights))
    return OfferedFormat(
        name=name,
        weights=parse_format(weights),
        embedding=parse_format(embedding),
        output=parse_format(output),
        **more,
    )


OFFERS = (
    offer("fp32", "f32"),
    offer("half", "f16"),
    offer("brain", "bf16"),
    offer("w8", "int8-channel-sym-f32", embedding="f16", output="f16"),
    offer("q4", "int4-g32-sym-f16", methods=("rtn", "awq")),
    offer("q4a", "int4-g64-asym-f16"),
    offer("dyn", "int4-g32-sym-f32", activation=Activation.INT8_DYNAMIC),
    offer("static", "int8-tensor-asym-f32", activation=Activation.INT8_STATIC),
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("f32", "fp32"),
        ("F16", "half"),
        ("bf16", "brain"),
        ("int8", "w8"),
        ("int8-channel", "w8"),
        ("int4", "q4"),
        ("int4-g64", "q4a"),
        ("int4-asym", "q4a"),
        ("int4-asym-g64", "q4a"),
        ("int4-g32-sym-f16", "q4"),
        ("int4-f32", "dyn"),
        ("w4a8", "dyn"),
        ("w4a8-g32", "dyn"),
        ("w4a16", "q4"),
        ("w8a8s", "static"),
        ("w16a16", "half"),
        ("q4a", "q4a"),
        (" dyn ", "dyn"),
    ],
)
def test_the_first_offer_that_meets_every_constraint(text: str, name: str) -> None:
    assert choose(OFFERS, runtime="r", weights=text).name == name


@pytest.mark.parametrize(
    ("stated", "nearest"),
    [
        ({"weights": "int4-g128"}, "q4"),
        ({"weights": "int4-g64-sym"}, "q4a"),
        ({"weights": "int3"}, "q4"),
        ({"weights": "w4a8s"}, "q4"),
        ({"weights": "int8-g32"}, "w8"),
        ({"weights": "int4", "embedding": "int8"}, "q4"),
        ({"weights": "int8-channel", "output": "int8"}, "static"),
        ({"weights": "int4", "method": "gptq"}, "q4"),
        ({"weights": "q4", "activation": Activation.INT8_DYNAMIC}, "q4"),
    ],
)
def test_what_nobody_offers_is_refused_with_the_nearest(
    stated: dict[str, Any], nearest: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        choose(OFFERS, runtime="r", **stated)
    assert caught.value.code == "recipe-unsupported"
    assert caught.value.context["nearest"] == nearest
    assert nearest in str(caught.value.hint)


def test_constraints_on_embedding_head_and_method_count() -> None:
    assert choose(OFFERS, runtime="r", weights="int8", embedding="f16", output="f16").name == "w8"
    assert choose(OFFERS, runtime="r", weights="int4", method="awq").name == "q4"
    assert (
        choose(OFFERS, runtime="r", weights="int4", activation=Activation.INT8_DYNAMIC).name
        == "dyn"
    )


def test_an_unknown_name_is_refused_with_what_there_is() -> None:
    with pytest.raises(UnsupportedError, match="no format called 'q4_k_m'") as caught:
        choose(OFFERS, runtime="r", weights="q4_k_m")
    assert caught.value.context["offered"] == [one.name for one in OFFERS]


def test_a_runtime_without_formats_refuses() -> None:
    with pytest.raises(UnsupportedError, match="cannot honour"):
        choose((), runtime="r", weights="int4")


def test_a_recipe_resolves_by_all_its_fields() -> None:
    recipe = Recipe(name="x", weights="int8", embedding="f16", activation=Activation.FLOAT)
    assert resolve(recipe, OFFERS, runtime="r").name == "w8"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "int",
        "int0",
        "int44",
        "f64",
        "f16-sym",
        "int4-g0",
        "int4-g-1",
        "int4-g32-g64",
        "int4-sym-asym",
        "int4-nonsense",
        "int4--sym",
        "w4",
        "w4a7",
        "int4g32",
        "int4-g999999",
        "\uff14",
    ],
)
def test_malformed_texts(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_query(text)
    assert caught.value.code == "format-malformed"


def test_an_exact_format_leaves_nothing_open() -> None:
    with pytest.raises(InputError, match="leaves group size or symmetry open"):
        parse_format("int4-g32")


formats = st.one_of(
    st.builds(
        TensorFormat,
        kind=st.just("int"),
        bits=st.integers(1, 9),
        group_size=st.one_of(st.sampled_from([0, -1]), st.integers(1, 99999)),
        symmetric=st.booleans(),
        scale=st.sampled_from(["", "f32", "f16", "bf16", "e8m0"]),
    ),
    st.sampled_from(
        [
            TensorFormat(kind="float", bits=32),
            TensorFormat(kind="float", bits=16),
            TensorFormat(kind="float", bits=16, brain=True),
        ]
    ),
)


@given(formats)
def test_the_text_of_a_format_names_it_again(form: TensorFormat) -> None:
    assert parse_format(str(form)) == form


@given(formats, formats)
def test_no_distance_means_the_same(one: TensorFormat, other: TensorFormat) -> None:
    query = parse_query(str(one))
    assert query.misses(one) == 0
    if other.scale and one.scale:
        assert (query.misses(other) == 0) == (one == other)
