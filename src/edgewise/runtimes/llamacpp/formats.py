"""Names, numbers and facts of the family's formats, as far as the adapters use them.

Numbers are those of ``ggml_type`` and ``llama_ftype`` in llama.cpp's public headers
(llama-cpp-python 0.3.36, read 2026-11-30); ik_llama.cpp has the same for the formats named here.

Two kinds of format are offered. An exact one gives every matrix the same type, so it can be asked
for in the field's terms (``int4-g32-sym``). A mixture gives some tensors another type by
llama.cpp's own rules, or has no description in those terms; it can only be asked for by name.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgewise.core.formats import Activation, OfferedFormat, TensorFormat, parse_query
from edgewise.core.recipe import KvType, LoadMode, Recipe, resolve
from edgewise.errors import UnsupportedError
from edgewise.models.gguf_types import GgmlType

__all__ = [
    "FORMATS",
    "GGML_TYPES",
    "KV_TYPES",
    "LOAD_MODES",
    "TENSOR_FORMATS",
    "WEIGHT_FORMATS",
    "is_exact",
    "offers",
    "resolve_formats",
    "tensor_type",
]

# Types a recipe may name for single tensors.
GGML_TYPES: dict[str, int] = {
    member.name.lower(): member.value
    for member in (
        GgmlType.F32,
        GgmlType.F16,
        GgmlType.BF16,
        GgmlType.Q4_0,
        GgmlType.Q4_1,
        GgmlType.Q5_0,
        GgmlType.Q5_1,
        GgmlType.Q8_0,
        GgmlType.Q2_K,
        GgmlType.Q3_K,
        GgmlType.Q4_K,
        GgmlType.Q5_K,
        GgmlType.Q6_K,
        GgmlType.IQ4_NL,
        GgmlType.IQ4_XS,
    )
}

# Recipe weight format -> (llama_ftype, the type it asks for in matrices).
WEIGHT_FORMATS: dict[str, tuple[int, str]] = {
    "f32": (0, "f32"),
    "f16": (1, "f16"),
    "bf16": (32, "bf16"),
    "q4_0": (2, "q4_0"),
    "q4_1": (3, "q4_1"),
    "q5_0": (8, "q5_0"),
    "q5_1": (9, "q5_1"),
    "q8_0": (7, "q8_0"),
    "q3_k_m": (12, "q3_k"),
    "q4_k_s": (14, "q4_k"),
    "q4_k_m": (15, "q4_k"),
    "q5_k_m": (17, "q5_k"),
    "q6_k": (18, "q6_k"),
    "iq4_nl": (25, "iq4_nl"),
    "iq4_xs": (30, "iq4_xs"),
}

KV_TYPES: dict[KvType, int] = {KvType.F16: 1, KvType.Q8_0: 8, KvType.Q4_0: 2}

LOAD_MODES: dict[LoadMode, int] = {LoadMode.MALLOC: 0, LoadMode.MMAP: 1}


def _int(bits: int, group_size: int, *, symmetric: bool) -> TensorFormat:
    return TensorFormat(
        kind="int", bits=bits, group_size=group_size, symmetric=symmetric, scale="f16"
    )


def _blocked(bits: int, group_size: int, scale: str, *, symmetric: bool) -> TensorFormat:
    # Not "int": scales that are themselves quantised, or values from a table, are more than the
    # field's terms can state, so a recipe in those terms must not be answered with one.
    return TensorFormat(
        kind="block", bits=bits, group_size=group_size, symmetric=symmetric, scale=scale
    )


_Q8_0 = _int(8, 32, symmetric=True)
_Q6_K = _blocked(6, 16, "int8-in-f16", symmetric=True)

# The types whose values the field's terms describe, most precise last.
TENSOR_FORMATS: dict[str, TensorFormat] = {
    "q4_0": _int(4, 32, symmetric=True),
    "q4_1": _int(4, 32, symmetric=False),
    "q5_0": _int(5, 32, symmetric=True),
    "q5_1": _int(5, 32, symmetric=False),
    "q8_0": _Q8_0,
    "f16": TensorFormat(kind="float", bits=16),
    "bf16": TensorFormat(kind="float", bits=16, brain=True),
    "f32": TensorFormat(kind="float", bits=32),
    "q2_k": _blocked(2, 16, "int4-in-f16", symmetric=False),
    "q3_k": _blocked(3, 16, "int6-in-f16", symmetric=True),
    "q4_k": _blocked(4, 32, "int6-in-f16", symmetric=False),
    "q5_k": _blocked(5, 32, "int6-in-f16", symmetric=False),
    "q6_k": _Q6_K,
    "iq4_nl": _blocked(4, 32, "f16-table", symmetric=True),
    "iq4_xs": _blocked(4, 32, "int6-in-f16-table", symmetric=True),
}

_MINIMUM = "a float minimum stands beside each scale instead of an integer zero point; "
_KERNELS = "CPU kernels round activations to 8 bits in blocks while they compute"
_K_MIXTURE = (
    "a mixture by llama.cpp's rules: some attention, down-projection and head tensors get more "
    "bits; rows that 256 does not divide get another type, each named in the receipt; "
)
_ONE_TYPE = (
    "embedding and head by llama.cpp's rules; rows that 256 does not divide get another type, "
    "each named in the receipt; "
)


def _exact(name: str, note: str = "") -> OfferedFormat:
    weights = TENSOR_FORMATS[name]
    whole = weights.kind == "float" or name == "q8_0"
    return OfferedFormat(
        name=name,
        weights=weights,
        embedding=weights if whole else _Q8_0,
        output=weights if whole else _Q8_0,
        activation=Activation.FLOAT if weights.kind == "float" else Activation.INT8_DYNAMIC,
        methods=("rtn",) if whole else ("rtn", "imatrix"),
        note=note or ("" if weights.kind == "float" else _KERNELS),
    )


def _mixture(name: str, note: str) -> OfferedFormat:
    return OfferedFormat(
        name=name,
        weights=TENSOR_FORMATS[WEIGHT_FORMATS[name][1]],
        embedding=_Q6_K,
        output=_Q6_K,
        activation=Activation.INT8_DYNAMIC,
        methods=("rtn", "imatrix"),
        note=note + _KERNELS,
    )


FORMATS: tuple[OfferedFormat, ...] = (
    _exact("q4_0"),
    _exact("q4_1", _MINIMUM + _KERNELS),
    _exact("q5_0"),
    _exact("q5_1", _MINIMUM + _KERNELS),
    _exact("q8_0"),
    _exact("f16"),
    _exact("bf16"),
    _exact("f32"),
    _mixture("q4_k_m", _K_MIXTURE),
    _mixture("q4_k_s", _K_MIXTURE),
    _mixture("q5_k_m", _K_MIXTURE),
    _mixture("q3_k_m", _K_MIXTURE),
    _mixture("q6_k", _ONE_TYPE),
    _mixture("iq4_nl", "values from a table of 16; a mixture by llama.cpp's rules; "),
    _mixture("iq4_xs", "values from a table of 16; " + _K_MIXTURE),
)


def offers(*, extras: bool) -> tuple[OfferedFormat, ...]:
    """Return the formats of a quantiser, ``extras`` being whether it takes importances."""
    if extras:
        return FORMATS
    return tuple(msgspec.structs.replace(offer, methods=("rtn",)) for offer in FORMATS)


def is_exact(name: str) -> bool:
    """Return whether every matrix of the format gets the same type."""
    return TENSOR_FORMATS[WEIGHT_FORMATS[name][1]].kind != "block"


def resolve_formats(
    recipe: Recipe, offered: Sequence[OfferedFormat], *, runtime: str
) -> tuple[OfferedFormat, str, str]:
    """Return the exact format a recipe comes to, and the types of embedding and head.

    The quantiser sets both apart from the other matrices, to any type; so the offer's own are
    only defaults.

    Returns:
        The offer with embedding and head as they will be, and the names of their types.

    Raises:
        InputError: a format of the recipe is malformed.
        UnsupportedError: a format cannot be had; names the nearest.
    """
    plain = msgspec.structs.replace(recipe, embedding=None, output=None)
    offer = resolve(plain, offered, runtime=runtime)
    embedding = _default(offer.embedding)
    output = _default(offer.output)
    if recipe.embedding is not None:
        embedding = tensor_type(recipe.embedding, runtime=runtime)
    if recipe.output is not None:
        output = tensor_type(recipe.output, runtime=runtime)
    stated = msgspec.structs.replace(
        offer, embedding=TENSOR_FORMATS[embedding], output=TENSOR_FORMATS[output]
    )
    return stated, embedding, output


def tensor_type(text: str, *, runtime: str) -> str:
    """Return the type that a text names: its own name, or the first that meets a format text.

    Raises:
        InputError: the text is malformed.
        UnsupportedError: no type meets it; names the nearest.
    """
    name = text.strip().lower()
    if name in GGML_TYPES:
        return name
    try:
        query = parse_query(name)
    except Exception as error:
        raise _no_type(text, runtime, ", ".join(GGML_TYPES)) from error
    nearest = min(TENSOR_FORMATS, key=lambda each: query.misses(TENSOR_FORMATS[each]))
    if query.misses(TENSOR_FORMATS[nearest]):
        raise _no_type(text, runtime, f"{nearest} ({TENSOR_FORMATS[nearest]}) is the nearest")
    return nearest


def _default(wanted: TensorFormat) -> str:
    return next(name for name, format_ in TENSOR_FORMATS.items() if format_ == wanted)


def _no_type(text: str, runtime: str, has: str) -> UnsupportedError:
    return UnsupportedError(
        "tensor-type-unsupported",
        f"{runtime} has no tensor type {text!r}",
        hint=f"it has: {has}",
    )
