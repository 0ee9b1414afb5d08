"""How many requests an address may send: a bucket of tokens for each, refilled steadily.

It is the address that counts, since all else that tells clients apart is theirs to choose.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable

from edgewise.errors import ResourceError

__all__ = ["RateLimit"]

# An address that was forgotten starts with a full bucket, so there must be room for all that count.
_ADDRESSES_MAX = 10_000


class RateLimit:
    """Counts the requests of each address; not thread-safe, for the event loop alone."""

    def __init__(
        self, per_minute: int | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take how many requests a minute each address may send; ``None`` for any number."""
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: collections.OrderedDict[str, tuple[float, float]] = collections.OrderedDict()

    def take(self, address: str) -> None:
        """Count a request.

        A minute's requests may come at once; then they come at the rate.

        Raises:
            ResourceError: too many have come from there.
        """
        if self._per_minute is None:
            return
        now, rate_s = self._clock(), self._per_minute / 60
        left, since = self._buckets.pop(address, (float(self._per_minute), now))
        left = min(float(self._per_minute), left + (now - since) * rate_s)
        allowed = left >= 1
        self._buckets[address] = (left - 1 if allowed else left, now)
        if len(self._buckets) > _ADDRESSES_MAX:
            self._buckets.popitem(last=False)
        if not allowed:
            raise ResourceError(
                "rate-limited",
                f"more than {self._per_minute} requests at once or a minute come from this address",
                context={"retry_after_s": max(1, math.ceil((1 - left) / rate_s))},
                hint="send requests at a lower rate; the server's --rate-limit sets it",
                retryable=True,
            )
