"""The thread that watches memory while a model's process lives.

It costs one reading, a few small files, every half second, and up to fifty a second while little
is left; the kernel wakes it earlier where it can.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from edgewise.device.pressure import PressureGauge, PressureLevel, PressureReader
from edgewise.device.pressure_alarm import PressureAlarm

if TYPE_CHECKING:
    from edgewise.run.memory_guard import MemoryGuard
    from edgewise.runtimes.worker import WorkerProcess

__all__ = ["MemoryWatch"]

_STOP_TIMEOUT_S: Final = 3.0
_SHRINK_TIMEOUT_S: Final = 2.0
# When every millisecond counts, a worker that does not answer is not waited for.
_LAST_SHRINK_TIMEOUT_S: Final = 0.2
_END: Final = -math.inf


class MemoryWatch:
    """Reads memory for one process, and has its guard react."""

    def __init__(
        self,
        guard: MemoryGuard,
        worker: WorkerProcess,
        reader: PressureReader,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take who reacts, the process, and what reads; nothing starts yet."""
        self._guard = guard
        self._worker = worker
        self._reader = reader
        self._clock = clock
        self._gauge = PressureGauge()
        self._alarm = PressureAlarm(reader.pressure_files())
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the thread unless it is the one that calls."""
        self._alarm.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(_STOP_TIMEOUT_S)

    def step(self) -> float:
        """Read once and react; return when to read again, in seconds, negative for never."""
        before = self._gauge.level
        reading = self._reader.read()
        if not reading.watched:
            self._guard.unwatched(reading)
            return _END
        level = self._gauge.take(reading, self._clock())
        if level is PressureLevel.CRITICAL and before is PressureLevel.CALM:
            if self._guard.can_shrink:
                self._guard.shrink(self._worker, reading, _LAST_SHRINK_TIMEOUT_S)
                reading = self._reader.read()
            if reading.level is not PressureLevel.CRITICAL:
                self._gauge.level = PressureLevel.TIGHT
                return reading.next_s
        if level is PressureLevel.CRITICAL:
            self._guard.give_way(self._worker, reading)
            return _END
        if level is PressureLevel.TIGHT and before is PressureLevel.CALM:
            self._guard.shrink(self._worker, reading, _SHRINK_TIMEOUT_S)
        elif level is PressureLevel.CALM and before is not PressureLevel.CALM:
            self._guard.grow(self._worker)
        return reading.next_s

    def _run(self) -> None:
        try:
            while self._worker.alive and (wait_s := self.step()) >= 0:
                if not self._alarm.wait(wait_s):
                    return
        finally:
            self._alarm.close()
