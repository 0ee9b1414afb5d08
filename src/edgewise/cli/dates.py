"""Dates as people type and read them, in this device's time zone."""

from __future__ import annotations

import datetime as dt

from edgewise.errors import InputError

__all__ = ["moment_of", "shown_date"]


def moment_of(text: str) -> dt.datetime:
    """Return a date and time; a day alone is its end, and local time is meant without a zone.

    Raises:
        InputError: it is none (``consent-date-invalid``).
    """
    try:
        moment = dt.datetime.fromisoformat(text)
        if _is_day(text):
            moment += dt.timedelta(days=1)
        return moment if moment.tzinfo else moment.astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise InputError(
            "consent-date-invalid",
            f"{text!r} is no date: {error}",
            hint="write it like 2027-03-31 or 2027-03-31T18:00+02:00",
        ) from error


def _is_day(text: str) -> bool:
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def shown_date(moment: dt.datetime) -> str:
    """Return a moment in local time, to the minute."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M}"
