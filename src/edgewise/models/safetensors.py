"""Reading the header of a safetensors file, trusting nothing in it.

Invariants: the header is at most 100 MB and inside the file; its JSON has no duplicate keys;
every tensor's bytes are what its shape and dtype need; the tensors cover the data section
without holes or overlap, to the last byte of the file. Tensor data is never read.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from edgewise.models.bounded_file import BoundedFile

__all__ = ["SafetensorInfo", "SafetensorsFile", "read_safetensors"]

# The format's own limit on the header.
HEADER_BYTES_MAX: Final = 100_000_000
# No tensor has more; keeps a product of dimensions cheap to compute.
DIMENSIONS_MAX: Final = 16
INT64_MAX: Final = (1 << 63) - 1

# Bits per element.
DTYPE_BITS: Final = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

_U64: Final = struct.Struct("<Q")
_JSON_AT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorInfo:
    """Where one tensor lies in its file.

    Attributes:
        name: Unique name.
        shape: Elements per dimension as written, the last varying fastest.
        dtype: Name of the element type, as written.
        offset_bytes: Position of the first byte, from the start of the file.
        size_bytes: Length.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsFile:
    """Everything in a safetensors file but the tensor data.

    Attributes:
        path: The file as it was named by the caller.
        metadata: The free texts under ``__metadata__``.
        tensors: In the order of their data.
        data_offset_bytes: Where tensor data starts.
        file_size_bytes: Length of the whole file.
    """

    path: str
    metadata: dict[str, str]
    tensors: tuple[SafetensorInfo, ...]
    data_offset_bytes: int
    file_size_bytes: int


def read_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Return the metadata and the tensor index of a safetensors file.

    Args:
        path: A regular file.

    Raises:
        InputError: there is no such file (``model-not-found``), it is not a regular file
            (``model-not-a-file``), or it cannot be read (``model-unreadable``).
        IntegrityError: it is not a safetensors file that can be trusted (``safetensors-...``;
            the context names ``path``, ``field`` and ``offset_bytes``).
    """
    limit = HEADER_BYTES_MAX + _JSON_AT
    with BoundedFile(path, prefix="safetensors", header_limit_bytes=limit) as file:
        header, data_offset = _header(file)
        metadata = _metadata(file, header.pop("__metadata__", {}))
        tensors = [_tensor(file, name, entry, data_offset) for name, entry in header.items()]
        tensors.sort(key=lambda tensor: (tensor.offset_bytes, tensor.size_bytes))
        _require_cover(file, tensors, data_offset)
        return SafetensorsFile(
            path=file.path,
            metadata=metadata,
            tensors=tuple(tensors),
            data_offset_bytes=data_offset,
            file_size_bytes=file.size_bytes,
        )


def _header(file: BoundedFile) -> tuple[dict[str, Any], int]:
    """Return the decoded header and where the data starts."""
    if file.size_bytes == 0:
        file.fail("empty", "the file is empty", field="header_length")
    start = file.peek(16)
    if start[:4] == b"GGUF":
        file.fail(
            "bad-magic",
            "this is not a safetensors file",
            field="header_length",
            hint="it is a GGUF file: it can be used as it is",
        )
    (length,) = _U64.unpack(file.take(8, "header_length"))
    if length > HEADER_BYTES_MAX or length < len("{}"):
        file.fail(
            "header-length",
            f"a header of {length} bytes; 2 to {HEADER_BYTES_MAX} are allowed",
            field="header_length",
            offset_bytes=0,
            hint=_impostor_hint(start),
            length_bytes=length,
        )
    raw = file.take(length, "header")
    if raw[:1] != b"{":
        file.fail(
            "header-not-json",
            "the header does not start a JSON object",
            field="header",
            offset_bytes=_JSON_AT,
        )
    try:
        header = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
        "".join(header).encode()  # an escaped lone surrogate is not text
    except _DuplicateKeyError as error:
        file.fail(
            "duplicate-key",
            f"the key {error.key!r} appears twice",
            field=error.key,
            offset_bytes=_JSON_AT,
        )
    except (ValueError, RecursionError) as error:  # ValueError covers bad UTF-8 and bad JSON
        file.fail(
            "header-not-json",
            f"the header is not JSON: {error}",
            field="header",
            offset_bytes=_JSON_AT,
        )
    return header, file.offset_bytes


class _DuplicateKeyError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return out


def _no_constant(text: str) -> NoReturn:
    message = f"{text} is not JSON"
    raise ValueError(message)


def _impostor_hint(start: bytes) -> str | None:
    lowered = start.lstrip().lower()
    if lowered.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page: the download was answered with a login or error page"
    if lowered.startswith(b"pk\x03\x04"):
        return "it is a zip archive or a PyTorch checkpoint"
    if lowered.startswith(b"version https:"):
        return "it is a Git LFS pointer: run `git lfs pull` to get the model"
    return None


def _metadata(file: BoundedFile, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        file.fail(
            "bad-metadata",
            "__metadata__ is not an object of texts",
            field="__metadata__",
            offset_bytes=_JSON_AT,
        )
    return value


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= INT64_MAX


def _tensor(file: BoundedFile, name: str, entry: Any, data_offset: int) -> SafetensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        file.fail(
            "bad-entry",
            "a tensor needs exactly dtype, shape and data_offsets",
            field=name,
            offset_bytes=_JSON_AT,
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        file.fail(
            "unknown-dtype",
            f"{str(dtype)[:64]!r} is not a known element type",
            field=name,
            offset_bytes=_JSON_AT,
        )
    if not isinstance(shape, list) or len(shape) > DIMENSIONS_MAX or not all(map(_is_count, shape)):
        file.fail(
            "bad-shape",
            f"a shape is at most {DIMENSIONS_MAX} counts",
            field=name,
            offset_bytes=_JSON_AT,
        )
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        file.fail(
            "bad-offsets", "data_offsets is not two counts", field=name, offset_bytes=_JSON_AT
        )
    begin, end = offsets
    if begin > end or data_offset + end > file.size_bytes:
        file.fail(
            "data-truncated" if begin <= end else "bad-offsets",
            f"the data from {begin} to {end} is not inside the file",
            field=name,
            offset_bytes=data_offset + begin,
            hint="the file is incomplete: fetch it again and compare its digest",
            file_size_bytes=file.size_bytes,
        )
    n_bits = bits
    for dimension in shape:
        n_bits *= dimension
    if n_bits != (end - begin) * 8:
        file.fail(
            "size-mismatch",
            f"{end - begin} bytes are declared where {dtype} {shape} needs {n_bits / 8:g}"
            if n_bits <= INT64_MAX
            else f"{dtype} {shape} needs more bytes than can be counted",
            field=name,
            offset_bytes=data_offset + begin,
        )
    return SafetensorInfo(
        name=name,
        shape=tuple(shape),
        dtype=dtype,
        offset_bytes=data_offset + begin,
        size_bytes=end - begin,
    )


def _require_cover(file: BoundedFile, tensors: list[SafetensorInfo], data_offset: int) -> None:
    """Check that the tensors follow each other without holes or overlap, to the end."""
    expected = data_offset
    for tensor in tensors:
        if tensor.offset_bytes != expected:
            overlaps = tensor.offset_bytes < expected
            file.fail(
                "overlap" if overlaps else "hole",
                f"the tensor starts at byte {tensor.offset_bytes} where {expected} was expected",
                field=tensor.name,
                offset_bytes=tensor.offset_bytes,
                expected=expected,
            )
        expected += tensor.size_bytes
    if expected != file.size_bytes:
        file.fail(
            "trailing-bytes",
            f"{file.size_bytes - expected} bytes follow the last tensor",
            field="data",
            offset_bytes=expected,
            file_size_bytes=file.size_bytes,
        )
