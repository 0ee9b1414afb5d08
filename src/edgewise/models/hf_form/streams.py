"""Tensor data in pieces: read at an offset, change order or offset, give out rows.

Invariants: at most ``CHUNK_ELEMENTS`` values are in memory at a time (or one head's rows, if that
is more), whatever the model's size; a file that became shorter is an error, never a short tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from edgewise.errors import IntegrityError
from edgewise.models.gguf_types import GgmlType, TensorInfo
from edgewise.models.hf_form.dequantize import dequantize

if TYPE_CHECKING:
    import numpy as np

    from edgewise.models.safetensors import SafetensorInfo

    Floats = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["gguf_rows", "hf_rows", "read_exactly"]

CHUNK_ELEMENTS: Final = 4 << 20

_DTYPES: Final = {"F32": GgmlType.F32, "F16": GgmlType.F16, "BF16": GgmlType.BF16}


def gguf_rows(
    stream: IO[bytes], tensor: TensorInfo, *, heads: int = 0, offset: float = 0.0
) -> Iterator[Floats]:
    """Yield a GGUF tensor's values as the Hugging Face form has them, ``(rows, row)`` float32.

    Args:
        stream: The file.
        tensor: Where it lies.
        heads: Heads whose rows GGUF interleaves, or 0.
        offset: What GGUF has added to every value.
    """
    row = tensor.shape[0] if tensor.shape else 1
    rows = tensor.n_elements // row
    row_bytes = row // tensor.type.block_size * tensor.type.type_size
    stream.seek(tensor.offset_bytes)
    for count in _chunks(rows, row, heads):
        raw = read_exactly(stream, count * row_bytes, tensor.name)
        values = dequantize(raw, tensor.type, tensor=tensor.name).reshape(count, row)
        if heads:
            half = rows // heads // 2
            values = values.reshape(-1, half, 2, row).swapaxes(1, 2).reshape(count, row)
        yield values - offset if offset else values


def hf_rows(
    stream: IO[bytes], tensor: SafetensorInfo, *, heads: int = 0, offset: float = 0.0
) -> Iterator[Floats]:
    """Yield a safetensors tensor's values as GGUF has them; the inverse of :func:`gguf_rows`."""
    kind = _DTYPES[tensor.dtype]
    row = tensor.shape[-1] if tensor.shape else 1
    rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
    stream.seek(tensor.offset_bytes)
    for count in _chunks(rows, row, heads):
        raw = read_exactly(stream, count * row * kind.type_size, tensor.name)
        values = dequantize(raw, kind, tensor=tensor.name).reshape(count, row)
        if heads:
            half = rows // heads // 2
            values = values.reshape(-1, 2, half, row).swapaxes(1, 2).reshape(count, row)
        yield values + offset if offset else values


def read_exactly(stream: IO[bytes], count: int, what: str) -> bytes:
    """Return ``count`` bytes.

    Raises:
        IntegrityError: the file ends before (``tensor-truncated``).
    """
    raw = stream.read(count)
    if len(raw) != count:
        raise IntegrityError(
            "tensor-truncated",
            f"{what} ends {count - len(raw)} bytes early: the file became shorter",
            context={"path": str(Path(str(stream.name))), "tensor": what},
            hint="fetch the checkpoint again and compare its digest",
        )
    return raw


def _chunks(rows: int, row: int, heads: int) -> Iterator[int]:
    """Yield how many rows to take next; whole heads where their rows change places."""
    unit = rows // heads if heads else 1
    step = max(1, CHUNK_ELEMENTS // (row * unit)) * unit
    done = 0
    while done < rows:
        yield min(step, rows - done)
        done += step
