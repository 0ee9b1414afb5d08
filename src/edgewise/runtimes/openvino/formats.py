"""The formats that the OpenVINO exporter offers, and the hints and KV types its engine takes.

All integer formats but one are weight-only: NNCF writes scales as f16 and zero points as integers
of the weights' own width. Embedding and head are int8 by default, since NNCF keeps the first and
last layer there; a tied head shares the embedding's constant. What the exporter wrote is compared
with these tables, constant by constant.

``w4a8`` and ``w8a8`` are the same files as their weight-only kin, with one more line in the IR
that asks the CPU plugin to round activations to 8 bits while it multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgewise.core.formats import Activation, OfferedFormat, parse_format
from edgewise.core.recipe import KvType

__all__ = [
    "CALIBRATED",
    "FORMATS",
    "FRONTEND",
    "GGUF_DIRECT",
    "GGUF_FORMATS",
    "GGUF_FRONTEND",
    "HF_FORMATS",
    "HINTS",
    "KV_ELEMENT_BYTES",
    "KV_PROPERTY",
    "STATIC",
    "dynamic_group",
]

GGUF_DIRECT = "gguf-direct"
GGUF_FRONTEND = "gguf-frontend"
FRONTEND = "frontend"
STATIC = "static"

# Methods that need a calibration set.
CALIBRATED = ("awq", "gptq", "scale-estimation", STATIC)

HINTS = (
    "INFERENCE_PRECISION_HINT",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE",
    "ENABLE_CPU_PINNING",
    "KEY_CACHE_GROUP_SIZE",
    "VALUE_CACHE_GROUP_SIZE",
)

# Our names of KV formats in OpenVINO's.
KV_PROPERTY: dict[KvType, str] = {
    KvType.F16: "f16",
    KvType.BF16: "bf16",
    KvType.F32: "f32",
    KvType.U8: "u8",
    KvType.U4: "u4",
}

# With scale and zero point (f32 each) of one head's 64 values for the integer formats.
KV_ELEMENT_BYTES: dict[KvType, float] = {
    KvType.F16: 2.0,
    KvType.BF16: 2.0,
    KvType.F32: 4.0,
    KvType.U8: 1.125,
    KvType.U4: 0.625,
}

_INT4_METHODS = ("rtn", "awq", "scale-estimation", "gptq")
_GROUPS = (32, 64, 128)
_DYNAMIC_GROUP = 32


def dynamic_group(offer: OfferedFormat) -> int:
    """Return the values that share a run-time scale of activations, 0 for float activations."""
    return _DYNAMIC_GROUP if offer.activation is Activation.INT8_DYNAMIC else 0


def _plain(name: str) -> OfferedFormat:
    exact = parse_format(name)
    return OfferedFormat(name=name, weights=exact, embedding=exact, output=exact)


def _int8(symmetry: str, activation: Activation = Activation.FLOAT) -> OfferedFormat:
    exact = parse_format(f"int8-channel-{symmetry}-f16")
    head = "int8" if activation is Activation.FLOAT else "w8a8"
    return OfferedFormat(
        name=f"{head}-{symmetry}",
        weights=exact,
        embedding=exact,
        output=exact,
        activation=activation,
    )


def _int4(
    group: int, symmetry: str, beside: str, activation: Activation = Activation.FLOAT
) -> OfferedFormat:
    weights = f"int4-g{group}-{symmetry}"
    tables = {
        "-e8": parse_format("int8-channel-asym-f16"),
        "-e8s": parse_format("int8-channel-sym-f16"),
        "-e4": parse_format(f"{weights}-f16"),
    }
    name = weights + beside
    if activation is Activation.INT8_DYNAMIC:
        name = name.replace("int4", "w4a8")
    return OfferedFormat(
        name=name,
        weights=parse_format(f"{weights}-f16"),
        embedding=tables[beside],
        output=tables[beside],
        activation=activation,
        methods=_INT4_METHODS,
    )


def _hf_formats() -> Iterator[OfferedFormat]:
    yield _plain("f32")
    yield _plain("f16")
    yield _int8("sym")
    yield _int8("asym")
    for beside in ("-e8", "-e8s", "-e4"):
        for group in _GROUPS:
            for symmetry in ("sym", "asym"):
                yield _int4(group, symmetry, beside)
    for symmetry in ("sym", "asym"):
        yield _int8(symmetry, Activation.INT8_DYNAMIC)
        for group in _GROUPS:
            yield _int4(group, symmetry, "-e8", Activation.INT8_DYNAMIC)
    static = parse_format("int8-channel-sym-f32")
    yield OfferedFormat(
        name="w8a8s",
        weights=static,
        embedding=static,
        output=static,
        activation=Activation.INT8_STATIC,
        methods=(STATIC,),
        note="one range per tensor for the inputs of matrix products, after SmoothQuant; "
        "attention itself stays float",
    )


def _gguf(name: str, weights: str, table: str, note: str) -> OfferedFormat:
    beside = parse_format(table)
    return OfferedFormat(
        name=name, weights=parse_format(weights), embedding=beside, output=beside, note=note
    )


HF_FORMATS: tuple[OfferedFormat, ...] = tuple(_hf_formats())

GGUF_FORMATS: tuple[OfferedFormat, ...] = (
    _gguf(
        GGUF_FRONTEND,
        "int4-g32-asym-f16",
        "int8-g32-sym-f16",
        "the GGUF as it is, read by OpenVINO's GGUF frontend (a preview); stated for Q4_1 "
        "weights and a Q8_0 embedding, other types come out as the file has them. Q4_1's minima "
        "stay float; those of K-quants are rounded to integer zero points",
    ),
    _gguf(
        GGUF_DIRECT,
        "int4-g32-asym-f16",
        "int8-g32-asym-f16",
        "the GGUF as it is, read by OpenVINO GenAI; stated for Q4_1 weights and a Q8_0 "
        "embedding. Not faithful: GenAI rounds Q4_1's float minima to integer zero points",
    ),
)

FORMATS: tuple[OfferedFormat, ...] = (*HF_FORMATS, *GGUF_FORMATS)
