"""Reading the header of a GGUF file (versions 2 and 3), trusting nothing in it.

Invariants: a declared count is checked against the bytes that are left before anything is
allocated or looped over; tensor data is never read; a file that ggml would refuse is refused
here, with the field and the offset. Stricter than ggml where the format specification is
(alignment, boolean values) or where nothing legitimate needs the freedom (sizes, empty names).

Not done here: what the metadata means (:mod:`edgewise.models.architecture`,
:mod:`edgewise.models.tokenizer`), and whether the bytes are the published ones (the digest).
"""

from __future__ import annotations

import os
import struct
from typing import Final

from edgewise.models.bounded_file import BoundedFile
from edgewise.models.gguf_tensors import read_tensor_index
from edgewise.models.gguf_types import (
    GgmlType,
    GgufFile,
    GgufValue,
    TensorInfo,
    ValueType,
)

__all__ = ["GgmlType", "GgufFile", "TensorInfo", "read_gguf"]

# Largest header seen: about 16 MiB (262k tokens with 514k merges). Python objects take up to
# about six times their bytes, so this also keeps memory below half a gigabyte.
HEADER_BYTES_MAX: Final = 64 << 20
# Models have 20 to 60 keys, merged multimodal ones a few hundred.
KV_COUNT_MAX: Final = 1 << 16
# A mixture of experts with one tensor per expert has about 50 000.
TENSOR_COUNT_MAX: Final = 1 << 17
# All arrays together; 262k tokens with types, scores and 514k merges are 1.3 million.
ARRAY_ELEMENTS_MAX: Final = 1 << 22
# The specification's own limit.
KEY_BYTES_MAX: Final = 65_535
# A chat template is some 20 KiB, a licence text 100 KiB.
STRING_BYTES_MAX: Final = 16 << 20
# Specified: used when the file does not name one, and the unit that each must be a multiple of.
ALIGNMENT_DEFAULT: Final = 32
ALIGNMENT_UNIT: Final = 8

_KV_BYTES_MIN: Final = 8 + 1 + 4 + 1  # length and one byte of key, type, smallest value
_TENSOR_BYTES_MIN: Final = 8 + 1 + 4 + 4 + 8  # length and one byte of name, dims, type, offset
_ALIGNMENT_KEY: Final = "general.alignment"

_U64: Final = struct.Struct("<Q")
_FORMATS: Final[dict[ValueType, str]] = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "B",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
_VALUE_TYPES: Final = {member.value: member for member in ValueType}

# What people save under the name of a model, by how it starts (lower case).
_IMPOSTORS: Final = (
    (b"<!doctype", "a web page: the download was answered with a login or error page"),
    (b"<html", "a web page: the download was answered with a login or error page"),
    (b"<?xml", "an XML document: the download was answered with an error"),
    (b"pk\x03\x04", "a zip archive: unpack it, or it is a PyTorch checkpoint to be converted"),
    (b"version https://git-lfs", "a Git LFS pointer: run `git lfs pull` to get the model"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"tjgg", "a GGJT file, from before GGUF: convert the original checkpoint again"),
    (b"fmgg", "a GGMF file, from before GGUF: convert the original checkpoint again"),
    (b"lmgg", "a GGML file, from before GGUF: convert the original checkpoint again"),
    (b"{", "a JSON document: the download was answered with an error, or this is a config file"),
)


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Return the metadata and the tensor index of a GGUF file.

    Args:
        path: A regular file.

    Raises:
        InputError: there is no such file (``model-not-found``), it is not a regular file
            (``model-not-a-file``), or it cannot be read (``model-unreadable``).
        IntegrityError: it is not a GGUF file that can be trusted (``gguf-...``; the context
            names ``path``, ``field`` and ``offset_bytes``).
    """
    with BoundedFile(path, prefix="gguf", header_limit_bytes=HEADER_BYTES_MAX) as file:
        return _Reader(file).read()


class _Reader:
    """One pass over one file."""

    def __init__(self, file: BoundedFile) -> None:
        self.file = file
        self.array_elements = 0

    def read(self) -> GgufFile:
        file = self.file
        version = self._version()
        n_tensors = self._count("tensor_count", TENSOR_COUNT_MAX, _TENSOR_BYTES_MIN)
        n_kv = self._count("metadata_kv_count", KV_COUNT_MAX, _KV_BYTES_MIN)
        metadata, alignment = self._metadata(n_kv)
        tensors, data_offset = read_tensor_index(file, n_tensors, alignment)
        return GgufFile(
            path=file.path,
            version=version,
            alignment=alignment,
            metadata=metadata,
            tensors=tensors,
            data_offset_bytes=data_offset,
            file_size_bytes=file.size_bytes,
        )

    def _version(self) -> int:
        file = self.file
        if file.size_bytes == 0:
            file.fail("empty", "the file is empty", field="magic")
        start = file.peek(32)
        if start[:4] != b"GGUF":
            file.fail(
                "bad-magic",
                "this is not a GGUF file",
                field="magic",
                offset_bytes=0,
                hint=_impostor_hint(start, file.size_bytes),
                found=start[:16].hex(),
            )
        if file.size_bytes < 24:
            file.fail(
                "truncated",
                "the file ends inside its header",
                field="version",
                offset_bytes=4,
                hint="the file is incomplete: fetch it again and compare its digest",
                file_size_bytes=file.size_bytes,
            )
        file.take(4, "magic")
        version = file.take_u32("version")
        if version not in (2, 3):
            if version & 0xFFFF == 0 and version:
                file.fail(
                    "big-endian",
                    "the file was written for a big-endian machine",
                    field="version",
                    offset_bytes=4,
                    hint="convert the checkpoint again without the big-endian option",
                )
            file.fail(
                "version-unsupported",
                f"GGUF version {version} is not one of 2 and 3",
                field="version",
                offset_bytes=4,
                hint="convert the original checkpoint again with a current converter",
                version=version,
            )
        return version

    def _count(self, field: str, limit: int, bytes_each: int) -> int:
        """Return a declared count that the file can hold and that anything real needs."""
        file = self.file
        at = file.offset_bytes
        count = file.take_u64(field)
        possible = min(limit, file.remaining_bytes // bytes_each)
        if count > possible:
            file.fail(
                "count-absurd",
                f"{count} are declared and at most {possible} are possible",
                field=field,
                offset_bytes=at,
                declared=count,
                possible=possible,
            )
        return count

    def _metadata(self, n_kv: int) -> tuple[dict[str, GgufValue], int]:
        file = self.file
        metadata: dict[str, GgufValue] = {}
        alignment = ALIGNMENT_DEFAULT
        for index in range(n_kv):
            at = file.offset_bytes
            key = file.take_name(f"key {index}", "key-invalid", KEY_BYTES_MAX)
            if key in metadata:
                file.fail(
                    "duplicate-key", f"the key {key!r} appears twice", field=key, offset_bytes=at
                )
            at = file.offset_bytes
            kind = self._value_type(key)
            value = self._array(key) if kind is ValueType.ARRAY else self._scalar(kind, key)
            metadata[key] = value
            if key == _ALIGNMENT_KEY:
                alignment = self._alignment(kind, value, at)
        return metadata, alignment

    def _alignment(self, kind: ValueType, value: GgufValue, at: int) -> int:
        if (
            kind is not ValueType.UINT32
            or not isinstance(value, int)
            or value < ALIGNMENT_UNIT
            or value & (value - 1)
        ):
            self.file.fail(
                "bad-alignment",
                f"an alignment must be a UINT32 power of two of at least {ALIGNMENT_UNIT}",
                field=_ALIGNMENT_KEY,
                offset_bytes=at,
                type=kind.name,
                value=value if isinstance(value, int | float | str) else None,
            )
        return value

    def _value_type(self, key: str) -> ValueType:
        at = self.file.offset_bytes
        number = self.file.take_u32(key)
        kind = _VALUE_TYPES.get(number)
        if kind is None:
            self.file.fail(
                "unknown-value-type",
                f"{number} is not a type of value",
                field=key,
                offset_bytes=at,
                type=number,
            )
        return kind

    def _scalar(self, kind: ValueType, key: str) -> GgufValue:
        at = self.file.offset_bytes
        if kind is ValueType.STRING:
            (raw,) = self.file.take_strings(1, key, limit_bytes=STRING_BYTES_MAX)
            return self.file.text(raw, key, at)
        (value,) = self._numbers(kind, 1, key)
        return value

    def _array(self, key: str) -> GgufValue:
        file = self.file
        at = file.offset_bytes
        kind = self._value_type(key)
        if kind is ValueType.ARRAY:
            file.fail("nested-array", "arrays of arrays are refused", field=key, offset_bytes=at)
        at = file.offset_bytes
        count = file.take_u64(key)
        bytes_each = 8 if kind is ValueType.STRING else struct.calcsize("<" + _FORMATS[kind])
        possible = min(ARRAY_ELEMENTS_MAX - self.array_elements, file.remaining_bytes // bytes_each)
        if count > possible:
            file.fail(
                "array-too-large",
                f"an array of {count} elements; at most {possible} are possible here",
                field=key,
                offset_bytes=at,
                declared=count,
                possible=possible,
            )
        self.array_elements += count
        if kind is not ValueType.STRING:
            return self._numbers(kind, count, key)
        raw = file.take_strings(count, key, limit_bytes=STRING_BYTES_MAX)
        return tuple([piece.decode("utf-8", "surrogateescape") for piece in raw])

    def _numbers(self, kind: ValueType, count: int, key: str) -> tuple[bool | int | float, ...]:
        layout = struct.Struct(f"<{count}{_FORMATS[kind]}")
        at = self.file.offset_bytes
        values = layout.unpack(self.file.take(layout.size, key))
        if kind is not ValueType.BOOL:
            return values
        if values and max(values) > 1:
            self.file.fail(
                "bad-bool", "a truth value is neither 0 nor 1", field=key, offset_bytes=at
            )
        return tuple(map(bool, values))


def _impostor_hint(start: bytes, size_bytes: int) -> str:
    lowered = start.lstrip().lower()
    for magic, what in _IMPOSTORS:
        if lowered.startswith(magic):
            return f"it is {what}"
    if len(start) > 8 and start[8:9] == b"{" and _U64.unpack(start[:8])[0] <= size_bytes:
        return "it is a safetensors checkpoint: convert it to GGUF first"
    return "name a file that a GGUF converter wrote"
