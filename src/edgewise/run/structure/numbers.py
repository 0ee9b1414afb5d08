"""Which numbers of a schema the grammar can be trusted with.

The library reads numbers as doubles and counts multiples in 32 bits, where it wraps around
without a word; an automaton for a large multiple takes seconds to build. What lies outside of
these bounds is checked after generation instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

__all__ = ["is_exact", "is_multiple", "multiples_fit"]

_EXACT_MAX = 2**53  # beyond, doubles skip whole numbers
_COEFFICIENT_MAX = 10_000  # 25 ms to build (measured 2026-11-30, llguidance 1.9.1)
_DIGITS_MAX = 9
_PRODUCT_MAX = 2**32


def is_exact(value: float) -> bool:
    """Whether a bound or a constant means the same number to the library."""
    return abs(value) <= _EXACT_MAX


def _parts(value: float) -> tuple[int, int]:
    """Return ``(c, e)`` with ``value == c / 10**e`` and ``e`` as small as it can be."""
    # Not normalize(): it would round at 28 digits.
    parts = Decimal(repr(value)).as_tuple()
    coefficient, exponent = int("".join(map(str, parts.digits))), int(parts.exponent)
    if exponent > 0:
        return coefficient * 10**exponent, 0
    while exponent < 0 and coefficient % 10 == 0:
        coefficient, exponent = coefficient // 10, exponent + 1
    return coefficient, -exponent


def _is_read_right(value: float, coefficient: int, digits: int) -> bool:
    """Whether multiplying by ten until nothing is left, as the library does, ends at the same."""
    scaled, times = float(value), 0
    while scaled != math.floor(scaled) and times <= digits:
        scaled, times = scaled * 10, times + 1
    return times == digits and scaled == coefficient


def multiples_fit(values: Iterable[Any]) -> bool:
    """Whether the grammar can carry all of these ``multipleOf`` at once."""
    product = 1
    parts = []
    for value in values:
        if not 1e-9 <= value <= _COEFFICIENT_MAX:
            return False
        coefficient, digits = _parts(value)
        if coefficient > _COEFFICIENT_MAX or digits > _DIGITS_MAX:
            return False
        if not _is_read_right(value, coefficient, digits):
            return False
        parts.append((coefficient, digits))
    widest = max((digits for _, digits in parts), default=0)
    for coefficient, digits in parts:
        product *= coefficient * 10 ** (widest - digits)
    return product < _PRODUCT_MAX


def is_multiple(value: float, of: float) -> bool:
    """Whether a number is a multiple by its decimal digits: in doubles 4.35 is none of 0.01."""
    (left, left_digits), (right, right_digits) = _parts(abs(value)), _parts(of)
    widest = max(left_digits, right_digits)
    scaled: int = left * 10 ** (widest - left_digits)
    step: int = right * 10 ** (widest - right_digits)
    return scaled % step == 0
