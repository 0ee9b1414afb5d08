"""What the exporter offers, and which backend each offer is lowered for.

A name without ``@`` is lowered for XNNPACK; ``f32@vulkan`` names another backend. Linear layers of
the integer formats round their inputs to 8 bits at run time; the embedding is a table look-up in
its own integer format. Scales of grouped weights are bfloat16 in XNNPACK's data, other scales f32.

HQQ here is torchao's ``hqq_scale_only``: it searches the scale that loses least, and needs no
calibration set. It applies to 4-bit weights and a 4-bit embedding; 8-bit ones are rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from edgewise.core.formats import Activation, OfferedFormat, TensorFormat, parse_format
from edgewise.core.recipe import Recipe, resolve
from edgewise.errors import UnsupportedError

__all__ = [
    "COREML_FORMATS",
    "DEFAULT_BACKEND",
    "FORMATS",
    "GROUP",
    "TARGETS",
    "Target",
    "choose_format",
    "target_of",
]

DEFAULT_BACKEND: Final = "xnnpack"
# Values that share a scale in grouped formats; the widths of a model must divide by it.
GROUP: Final = 32

_F32 = parse_format("f32")
_F16 = parse_format("f16")
_INT4_GROUP = parse_format(f"int4-g{GROUP}-sym-bf16")
_INT4_TABLE = parse_format(f"int4-g{GROUP}-sym-f32")
_INT8_ROW = parse_format("int8-channel-sym-f32")
_INT4_ROW = parse_format("int4-channel-sym-f16")


@dataclass(frozen=True, slots=True)
class Target:
    """A backend that a program can be lowered for.

    Attributes:
        name: As it stands behind ``@`` in a format's name.
        delegate: The backend's own name in the file; empty where nothing is delegated.
        dynamic: Whether one program takes any number of tokens up to its limit.
        custom_attention: Whether attention is ExecuTorch's own operator instead of primitives.
        runs_here: Whether the locked package holds the runtime half of the backend.
    """

    name: str
    delegate: str
    dynamic: bool = True
    custom_attention: bool = True
    runs_here: bool = True


TARGETS: Final = {
    target.name: target
    for target in (
        Target(DEFAULT_BACKEND, "XnnpackBackend"),
        Target("portable", ""),
        Target("vulkan", "VulkanBackend", runs_here=False),
        Target("coreml", "CoreMLBackend", dynamic=False, custom_attention=False, runs_here=False),
    )
}


def _floats(name: str, values: TensorFormat, note: str = "") -> OfferedFormat:
    return OfferedFormat(name=name, weights=values, embedding=values, output=values, note=note)


_UNRUN = "lowered here and never run here"
_COREML_NOTE = f"Core ML computes in f16, one token a step; {_UNRUN}"

_8DA4W = OfferedFormat(
    name="8da4w-g32",
    weights=_INT4_GROUP,
    embedding=_INT4_TABLE,
    output=_INT4_GROUP,
    activation=Activation.INT8_DYNAMIC,
    methods=("hqq", "rtn"),
)
_8DA4W_E8H8 = msgspec.structs.replace(
    _8DA4W, name="8da4w-g32-e8h8", embedding=_INT8_ROW, output=_INT8_ROW
)
_8DA8W = msgspec.structs.replace(
    _8DA4W_E8H8, name="8da8w-channel", weights=_INT8_ROW, methods=("rtn",)
)

FORMATS: Final[tuple[OfferedFormat, ...]] = (
    _8DA4W_E8H8,  # a quarter larger than with a 4-bit head, a fifth of its divergence
    _8DA4W,
    _8DA8W,
    _floats("f32", _F32),
    _floats("f32@portable", _F32, "no backend: ExecuTorch's own kernels only, for parity"),
    _floats("f32@vulkan", _F32, _UNRUN),
    msgspec.structs.replace(_8DA4W, name="8da4w-g32@vulkan", note=_UNRUN),
    _floats("f16@coreml", _F16, _COREML_NOTE),
)

COREML_FORMATS: Final[tuple[OfferedFormat, ...]] = (_floats("f16", _F16, _COREML_NOTE),)


def target_of(name: str) -> Target:
    """Return the backend that a format of :data:`FORMATS` is lowered for."""
    return TARGETS[name.partition("@")[2] or DEFAULT_BACKEND]


def choose_format(
    recipe: Recipe, offered: tuple[OfferedFormat, ...], *, runtime: str
) -> OfferedFormat:
    """Return the offer a recipe comes to; a format offered for XNNPACK may say so.

    Raises:
        InputError: a format of the recipe is malformed.
        UnsupportedError: no offer meets the recipe, or there is no such backend.
    """
    weights, at, backend = recipe.weights.strip().lower().partition("@")
    if at and backend not in TARGETS:
        raise UnsupportedError(
            "backend-unknown",
            f"{runtime} exports for no backend called {backend!r}",
            hint=f"it exports for: {', '.join(TARGETS)}",
        )
    if backend == DEFAULT_BACKEND:
        recipe = msgspec.structs.replace(recipe, weights=weights)
    return resolve(recipe, offered, runtime=runtime)
