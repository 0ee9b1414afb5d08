"""Writing safetensors and GGUF files tensor by tensor, with the same bytes for the same input."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from edgewise.errors import IntegrityError
from edgewise.models.gguf_types import GgmlType, GgufValue, ValueType

__all__ = ["PlannedTensor", "write_gguf", "write_safetensors"]

ALIGNMENT: Final = 32
_HEADER_UNIT: Final = 8

_SCALAR_FORMATS: Final = {
    ValueType.UINT32: "<I",
    ValueType.INT32: "<i",
    ValueType.INT64: "<q",
    ValueType.UINT64: "<Q",
    ValueType.FLOAT32: "<f",
    ValueType.BOOL: "<?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTensor:
    """A tensor about to be written.

    Attributes:
        name: Its name.
        shape: Elements per dimension, in the order of the file it goes to.
        dtype: ``F32``, ``F16`` or ``BF16``.
        pieces: Gives its bytes, in pieces.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    pieces: Callable[[], Iterable[bytes]]

    @property
    def size_bytes(self) -> int:
        """Return the length of its data."""
        size = 4 if self.dtype == "F32" else 2
        for dimension in self.shape:
            size *= dimension
        return size


def write_safetensors(
    path: Path, tensors: Sequence[PlannedTensor], free_texts: Mapping[str, str]
) -> None:
    """Write a safetensors file; tensors by name.

    Raises:
        OSError: the disk is full or failed.
        IntegrityError: a tensor gave another number of bytes than its shape needs.
    """
    ordered = sorted(tensors, key=lambda tensor: tensor.name)
    header: dict[str, object] = {"__metadata__": dict(sorted(free_texts.items()))}
    at = 0
    for tensor in ordered:
        end = at + tensor.size_bytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % _HEADER_UNIT)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(raw)) + raw)
        for tensor in ordered:
            _write_data(stream, tensor)


def write_gguf(
    path: Path, metadata: Mapping[str, GgufValue], tensors: Sequence[PlannedTensor]
) -> None:
    """Write a GGUF file of version 3; tensors and metadata in the order given.

    Numbers are 32-bit where they fit, as llama.cpp's own converter writes them.

    Raises:
        OSError: the disk is full or failed.
        IntegrityError: a tensor gave another number of bytes than its shape needs.
    """
    head = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    offset = 0
    for tensor in tensors:
        head += _text(tensor.name) + struct.pack("<I", len(tensor.shape))
        head += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
        head += struct.pack("<IQ", GgmlType[tensor.dtype].value, offset)
        offset += tensor.size_bytes + -tensor.size_bytes % ALIGNMENT
    head += b"\0" * (-len(head) % ALIGNMENT)
    with path.open("wb") as stream:
        stream.write(head)
        for tensor in tensors:
            _write_data(stream, tensor)
            stream.write(b"\0" * (-tensor.size_bytes % ALIGNMENT))


def _write_data(stream: IO[bytes], tensor: PlannedTensor) -> None:
    written = 0
    for piece in tensor.pieces():
        stream.write(piece)
        written += len(piece)
    if written != tensor.size_bytes:
        raise IntegrityError(
            "tensor-truncated",
            f"{tensor.name} gave {written} of {tensor.size_bytes} bytes",
            context={"tensor": tensor.name},
            hint="fetch the checkpoint again and compare its digest",
        )


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _value(value: GgufValue) -> bytes:
    if isinstance(value, tuple):
        if not value or isinstance(value[0], str):  # only the merges can be none
            body = b"".join([_text(str(item)) for item in value])
            kind = ValueType.STRING
        else:
            kind = _array_kind(value)
            code = _SCALAR_FORMATS[kind][1]
            body = struct.pack(f"<{len(value)}{code}", *value)
        return struct.pack("<IIQ", ValueType.ARRAY, kind, len(value)) + body
    if isinstance(value, str):
        return struct.pack("<I", ValueType.STRING) + _text(value)
    kind = _scalar_kind(value)
    return struct.pack("<I", kind) + struct.pack(_SCALAR_FORMATS[kind], value)


def _scalar_kind(value: float) -> ValueType:
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, float):
        return ValueType.FLOAT32
    if value < 0:
        return ValueType.INT32 if value >= -(1 << 31) else ValueType.INT64
    return ValueType.UINT32 if value < 1 << 32 else ValueType.UINT64


def _array_kind(values: tuple[bool | int | float | str, ...]) -> ValueType:
    if all(isinstance(value, bool) for value in values):
        return ValueType.BOOL
    if all(isinstance(value, int) for value in values):
        return ValueType.INT32
    return ValueType.FLOAT32
