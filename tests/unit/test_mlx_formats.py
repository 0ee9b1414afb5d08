"""MLX's formats, and what the adapter says without MLX."""

from __future__ import annotations

import pytest

from edgewise.core.recipe import Recipe
from edgewise.errors import UnsupportedError
from edgewise.runtimes.mlx import adapter
from edgewise.runtimes.mlx.formats import FORMATS, dtype_of, resolve_formats, short
from edgewise.runtimes.mlx.libraries import _with_rope


def resolved(**fields: object) -> tuple[str, str, str]:
    offer = resolve_formats(Recipe(name="x", **fields))  # type: ignore[arg-type]
    return offer.name, str(offer.embedding), str(offer.output)


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        ("int4", "4bit-g64"),
        ("int4-asym-f16", "4bit-g64-f16"),
        ("int4-g32", "4bit-g32"),
        ("int8-g64-asym-bf16", "8bit-g64"),
        ("int6", "6bit-g64"),
        ("w4a16", "4bit-g64"),
        ("f16", "f16"),
        ("bf16", "bf16"),
        ("f32", "f32"),
        ("8bit-g32-f32", "8bit-g32-f32"),
    ],
)
def test_a_recipe_comes_to_one_format(weights: str, name: str) -> None:
    assert resolved(weights=weights)[0] == name


@pytest.mark.parametrize("weights", ["int4-sym", "int4-g16", "w4a8", "int4-channel", "q4_0"])
def test_nothing_is_approximated(weights: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        resolved(weights=weights)
    assert caught.value.code == "recipe-unsupported"


def test_embedding_and_head_are_kept_apart_in_the_models_type() -> None:
    assert resolved(weights="int4", embedding="int8-g32", output="bf16") == (
        "4bit-g64",
        "int8-g32-asym-bf16",
        "bf16",
    )
    with pytest.raises(UnsupportedError):
        resolved(weights="int4", output="f16")  # the rest is bfloat16


def test_names_are_unique_and_types_follow() -> None:
    assert len({offer.name for offer in FORMATS}) == len(FORMATS)
    assert {dtype_of(offer.weights) for offer in FORMATS} == {"f16", "bf16", "f32"}
    assert short(FORMATS[0].weights) == "int4-g64"


def test_a_rotary_base_is_found_where_newer_configs_put_it() -> None:
    flat = _with_rope({"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}})
    assert flat["rope_theta"] == 5.0
    assert "rope_scaling" not in flat
    assert (
        _with_rope({"rope_theta": 7.0, "rope_parameters": {"rope_theta": 5.0}})["rope_theta"] == 7.0
    )
    layered = _with_rope(
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 2.0},
                "sliding_attention": {"rope_theta": 1e4},
            }
        }
    )
    assert layered["rope_theta"] == 1e6
    assert layered["rope_local_base_freq"] == 1e4
    assert layered["rope_scaling"]["factor"] == 2.0
    assert _with_rope({"rope_theta": None, "a": 1}) == {"rope_theta": None, "a": 1}


def test_it_says_what_is_missing_where_it_is_not_installed() -> None:
    found = adapter.capabilities()
    if found.version is None:
        assert not found.can_run
        assert not found.can_export
        assert "not installed" in found.reason
    assert not adapter.huge_pages_possible()
