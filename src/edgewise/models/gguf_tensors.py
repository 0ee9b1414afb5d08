"""The tensor index of a GGUF file: names, shapes, types, and where the data lies.

Invariants: what ggml would refuse is refused, and so is data that the file does not hold. The
data itself is never read.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from edgewise.models.bounded_file import BoundedFile
from edgewise.models.gguf_types import (
    GGML_TYPES_BY_NUMBER,
    REMOVED_GGML_TYPES,
    GgmlType,
    TensorInfo,
)

__all__ = ["read_tensor_index"]

# ggml keeps a name in 64 bytes, the last of them zero.
TENSOR_NAME_BYTES_MAX: Final = 63
# GGML_MAX_DIMS.
DIMENSIONS_MAX: Final = 4
# Elements and bytes of a tensor are signed 64-bit in ggml.
INT64_MAX: Final = (1 << 63) - 1

# Name, shape, type, size in bytes, offset in the data section, position of that offset.
_Entry: TypeAlias = tuple[str, tuple[int, ...], GgmlType, int, int, int]


def read_tensor_index(
    file: BoundedFile, n_tensors: int, alignment: int
) -> tuple[tuple[TensorInfo, ...], int]:
    """Return the tensors and the offset at which their data starts.

    Args:
        file: Standing at the first entry.
        n_tensors: Already checked against the bytes that are left.
        alignment: Of the data section and of every tensor in it, in bytes.

    Raises:
        IntegrityError: an entry is not what ggml or the file allow (``gguf-...``).
    """
    entries = _tensor_entries(file, n_tensors)
    data_offset = file.offset_bytes
    if entries:  # without tensors there is no data section to align
        data_offset += -data_offset % alignment
    return _placed(file, entries, alignment, data_offset), data_offset


def _tensor_entries(file: BoundedFile, n_tensors: int) -> list[_Entry]:
    entries: list[_Entry] = []
    seen: set[str] = set()
    for index in range(n_tensors):
        at = file.offset_bytes
        name = file.take_name(f"tensor {index}", "tensor-name-invalid", TENSOR_NAME_BYTES_MAX)
        if name in seen:
            file.fail(
                "duplicate-tensor",
                f"the tensor {name!r} appears twice",
                field=name,
                offset_bytes=at,
            )
        seen.add(name)
        entries.append(_tensor_entry(file, name))
    return entries


def _tensor_entry(file: BoundedFile, name: str) -> _Entry:
    at = file.offset_bytes
    n_dims = file.take_u32(name)
    if n_dims > DIMENSIONS_MAX:
        file.fail(
            "too-many-dimensions",
            f"{n_dims} dimensions; at most {DIMENSIONS_MAX} are allowed",
            field=name,
            offset_bytes=at,
            dimensions=n_dims,
        )
    at = file.offset_bytes
    shape = struct.unpack(f"<{n_dims}Q", file.take(8 * n_dims, name))
    n_elements = 1
    for dimension in shape:
        n_elements *= max(dimension, 1)  # a zero must not hide an overflow
    if n_elements > INT64_MAX:
        file.fail(
            "shape-overflow",
            f"the shape {shape} has more elements than can be counted",
            field=name,
            offset_bytes=at,
            shape=list(shape),
        )
    kind = _tensor_type(file, name)
    if (shape[0] if shape else 1) % kind.block_size:
        file.fail(
            "row-not-divisible",
            f"rows of {shape[0] if shape else 1} elements cannot be {kind.name}, which "
            f"encodes {kind.block_size} together",
            field=name,
            offset_bytes=at,
            shape=list(shape),
            type=kind.name,
        )
    size = 0 if 0 in shape else n_elements // kind.block_size * kind.type_size
    at = file.offset_bytes
    offset = file.take_u64(name)
    return name, shape, kind, size, offset, at


def _tensor_type(file: BoundedFile, name: str) -> GgmlType:
    at = file.offset_bytes
    number = file.take_u32(name)
    kind = GGML_TYPES_BY_NUMBER.get(number)
    if number in REMOVED_GGML_TYPES:
        file.fail(
            "removed-tensor-type",
            f"the tensor type {REMOVED_GGML_TYPES[number]} was removed from the format",
            field=name,
            offset_bytes=at,
            hint="quantise the original checkpoint again; Q4_0 is repacked at load time now",
            type=number,
        )
    if kind is None:
        file.fail(
            "unknown-tensor-type",
            f"{number} is not a type of tensor",
            field=name,
            offset_bytes=at,
            hint="the file is damaged, or uses a quantisation newer than this version knows",
            type=number,
        )
    return kind


def _placed(
    file: BoundedFile, entries: list[_Entry], alignment: int, data_offset: int
) -> tuple[TensorInfo, ...]:
    """Return the tensors where their data lies: aligned, in order, without gaps."""
    tensors: list[TensorInfo] = []
    expected = 0
    for name, shape, kind, size, offset, at in entries:
        if offset % alignment:
            file.fail(
                "offset-misaligned",
                f"the data offset {offset} is not a multiple of {alignment}",
                field=name,
                offset_bytes=at,
                found=offset,
                alignment=alignment,
            )
        if offset != expected:
            file.fail(
                "offset-unexpected",
                f"the data offset is {offset} where {expected} follows from the tensors before",
                field=name,
                offset_bytes=at,
                found=offset,
                expected=expected,
            )
        start = data_offset + offset
        if start + size > file.size_bytes:
            file.fail(
                "data-truncated",
                f"the tensor ends at byte {start + size} and the file at {file.size_bytes}",
                field=name,
                offset_bytes=start,
                hint="the file is incomplete: fetch it again and compare its digest",
                needed_bytes=start + size,
                file_size_bytes=file.size_bytes,
            )
        tensors.append(
            TensorInfo(name=name, shape=shape, type=kind, offset_bytes=start, size_bytes=size)
        )
        expected += size + -size % alignment
    return tuple(tensors)
