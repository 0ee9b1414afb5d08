"""Handing the model's memory back when nobody has asked for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from edgewise.core.quantity import Unknown
from edgewise.core.release import Released
from edgewise.core.units import mib
from edgewise.errors import EdgewiseError

__all__ = ["IdleRelease", "Releasable"]

_BUDGET_S: Final = 10.0


class Releasable(Protocol):
    """What has memory to hand back; :class:`edgewise.run.session.Session` does."""

    @property
    def resident(self) -> bool:
        """Return whether the model is in memory."""
        ...

    def release(self, *, budget_s: float = ...) -> Released:
        """Hand the model's memory back."""
        ...


class IdleRelease:
    """Knows how long the engine has rested, over all lanes.

    Attributes:
        after_s: How long it may rest before its memory is handed back; ``None`` for ever.
    """

    def __init__(
        self,
        after_s: float | None,
        *,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the time, and where what was done is said."""
        self.after_s = after_s
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._busy = 0
        self._rests_since_s = clock()

    def began(self) -> None:
        """A lane took a request."""
        with self._lock:
            self._busy += 1

    def ended(self) -> None:
        """A lane is done with it."""
        with self._lock:
            self._busy -= 1
            self._rests_since_s = self._clock()

    def wait_s(self, session: Releasable) -> float | None:
        """Return how long a lane may wait for a request before it asks again; ``None`` for ever."""
        if self.after_s is None or not session.resident:
            return None
        with self._lock:
            if self._busy:
                return self.after_s
            return max(0.0, self._rests_since_s + self.after_s - self._clock())

    def release(self, session: Releasable) -> None:
        """Hand the memory back, if the time is up; called by a lane that waited for nothing."""
        if self.wait_s(session) != 0.0:
            return
        try:
            released = session.release(budget_s=_BUDGET_S)
        except EdgewiseError as error:  # another lane has just begun
            self._log(f"the model was not handed back: {error.code}")
            self._begin_anew()
            return
        size = released.resident_bytes
        held = "its memory" if isinstance(size, Unknown) else mib(size.number)
        self._log(
            f"nobody asked for {self.after_s:g} s: {held} handed back in {released.ms:.0f} ms; "
            f"state kept: {f'{released.kept_tokens} tokens' if released.state_kept else 'no'}"
        )

    def _begin_anew(self) -> None:
        with self._lock:
            self._rests_since_s = self._clock()
