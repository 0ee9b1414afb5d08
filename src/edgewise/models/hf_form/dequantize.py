"""From the encodings of ggml to numbers.

Plain floats are read here; block formats by the ``gguf`` package, the format's own reference.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.models.gguf_types import GgmlType

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["PLAIN_TYPES", "dequantize", "encode", "library_version"]

PLAIN_TYPES: Final = (GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.F64)


def dequantize(raw: bytes, kind: GgmlType, *, tensor: str) -> Floats:
    """Return the values that ``raw`` encodes, ``(n,)`` float32.

    Args:
        raw: Whole blocks.
        kind: Their encoding.
        tensor: Named in errors.

    Raises:
        UnsupportedError: this encoding cannot be read (``tensor-type-undecodable``), or the
            package that reads it is not installed (``gguf-package-missing``).
        IntegrityError: a value is not finite (``tensor-not-finite``).
    """
    import numpy as np  # noqa: PLC0415 - only conversions need it

    values = _decode(raw, kind, tensor)
    if not np.isfinite(values).all():
        raise IntegrityError(
            "tensor-not-finite",
            f"the tensor {tensor} holds values that are not finite",
            context={"tensor": tensor, "type": kind.name},
            hint="the checkpoint is damaged: fetch it again and compare its digest",
        )
    return values


def _decode(raw: bytes, kind: GgmlType, tensor: str) -> Floats:
    import numpy as np  # noqa: PLC0415 - only conversions need it

    if kind is GgmlType.F32:
        return np.frombuffer(raw, dtype="<f4")
    if kind is GgmlType.F16:
        return np.frombuffer(raw, dtype="<f2").astype(np.float32)
    if kind is GgmlType.F64:
        return np.frombuffer(raw, dtype="<f8").astype(np.float32)
    if kind is GgmlType.BF16:
        return (np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    try:
        from gguf import GGMLQuantizationType  # noqa: PLC0415 - optional
        from gguf.quants import dequantize as decode  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedError(
            "gguf-package-missing",
            f"reading {kind.name} tensors needs the package gguf, which is not installed",
            context={"tensor": tensor, "type": kind.name},
            hint="pip install 'edgewise[convert]'",
        ) from error
    try:
        blocks = np.frombuffer(raw, dtype=np.uint8).reshape(-1, kind.type_size)
        values = decode(blocks, GGMLQuantizationType(kind.value))
    except (NotImplementedError, ValueError) as error:
        raise UnsupportedError(
            "tensor-type-undecodable",
            f"tensors of the type {kind.name}, such as {tensor}, cannot be turned into floats",
            context={"tensor": tensor, "type": kind.name},
            hint="start from a checkpoint in F16, BF16, Q8_0 or a K-quant",
        ) from error
    return np.ascontiguousarray(values, dtype=np.float32).reshape(-1)


def encode(values: Floats, dtype: str, *, tensor: str) -> bytes:
    """Return float32 values as ``F32``, ``F16`` or ``BF16`` bytes, rounded to nearest even.

    Raises:
        UnsupportedError: a value is too large for F16 (``float16-overflow``).
    """
    import numpy as np  # noqa: PLC0415 - only conversions need it

    if dtype == "F32":
        return np.ascontiguousarray(values, dtype="<f4").tobytes()
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, dtype="<f4").view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return rounded.astype("<u2").tobytes()
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    if not np.isfinite(halves).all():
        raise UnsupportedError(
            "float16-overflow",
            f"the tensor {tensor} holds values that F16 cannot represent",
            context={"tensor": tensor, "largest": float(np.abs(values).max())},
            hint="choose f32 or bf16",
        )
    return halves.tobytes()


def library_version() -> str | None:
    """Return the version of the ``gguf`` package, ``None`` when it is not installed."""
    try:
        return metadata.version("gguf")
    except metadata.PackageNotFoundError:
        return None
