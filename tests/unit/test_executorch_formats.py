"""Recipes come to exact formats of ExecuTorch, or are refused with the nearest."""

from __future__ import annotations

import pytest

from edgewise.core.formats import Activation
from edgewise.core.recipe import Recipe
from edgewise.errors import EdgewiseError, InputError, UnsupportedError
from edgewise.runtimes.executorch.formats import (
    COREML_FORMATS,
    FORMATS,
    TARGETS,
    choose_format,
    target_of,
)


def chosen(weights: str, **more) -> str:
    recipe = Recipe(name="r", weights=weights, **more)
    return choose_format(recipe, FORMATS, runtime="executorch").name


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        ("f32", "f32"),
        ("f32@xnnpack", "f32"),
        ("F32@Portable", "f32@portable"),
        ("f32@vulkan", "f32@vulkan"),
        ("8da4w-g32", "8da4w-g32"),
        ("8da4w-g32@xnnpack", "8da4w-g32"),
        ("int4-g32-sym", "8da4w-g32-e8h8"),
        ("w4a8-g32-sym", "8da4w-g32-e8h8"),
        ("w8a8", "8da8w-channel"),
        ("int8-channel-sym", "8da8w-channel"),
        ("f16", "f16@coreml"),
    ],
)
def test_a_recipe_comes_to_an_offer(weights: str, name: str) -> None:
    assert chosen(weights) == name


def test_embedding_and_head_are_constraints_of_their_own() -> None:
    assert chosen("int4", embedding="int8") == "8da4w-g32-e8h8"
    assert chosen("int4", output="int4-g32") == "8da4w-g32"


def test_the_method_is_a_constraint() -> None:
    assert chosen("int4", method="rtn") == "8da4w-g32-e8h8"
    with pytest.raises(UnsupportedError) as refused:
        chosen("w8a8", method="hqq")
    assert "8da8w-channel" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("weights", "nearest"),
    [
        ("w4a16-g32", "8da4w-g32-e8h8"),
        ("int4-g128", "8da4w-g32-e8h8"),
        ("int4-g32-asym", "8da4w-g32-e8h8"),
        ("w8a8s", "8da8w-channel"),
        ("int5", "8da4w-g32-e8h8"),
    ],
)
def test_what_is_not_offered_is_refused_with_the_nearest(weights: str, nearest: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        chosen(weights)
    assert refused.value.code == "recipe-unsupported"
    assert refused.value.context["nearest"] == nearest


@pytest.mark.parametrize("weights", ["q4_k_m", "f32@cuda", "8da4w-g32@portable", "@", "f32@"])
def test_an_unknown_name_is_refused(weights: str) -> None:
    with pytest.raises(EdgewiseError) as refused:
        chosen(weights)
    assert isinstance(refused.value, UnsupportedError | InputError)


def test_names_are_unique_and_say_their_backend() -> None:
    names = [offer.name for offer in FORMATS]
    assert len(set(names)) == len(names)
    assert {target_of(name).name for name in names} == set(TARGETS)


def test_what_never_ran_says_so() -> None:
    for offer in (*FORMATS, *COREML_FORMATS):
        away = offer in COREML_FORMATS or not target_of(offer.name).runs_here
        assert ("never run" in offer.note) is away


def test_integer_formats_say_how_activations_enter() -> None:
    for offer in FORMATS:
        dynamic = offer.activation is Activation.INT8_DYNAMIC
        assert dynamic is (offer.weights.kind == "int")
