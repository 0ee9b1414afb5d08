"""What a fetch tells its caller while it works: typed, frozen events and cancellation.

Invariants: every retry, restart from zero, wait for a lock and skipped step is an event with a
note. Byte counts are those on disk, not those requested. Nothing here prints or logs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeAlias

from edgewise.errors import EdgewiseError, ExitCode

__all__ = ["Cancelled", "FetchCancelledError", "Phase", "Progress", "ProgressCallback", "Reporter"]

_INTERVAL_S = 0.1  # specified: a person reads no faster, a log should hold no more


class Phase(StrEnum):
    """What a fetch is doing; ``DONE`` closes one file, and the last one closes the fetch."""

    RESOLVING = "resolving"
    WAITING = "waiting"
    RESUMING = "resuming"
    RESTARTING = "restarting"
    DOWNLOADING = "downloading"
    RETRYING = "retrying"
    VERIFYING = "verifying"
    EXTRACTING = "extracting"
    COPYING = "copying"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One event of a fetch.

    Attributes:
        phase: What is happening.
        done_bytes: Bytes of the current file that are on disk (or read, while verifying).
        total_bytes: Size of the current file, ``None`` when nobody has said.
        rate_bytes_s: Mean rate since the phase began, ``None`` when too short to tell.
        note: Why something other than the plain path is taken; empty on the plain path.
    """

    phase: Phase
    done_bytes: int = 0
    total_bytes: int | None = None
    rate_bytes_s: float | None = None
    note: str = ""


ProgressCallback: TypeAlias = Callable[[Progress], None]
Cancelled: TypeAlias = Callable[[], bool]


class FetchCancelledError(EdgewiseError):
    """The caller's ``cancelled`` said yes; what was already fetched stays for a later resume."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERRUPT


class Reporter:
    """Sends events to one callback, thins out the repeated ones and watches for cancellation."""

    def __init__(
        self,
        progress: ProgressCallback | None = None,
        cancelled: Cancelled | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.progress = progress
        self.cancelled = cancelled
        self._clock = clock
        self._phase: Phase | None = None
        self._phase_start_s = 0.0
        self._phase_start_bytes = 0
        self._last_s = 0.0

    def check(self) -> None:
        """Return when the work may go on.

        Raises:
            FetchCancelledError: the caller asked to stop.
        """
        if self.cancelled is not None and self.cancelled():
            raise FetchCancelledError(
                "fetch-cancelled",
                "the fetch was cancelled",
                hint="run the same command again: it resumes where it stopped",
                retryable=True,
            )

    def event(
        self, phase: Phase, note: str = "", *, done_bytes: int = 0, total_bytes: int | None = None
    ) -> None:
        """Send one event, always."""
        self._phase = None
        self._send(Progress(phase=phase, done_bytes=done_bytes, total_bytes=total_bytes, note=note))

    def advance(self, phase: Phase, done_bytes: int, total_bytes: int | None) -> None:
        """Send a byte count, at most ten times a second.

        Raises:
            FetchCancelledError: the caller asked to stop.
        """
        self.check()
        now_s = self._clock()
        if phase is not self._phase:
            self._phase, self._phase_start_s, self._phase_start_bytes = phase, now_s, done_bytes
        elif now_s - self._last_s < _INTERVAL_S and done_bytes != total_bytes:
            return
        self._last_s = now_s
        elapsed_s = now_s - self._phase_start_s
        rate = (done_bytes - self._phase_start_bytes) / elapsed_s if elapsed_s > 0 else None
        self._send(
            Progress(phase=phase, done_bytes=done_bytes, total_bytes=total_bytes, rate_bytes_s=rate)
        )

    def _send(self, event: Progress) -> None:
        if self.progress is not None:
            self.progress(event)
