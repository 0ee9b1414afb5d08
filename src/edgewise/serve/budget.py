"""How often an engine may fail before requests are turned away instead of tried."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable

__all__ = ["FailureBudget"]


class FailureBudget:
    """Counts failures within a sliding window of time.

    Requests that ran side by side fail together when their engine does: that is one failure.
    """

    def __init__(
        self, failures_max: int, window_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures_max = failures_max
        self._window_s = window_s
        self._clock = clock
        self._failures: collections.deque[float] = collections.deque(maxlen=failures_max)
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the time on the clock by which failures are counted."""
        return self._clock()

    def failed(self, began: float) -> None:
        """Count a failure, unless one was counted since the request that met it began.

        Args:
            began: When it began, by :meth:`now`.
        """
        with self._lock:
            if not self._failures or self._failures[-1] <= began:
                self._failures.append(self._clock())

    def left_s(self) -> float:
        """Return the seconds until another attempt is due; 0 while the budget lasts."""
        with self._lock:
            if len(self._failures) < self._failures_max:
                return 0.0
            return max(0.0, self._failures[0] + self._window_s - self._clock())
