"""The formats of the TVM exporters: rounding, packing, and which recipes they honour."""

from __future__ import annotations

import numpy as np
import pytest

from edgewise.core.recipe import Recipe, resolve
from edgewise.errors import UnsupportedError
from edgewise.runtimes.webllm.formats import FORMATS, GROUP_SIZE, numbers
from edgewise.runtimes.webllm.quantise import pack_groups, unpack_groups


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        ("f32", "q0f32"),
        ("f16", "q0f16"),
        ("int4", "q4f32_1"),
        ("int4-g32-sym", "q4f32_1"),
        ("int4-g32-sym-f16", "q4f16_1"),
        ("w4a16", "q4f32_1"),
        ("q4f16_1", "q4f16_1"),
    ],
)
def test_a_recipe_comes_to_the_first_format_that_meets_it(weights: str, name: str) -> None:
    assert resolve(Recipe(name="r", weights=weights), FORMATS, runtime="webllm").name == name


@pytest.mark.parametrize("weights", ["int8", "int4-g64", "int4-asym", "w4a8", "bf16", "q4_k_m"])
def test_a_recipe_that_no_format_meets_is_refused(weights: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        resolve(Recipe(name="r", weights=weights), FORMATS, runtime="webllm")
    assert caught.value.code == "recipe-unsupported"
    assert "q" in (caught.value.hint or "")


def test_an_embedding_of_another_format_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        resolve(Recipe(name="r", weights="int4", embedding="f16"), FORMATS, runtime="webllm")


def test_arithmetic_and_cache_follow_the_name() -> None:
    found = {offer.name: numbers(offer.name) for offer in FORMATS}
    assert {name: one.kv_type for name, one in found.items()} == {
        "q0f32": "f32",
        "q0f16": "f16",
        "q4f32_1": "f32",
        "q4f16_1": "f16",
    }
    assert [name for name, one in found.items() if one.quantised] == ["q4f32_1", "q4f16_1"]


def test_packing_rounds_to_the_nearest_step_of_its_group() -> None:
    weight = np.random.default_rng(3).normal(size=(5, 4 * GROUP_SIZE)).astype(np.float32)
    packed, scale = pack_groups(weight, "float32")
    assert packed.dtype == np.uint32
    assert packed.shape == (5, 16)
    assert scale.shape == (5, 4)
    error = np.abs(unpack_groups(packed, scale) - weight).reshape(5, 4, GROUP_SIZE)
    assert (error <= scale[..., None] / 2 + 1e-6).all()


def test_packed_values_lie_where_the_page_reads_them() -> None:
    weight = np.zeros((1, GROUP_SIZE), dtype=np.float32)
    weight[0, :3] = [7, -7, 3]
    packed, scale = pack_groups(weight, "float32")
    assert scale[0, 0] == 1
    assert [int(packed[0, 0]) >> shift & 15 for shift in (0, 4, 8, 12)] == [14, 0, 10, 7]
    assert (unpack_groups(packed, scale) == weight).all()


def test_a_group_of_zeros_stays_zero() -> None:
    weight = np.zeros((2, GROUP_SIZE), dtype=np.float32)
    assert (unpack_groups(*pack_groups(weight, "float16")) == 0).all()


def test_values_are_rounded_with_the_scale_as_it_is_stored() -> None:
    weight = np.full((1, GROUP_SIZE), 1 / 3, dtype=np.float32)
    packed, scale = pack_groups(weight, "float16")
    assert scale.dtype == np.float16
    assert np.abs(unpack_groups(packed, scale) - weight).max() < 1e-3
