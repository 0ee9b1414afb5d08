"""Moments as the ledger keeps them: whole milliseconds since 1970, UTC."""

from __future__ import annotations

import datetime as dt
import math

__all__ = ["from_clock", "from_datetime", "to_datetime"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)
_LATEST_MS = (dt.datetime.max.replace(tzinfo=dt.UTC) - _EPOCH) // _MILLISECOND


def from_clock(seconds: float) -> int:
    """Return a reading of a clock, in seconds since 1970, as milliseconds within what a date holds.

    A reading that is no number counts as 1970: a clock that is far behind opens nothing.
    """
    if not math.isfinite(seconds):
        return 0
    return min(math.floor(min(max(seconds, 0.0), 1e12) * 1000), _LATEST_MS)


def from_datetime(moment: dt.datetime) -> int:
    """Return an aware date and time as milliseconds, rounded down."""
    return (moment - _EPOCH) // _MILLISECOND


def to_datetime(milliseconds: int) -> dt.datetime:
    """Return milliseconds as a date and time in UTC."""
    return _EPOCH + milliseconds * _MILLISECOND
