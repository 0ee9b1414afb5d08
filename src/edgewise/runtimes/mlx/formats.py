"""The formats MLX's affine quantiser writes, stated exactly.

A value is ``scale x integer + minimum``; scale and minimum are stored per group in the type of the
model's other tensors, and products are computed in that type. So each integer format comes in
three: with bfloat16, float16 and float32 beside it.
"""

from __future__ import annotations

import msgspec

from edgewise.core.formats import OfferedFormat, TensorFormat, choose
from edgewise.core.recipe import Recipe, resolve

__all__ = ["FORMATS", "RUNTIME", "dtype_of", "resolve_formats", "short"]

RUNTIME = "mlx"

_BITS = (4, 8, 6, 5, 3)
_GROUPS = (64, 32, 128)
_FLOATS = {
    "bf16": TensorFormat(kind="float", bits=16, brain=True),
    "f16": TensorFormat(kind="float", bits=16),
    "f32": TensorFormat(kind="float", bits=32),
}
_NOTE = "a float minimum stands beside each scale instead of an integer zero point"


def _affine(bits: int, group_size: int, scale: str) -> OfferedFormat:
    exact = TensorFormat(kind="int", bits=bits, group_size=group_size, symmetric=False, scale=scale)
    suffix = "" if scale == "bf16" else f"-{scale}"
    return OfferedFormat(
        name=f"{bits}bit-g{group_size}{suffix}",
        weights=exact,
        embedding=exact,
        output=exact,
        note=_NOTE,
    )


FORMATS: tuple[OfferedFormat, ...] = (
    *(_affine(bits, group, scale) for scale in _FLOATS for bits in _BITS for group in _GROUPS),
    *(
        OfferedFormat(name=name, weights=exact, embedding=exact, output=exact)
        for name, exact in _FLOATS.items()
    ),
)


def dtype_of(exact: TensorFormat) -> str:
    """Return the type of the tensors beside those of a format: its scale's, or its own."""
    return str(exact) if exact.kind == "float" else exact.scale


def short(exact: TensorFormat) -> str:
    """Return a format in a word, for counts."""
    if exact.kind == "float":
        return str(exact)
    return f"int{exact.bits}-g{exact.group_size}"


def resolve_formats(recipe: Recipe) -> OfferedFormat:
    """Return the exact format a recipe comes to.

    Embedding and head may have any offered format whose scales have the model's type.

    Raises:
        InputError: a format of the recipe is malformed.
        UnsupportedError: a format cannot be had; names the nearest.
    """
    plain = msgspec.structs.replace(recipe, embedding=None, output=None)
    offer = resolve(plain, FORMATS, runtime=RUNTIME)
    dtype = dtype_of(offer.weights)
    beside = tuple(each for each in FORMATS if dtype_of(each.weights) == dtype)
    embedding, output = offer.embedding, offer.output
    if recipe.embedding is not None:
        embedding = choose(beside, runtime=RUNTIME, weights=recipe.embedding).weights
    if recipe.output is not None:
        output = choose(beside, runtime=RUNTIME, weights=recipe.output).weights
    return msgspec.structs.replace(offer, embedding=embedding, output=output)
