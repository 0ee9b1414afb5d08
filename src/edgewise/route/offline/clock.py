"""The queue's clock: wall time that never goes back, and the time since the machine started.

Expiry must hold although a clock is set back, and a lease must end although it is set forward or
back. So the queue keeps the latest time it has seen, and within one run of the machine lets it
go on by the clock that nobody can set.
"""

from __future__ import annotations

import functools
import math
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from edgewise.errors import IntegrityError

__all__ = ["SKEW_TOLERATED_S", "Now", "QueueClock"]

SKEW_TOLERATED_S: Final = 300.0


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """One reading.

    Attributes:
        time_s: Seconds since 1970, never less than any reading before it.
        boot_s: Seconds since the machine started, its sleep included where it can tell.
        boot_id: Names that run of the machine; empty where it has no name here.
        skew_s: How far the machine's own clock is behind ``time_s``.
    """

    time_s: float
    boot_s: float
    boot_id: str
    skew_s: float = 0.0

    @property
    def skewed(self) -> bool:
        """Return whether the machine's clock was set back, or the queue's saw a false future."""
        return self.skew_s > SKEW_TOLERATED_S


class QueueClock:
    """Reads the clocks; the floor is kept in the database.

    Args:
        wall: Seconds since 1970.
        boot: Seconds since the machine started.
        boot_id: Name of this run of the machine; ``None`` asks the system.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        boot: Callable[[], float] | None = None,
        boot_id: str | None = None,
    ) -> None:
        self._wall = wall
        self._boot = boot or _boot_clock()
        self._boot_id = _system_boot_id() if boot_id is None else boot_id

    def look(self, connection: sqlite3.Connection) -> Now:
        """Return the time, from the floor and the clocks, without moving the floor.

        Raises:
            IntegrityError: the stored floor is no time (``database-damaged``).
        """
        wall, boot = self._wall(), self._boot()
        row = connection.execute("SELECT time_s, boot_s, boot_id FROM queue_clock").fetchone()
        floor = wall if math.isfinite(wall) else 0.0
        if row is not None:
            _require_times(row)
            same_run = self._boot_id != "" and row["boot_id"] == self._boot_id
            floor = row["time_s"] + (max(0.0, boot - row["boot_s"]) if same_run else 0.0)
        now = max(wall, floor) if math.isfinite(wall) else floor
        skew = max(0.0, now - wall) if math.isfinite(wall) else now
        return Now(time_s=now, boot_s=boot, boot_id=self._boot_id, skew_s=skew)

    def advance(self, connection: sqlite3.Connection) -> Now:
        """Return the time and make it the floor; the transaction must be one that writes."""
        now = self.look(connection)
        connection.execute(
            "INSERT OR REPLACE INTO queue_clock(id, time_s, boot_s, boot_id) VALUES(1, ?, ?, ?)",
            (now.time_s, now.boot_s, now.boot_id),
        )
        return now


def _require_times(row: sqlite3.Row) -> None:
    if not all(isinstance(row[name], float) for name in ("time_s", "boot_s")):
        raise IntegrityError(
            "database-damaged",
            "the time that the queue has seen cannot be read",
            context={"table": "queue_clock"},
            hint="put a backup of the state database in its place, or move it away",
        )


def _boot_clock() -> Callable[[], float]:
    """Return the clock that goes on while the machine sleeps, or the best there is."""
    which = getattr(time, "CLOCK_BOOTTIME", None)
    if which is None:
        return time.monotonic
    return functools.partial(time.clock_gettime, which)


@functools.cache
def _system_boot_id() -> str:
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
    return text.strip()
