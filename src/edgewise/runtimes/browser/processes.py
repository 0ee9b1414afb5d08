"""The processes of a driven browser: their memory, and their end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil

from edgewise.core.quantity import Measured, Quantity, Unknown

__all__ = ["BrowserProcesses"]

_GRACE_S = 3.0


class BrowserProcesses:
    """The helper process that Playwright starts, with everything below it.

    Only processes that descend from this one, and that were not there before, are ever touched.
    """

    def __init__(self) -> None:
        """Remember which children this process has before the browser is started."""
        self._before = {child.pid for child in _children(psutil.Process())}
        self._known: dict[int, psutil.Process] = {}
        self._peak = 0

    def note(self) -> None:
        """Remember the browser's processes that are there now."""
        for child in _children(psutil.Process()):
            if child.pid not in self._before:
                self._known.setdefault(child.pid, child)

    def resident_bytes(self) -> Quantity:
        """Return the memory of all of them; shared pages are counted once where that is known."""
        self.note()
        total, sources = 0, set()
        for process in self._known.values():
            with contextlib.suppress(psutil.Error):
                value, source = _memory(process)
                total += value
                sources.add(source)
        if not total:
            return Unknown(reason="no process of the browser is there")
        self._peak = max(self._peak, total)
        what = " and ".join(sorted(sources))
        return Measured(value=total, source=f"{what} of the browser's processes")

    def peak_resident_bytes(self) -> Quantity:
        """Return the highest value that :meth:`resident_bytes` has seen."""
        now = self.resident_bytes()
        if not self._peak:
            return now
        return Measured(value=self._peak, source="highest of the samples taken of the browser")

    def end(self) -> None:
        """End what is still there: politely, then for certain."""
        left = [process for process in self._known.values() if process.is_running()]
        for act in ("terminate", "kill"):
            for process in left:
                with contextlib.suppress(psutil.Error):
                    getattr(process, act)()
            _, left = psutil.wait_procs(left, timeout=_GRACE_S)
            if not left:
                return


def _children(process: psutil.Process) -> Iterable[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return ()


def _memory(process: psutil.Process) -> tuple[int, str]:
    try:
        full = process.memory_full_info()
    except psutil.AccessDenied:
        return int(process.memory_info().rss), "resident set"
    proportional = getattr(full, "pss", None)
    if proportional is not None:
        return int(proportional), "proportional set"
    return int(full.uss), "unique set"
