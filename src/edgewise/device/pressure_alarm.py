"""Waiting for memory to run short: until the time is up, or the kernel says that tasks stall.

The kernel is asked by a trigger on each pressure-stall file (``/proc/pressure/memory``, and
``memory.pressure`` of a control group). Where it takes none, only the time counts.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["PressureAlarm"]

# 100 ms of waiting within 2 s. Kernel, Documentation/accounting/psi.rst: processes without
# CAP_SYS_RESOURCE may only ask for windows that are multiples of 2 s.
_TRIGGER: Final = b"some 100000 2000000\0"


class PressureAlarm:
    """Something to wait on. One thread waits, any may wake it."""

    def __init__(self, files: Iterable[Path] = ()) -> None:
        """Ask the kernel to watch pressure-stall files; those that it refuses are left out."""
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        self._triggers: list[int] = []
        if hasattr(select, "poll"):  # nowhere on Windows
            self._poll = select.poll()
            self._pipe = os.pipe()
            self._poll.register(self._pipe[0], select.POLLIN)
            self._triggers = [fd for path in files if (fd := _trigger(path)) is not None]
            for fd in self._triggers:
                self._poll.register(fd, select.POLLPRI)

    @property
    def triggers(self) -> int:
        """Return how many files the kernel watches for us."""
        return len(self._triggers)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the time is up, the kernel reports a stall, or somebody wakes us.

        Returns whether it goes on: ``False`` once :meth:`wake` was called.
        """
        if self._pipe is None:
            return not self._woken.wait(timeout_s)
        for fd, events in self._poll.poll(max(0.0, timeout_s) * 1e3):
            if fd in self._triggers and events & select.POLLERR:  # its control group is gone
                self._poll.unregister(fd)
                self._triggers.remove(fd)
                os.close(fd)
        return not self._woken.is_set()

    def wake(self) -> None:
        """Have this and every later ``wait`` return at once."""
        with self._lock:
            again = self._woken.is_set()
            self._woken.set()  # before the pipe: whoever that wakes looks here
            if self._pipe is not None and not again:
                os.write(self._pipe[1], b"!")

    def close(self) -> None:
        """Let go of the kernel's triggers; the thread that waits calls it, when it is done."""
        with self._lock:
            self._woken.set()
            for fd in (*(self._pipe or ()), *self._triggers):
                os.close(fd)
            self._pipe = None
            self._triggers.clear()


def _trigger(path: Path) -> int | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.write(fd, _TRIGGER)
    except OSError:
        os.close(fd)
        return None
    return fd
