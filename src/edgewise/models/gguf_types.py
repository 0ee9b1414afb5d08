"""What a GGUF file is made of: tensor types, value types, and the result of reading one.

Facts only, no I/O. Block and type sizes are those of ggml (specified in ``ggml-common.h`` of the
llama.cpp that llama-cpp-python 0.3.36 carries; the tests compare them with the ``gguf`` package).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Self, TypeAlias

__all__ = [
    "GGML_TYPES_BY_NUMBER",
    "REMOVED_GGML_TYPES",
    "GgmlType",
    "GgufFile",
    "GgufScalar",
    "GgufValue",
    "TensorInfo",
    "ValueType",
]

GgufScalar: TypeAlias = bool | int | float | str
GgufValue: TypeAlias = GgufScalar | tuple[GgufScalar, ...]


class ValueType(IntEnum):
    """Type numbers of metadata values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


class GgmlType(IntEnum):
    """Tensor types a file may hold: number, elements per block, bytes per block.

    Attributes:
        block_size: Elements that are encoded together; a row is a whole number of blocks.
        type_size: Bytes of one block.
    """

    block_size: int
    type_size: int

    def __new__(cls, number: int, block_size: int, type_size: int) -> Self:
        """Return the member for ``number`` with its sizes attached."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.block_size = block_size
        member.type_size = type_size
        return member

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q8_0 = (8, 32, 34)
    Q8_1 = (9, 32, 36)
    Q2_K = (10, 256, 84)
    Q3_K = (11, 256, 110)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)
    Q8_K = (15, 256, 292)
    IQ2_XXS = (16, 256, 66)
    IQ2_XS = (17, 256, 74)
    IQ3_XXS = (18, 256, 98)
    IQ1_S = (19, 256, 50)
    IQ4_NL = (20, 32, 18)
    IQ3_S = (21, 256, 110)
    IQ2_S = (22, 256, 82)
    IQ4_XS = (23, 256, 136)
    I8 = (24, 1, 1)
    I16 = (25, 1, 2)
    I32 = (26, 1, 4)
    I64 = (27, 1, 8)
    F64 = (28, 1, 8)
    IQ1_M = (29, 256, 56)
    BF16 = (30, 1, 2)
    TQ1_0 = (34, 256, 54)
    TQ2_0 = (35, 256, 66)
    MXFP4 = (39, 32, 17)
    NVFP4 = (40, 64, 36)
    Q1_0 = (41, 128, 18)
    Q2_0 = (42, 64, 18)


GGML_TYPES_BY_NUMBER: dict[int, GgmlType] = {member.value: member for member in GgmlType}

REMOVED_GGML_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Where one tensor lies in its file.

    Attributes:
        name: Unique name, at most 63 bytes.
        shape: Elements per dimension in ggml order, ``(ne0, ne1, ...)``; ne0 varies fastest.
        type: How the elements are encoded.
        offset_bytes: Position of the first byte, from the start of the file.
        size_bytes: Length, without padding.
    """

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset_bytes: int
    size_bytes: int

    @property
    def n_elements(self) -> int:
        """Return the number of elements."""
        count = 1
        for dimension in self.shape:
            count *= dimension
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """Everything in a GGUF file but the tensor data.

    Attributes:
        path: The file as it was named by the caller.
        version: 2 or 3.
        alignment: Every tensor starts at a multiple of this many bytes after ``data_offset_bytes``.
        metadata: Values by key, in file order. Arrays are tuples. A text in an array that is not
            UTF-8 keeps its bytes as surrogate escapes; any other text is proper UTF-8.
        tensors: In file order, which is also the order of their data.
        data_offset_bytes: Where tensor data starts.
        file_size_bytes: Length of the whole file.
    """

    path: str
    version: int
    alignment: int
    metadata: dict[str, GgufValue]
    tensors: tuple[TensorInfo, ...]
    data_offset_bytes: int
    file_size_bytes: int

    @property
    def trailing_bytes(self) -> int:
        """Return how many bytes follow the last tensor and its padding.

        No writer leaves any; a resumed download that appended an error page does.
        """
        end = self.data_offset_bytes
        if self.tensors:
            last = self.tensors[-1]
            end = last.offset_bytes + last.size_bytes
            end += -(end - self.data_offset_bytes) % self.alignment
        return max(0, self.file_size_bytes - end)
