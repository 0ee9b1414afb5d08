"""Numbers in coarse buckets, which tell no text by its length.

A rule compares a number with a limit: "at most". So a bucket lies above one edge and includes the
next. The limits of the policy in force are edges too: what it decided can be told again exactly.
What a limit of another policy splits cannot be told, and :func:`points` says so.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from edgewise.errors import InputError
from edgewise.route.policy import NUMBER_MAX

__all__ = [
    "CHARACTERS",
    "EXPECTED_S",
    "MAX_TOKENS",
    "TEMPERATURE",
    "Number",
    "Span",
    "points",
    "span",
]

Number: TypeAlias = int | float

CHARACTERS: tuple[Number, ...] = tuple(k * 10**n for n in (2, 3, 4, 5) for k in (1, 2, 5))
MAX_TOKENS: tuple[Number, ...] = tuple(2**n for n in range(4, 18))
TEMPERATURE: tuple[Number, ...] = (0.0, *(n / 10 for n in range(1, 21)))
EXPECTED_S: tuple[Number, ...] = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)


class Span(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number, as far as it is told: above ``over`` and not above ``to``, where they are set."""

    over: Number | None = None
    to: Number | None = None

    def __post_init__(self) -> None:
        known = [edge for edge in (self.over, self.to) if edge is not None]
        if not all(abs(edge) <= NUMBER_MAX for edge in known):
            raise _invalid("an edge is no number of at most 2^53 - 1")
        if len(known) == 2 and not known[0] < known[1]:
            raise _invalid(f"nothing is above {known[0]:g} and not above {known[1]:g}")


def _invalid(why: str) -> InputError:
    return InputError(
        "route-records-invalid",
        f"a record's bucket cannot be used: {why}",
        hint="export records with `edgewise policy records export FILE`",
    )


def span(value: Number, edges: Iterable[Number], limits: Iterable[Number | None] = ()) -> Span:
    """Return the bucket of a number between edges and the limits that are set."""
    every = sorted({*edges, *(limit for limit in limits if limit is not None)})
    at = len(every) if math.isnan(value) else bisect.bisect_left(every, value)
    return Span(over=every[at - 1] if at else None, to=every[at] if at < len(every) else None)


def points(found: Span, limits: Iterable[Number | None]) -> tuple[Number, ...]:
    """Return numbers of a bucket, one for each way in which it may compare with the limits.

    No number of these rules is negative.
    """
    low = -1 if found.over is None else found.over
    inside = sorted(
        {
            limit
            for limit in limits
            if limit is not None
            and low < limit
            and limit >= 0
            and (found.to is None or limit < found.to)
        }
    )
    last = found.to if found.to is not None else max(low, *inside, 0) + 1
    return (*inside, last)
