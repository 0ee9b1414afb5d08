"""When the same request is sent once more, and how long that waits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from edgewise.route.cloud.answers import CloudFault
from edgewise.route.cloud.faults import Fault

__all__ = ["backoff_s", "may_repeat", "retry_after_s"]

_FIRST_S = 0.5
_LONGEST_S = 8.0
_REPEATED = {CloudFault.RATE_LIMIT, CloudFault.OUTAGE, CloudFault.TIMEOUT}


def may_repeat(fault: Fault, *, answered: bool) -> bool:
    """Return whether the very same request may be sent again, under its idempotency key.

    Args:
        fault: What ended the last attempt.
        answered: Whether an answer had begun (a status of 200 came): it is never asked for twice.
    """
    return not answered and fault.kind in _REPEATED and fault.error.retryable


def backoff_s(
    attempt: int, asked_s: float | None, *, uniform: Callable[[float, float], float] | None = None
) -> float:
    """Return the seconds to wait after attempt ``attempt`` (from 1).

    A draw between 0 and a bound that doubles with each attempt ("full jitter"), so that clients
    that failed together do not come back together; never less than what the server asks for.
    """
    draw = uniform or random.SystemRandom().uniform
    bound = min(_LONGEST_S, _FIRST_S * 2.0 ** (attempt - 1))
    return max(draw(0.0, bound), asked_s or 0.0)


def retry_after_s(text: str | None, *, date: str | None, now_s: float) -> float | None:
    """Return the seconds that a ``Retry-After`` asks for (RFC 9110, 10.2.3), if it does.

    Args:
        text: The field: whole seconds, or a date.
        date: The answer's own ``Date``. A date is read against it, so that a wrong clock of this
            device does not matter.
        now_s: This device's clock, where the answer has no date, seconds since 1970.
    """
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdecimal():
        seconds = float(text) if len(text) < 12 else math.inf
        return seconds if math.isfinite(seconds) else None
    until = _instant(text)
    if until is None:
        return None
    sent = None if date is None else _instant(date)
    return max(0.0, until - (now_s if sent is None else sent))


def _instant(text: str) -> float | None:
    try:
        found = parsedate_to_datetime(text)
        # A date without a zone is UTC in HTTP, and local time in Python.
        return found.timestamp() if found.tzinfo else None
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
