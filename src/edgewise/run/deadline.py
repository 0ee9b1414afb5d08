"""A deadline that cancels the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from edgewise.core.outcome import FinishReason

__all__ = ["Deadline"]


class Deadline:
    """Calls ``cancel`` once the time is up, for the time of a ``with`` block."""

    def __init__(self, seconds: float | None, cancel: Callable[[], None]) -> None:
        """Take the time from now in seconds, ``None`` for no limit."""
        self._passed = False
        self._cancel = cancel
        self._timer = None if seconds is None else threading.Timer(seconds, self._pass)

    @property
    def reason(self) -> FinishReason:
        """Return why an answer that was cancelled ended."""
        return FinishReason.DEADLINE if self._passed else FinishReason.CANCELLED

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _pass(self) -> None:
        self._passed = True
        self._cancel()
