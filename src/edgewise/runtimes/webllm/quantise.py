"""Rounding weights to 4-bit groups and packing them, in plain numpy.

A group of :data:`GROUP_SIZE` neighbours along a row shares a scale, its largest magnitude
divided by 7; values become integers 0 to 14, of which 7 stands for zero. Eight integers fill a
32-bit word, the first in the lowest bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgewise.runtimes.webllm.formats import GROUP_SIZE, VALUES_PER_WORD

__all__ = ["pack_groups", "unpack_groups"]

_BITS = 32 // VALUES_PER_WORD
_LARGEST = 7
_SHIFTS = np.arange(VALUES_PER_WORD, dtype=np.uint32) * np.uint32(_BITS)

Array = np.ndarray[Any, np.dtype[Any]]


def pack_groups(weight: Array, scale_dtype: str) -> tuple[Array, Array]:
    """Return packed integers and scales of a matrix.

    Args:
        weight: ``(rows, columns)`` float32; columns divisible by :data:`GROUP_SIZE`.
        scale_dtype: ``float32`` or ``float16``; values are rounded with the scale as stored.

    Returns:
        ``(rows, columns / 8)`` uint32 and ``(rows, columns / GROUP_SIZE)`` of ``scale_dtype``.
    """
    rows, columns = weight.shape
    groups = weight.astype(np.float32).reshape(rows, columns // GROUP_SIZE, GROUP_SIZE)
    scale = (np.abs(groups).max(axis=-1) / _LARGEST).astype(scale_dtype)
    divisor = np.where(scale == 0, 1, scale).astype(np.float32)[..., None]
    integers = np.clip(np.rint(groups / divisor), -_LARGEST, _LARGEST) + _LARGEST
    words = integers.astype(np.uint32).reshape(rows, columns // VALUES_PER_WORD, VALUES_PER_WORD)
    return np.bitwise_or.reduce(words << _SHIFTS, axis=-1), scale


def unpack_groups(packed: Array, scale: Array) -> Array:
    """Return the matrix that :func:`pack_groups` packed, ``(rows, columns)`` float32."""
    integers = (packed[..., None] >> _SHIFTS) & np.uint32((1 << _BITS) - 1)
    rows = packed.shape[0]
    groups = integers.astype(np.float32).reshape(rows, -1, GROUP_SIZE) - _LARGEST
    weight: Array = (groups * scale.astype(np.float32)[..., None]).reshape(rows, -1)
    return weight
