"""How often an engine may fail before requests are turned away instead of tried."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable

__all__ = ["FailureBudget"]


class FailureBudget:
    """Counts failures within a sliding window of time."""

    def __init__(
        self, failures_max: int, window_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures_max = failures_max
        self._window_s = window_s
        self._clock = clock
        self._failures: collections.deque[float] = collections.deque(maxlen=failures_max)
        self._lock = threading.Lock()

    def failed(self) -> None:
        """Count a failure."""
        with self._lock:
            self._failures.append(self._clock())

    def left_s(self) -> float:
        """Return the seconds until another attempt is due; 0 while the budget lasts."""
        with self._lock:
            if len(self._failures) < self._failures_max:
                return 0.0
            return max(0.0, self._failures[0] + self._window_s - self._clock())
