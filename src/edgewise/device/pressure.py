"""How short of memory this process is, cheap enough to ask many times a second.

Memory is short in *places*: the machine, and each control group around this process that has a
limit. Each is judged by its own capacity, and the worst one counts.

=========  ==============================================================================
level      when, in any place
=========  ==============================================================================
tight      less is available than a tenth of the capacity (at most 1 GiB); or tasks waited
           for memory in 10 % of the last 10 s; or a limit was hit while less than twice
           that was available
critical   the kernel could find less than the reserve, which is a fortieth of the capacity
           (16 MiB to 256 MiB), before it had to kill; or every task waited for memory in
           40 % of the last 10 s; or the kernel ran out while memory was tight
=========  ==============================================================================

Invariants: what is *available* leaves the page cache in use alone, as admission does; the *room*
before a kill is all that the kernel could still take, cache and swap included. A file that is
absent or garbled says nothing; when nothing can be read, that is said. Files are read below a
root, so tests bring their own tree. Nothing is written, and nobody waits here.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final

from edgewise.device.cgroup import Group, find_group, pressure_ratio
from edgewise.device.memory_places import Place, is_limited, natural, places_of, psutil_places
from edgewise.device.tree import key_values, read_int, read_text

__all__ = ["PressureGauge", "PressureLevel", "PressureReader", "Reading"]

# Thresholds specified here.
_SOME_RATIO: Final = 0.10
_FULL_RATIO: Final = 0.40
# A level is left only when its bounds are kept with this much to spare.
_EASE: Final = 1.25

# The next reading comes before an allocator at this speed could have eaten what is left above the
# reserve: about what one thread can touch of fresh pages.
_FASTEST_BYTES_S: Final = 1 << 30
_INTERVAL_LEAST_S, _INTERVAL_MOST_S = 0.02, 0.5
# A process can be moved to another group while it runs, and a limit can be set.
_GROUP_AGE_MAX_S: Final = 5.0

# Files of a group, keys that tell of a limit that was hit, and of memory that ran out.
_COUNTERS: Final = (
    ("memory.events", ("high", "max"), ("oom", "oom_kill")),
    ("memory.oom_control", (), ("oom_kill", "under_oom")),
)
_PRESSURE = "proc/pressure/memory"


class PressureLevel(IntEnum):
    """How short memory is."""

    CALM = 0
    TIGHT = 1
    CRITICAL = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was read at one moment.

    Attributes:
        level: How short memory is.
        easing: The same with something to spare: a level is left when this one is lower.
        reason: Why, in words; for a calm reading, what it rests on.
        available_bytes: The least of all places; ``None`` when not known.
        room_bytes: The least of all places; ``None`` when not known.
        next_s: When to read again.
        watched: Whether anything could be read at all.
    """

    level: PressureLevel
    easing: PressureLevel
    reason: str
    available_bytes: int | None
    room_bytes: int | None
    next_s: float
    watched: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Stalls:
    """Shares of the last 10 s in which tasks waited for memory, and the file that says so."""

    some: float = 0.0
    full: float = 0.0
    name: str = ""


class PressureReader:
    """Reads how short memory is; remembers counters, since only their rise says anything."""

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        system: str = sys.platform,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take where to read.

        Args:
            root: Root of the tree that holds ``/proc`` and ``/sys``.
            system: ``sys.platform`` of the machine.
            clock: Seconds, for the age of what is remembered.
        """
        self._root = root
        self._linux = system.startswith("linux")
        self._clock = clock
        self._group: Group | None = None
        self._group_read_s: float | None = None
        self._limited: tuple[str, ...] = ()
        self._counters: dict[str, int] = {}

    def read(self) -> Reading:
        """Return how short memory is now."""
        if not self._linux:
            places, stalls = list(psutil_places()), _Stalls()
            hit = out = False
        else:
            group = self._current_group()
            places = list(places_of(self._root, self._limited))
            stalls = self._stalls(group)
            hit, out = self._events()
        if not places and not stalls.name:
            return _unwatched()
        level, reason = _judge(places, stalls, hit=hit, out=out)
        easing, _ = _judge(places, stalls, ease=_EASE)
        return Reading(
            level=level,
            easing=max(easing, level),
            reason=reason,
            available_bytes=min((p.available_bytes for p in places), default=None),
            room_bytes=min(
                (p.room_bytes for p in places if p.room_bytes is not None), default=None
            ),
            next_s=_next_s(places),
        )

    def pressure_files(self) -> list[Path]:
        """Return the pressure-stall files that concern this process."""
        group = self._current_group() if self._linux else None
        files = [self._root / _PRESSURE]
        if group is not None and group.version == 2:
            files.append(self._root / _own(group).lstrip("/") / "memory.pressure")
        return [path for path in files if path.is_file()]

    def _current_group(self) -> Group | None:
        now = self._clock()
        if self._group_read_s is None or now - self._group_read_s >= _GROUP_AGE_MAX_S:
            self._group, self._group_read_s = find_group(self._root, "memory"), now
            levels = self._group.levels() if self._group is not None else ()
            self._limited = tuple(level for level in levels if is_limited(self._root, level))
        return self._group

    def _stalls(self, group: Group | None) -> _Stalls:
        """Return the stalls of our own group, or of the machine where a group has no file."""
        names = [_PRESSURE]
        if group is not None and group.version == 2:
            names.insert(0, f"{_own(group)}/memory.pressure")
        for name in names:
            text = read_text(self._root, name)
            some, full = pressure_ratio(text, "some"), pressure_ratio(text, "full")
            if some is not None or full is not None:
                return _Stalls(some=some or 0.0, full=full or 0.0, name="/" + name.lstrip("/"))
        return _Stalls()

    def _events(self) -> tuple[bool, bool]:
        """Return whether a limit was hit, and whether memory ran out, since the last reading."""
        found: dict[str, int] = {}
        hit = out = False
        for folder in self._limited:
            for name, count, fatal in _counters(self._root, folder):
                found[name] = count
                rose = count > self._counters.get(name, count)
                hit, out = hit or (rose and not fatal), out or (rose and fatal)
        self._counters = found
        return hit, out


def _judge(
    places: list[Place], stalls: _Stalls, *, hit: bool = False, out: bool = False, ease: float = 1.0
) -> tuple[PressureLevel, str]:
    """Return the level and why; with ``ease`` above 1, whether it is kept with some to spare."""
    for place in places:
        if place.room_bytes is not None and place.room_bytes < place.reserve_bytes * ease:
            return PressureLevel.CRITICAL, (
                f"{place.name}: {place.room_bytes} bytes are left before the kernel has to kill; "
                f"the reserve is {place.reserve_bytes}"
            )
    if stalls.full * ease >= _FULL_RATIO:
        return PressureLevel.CRITICAL, f"{stalls.name}: full avg10 {stalls.full:.0%}"
    if out and (not places or any(_less_than(place, 1) for place in places)):
        return PressureLevel.CRITICAL, "the kernel ran out of memory for our control group"
    for place in places:
        if _less_than(place, ease):
            return PressureLevel.TIGHT, (
                f"{place.name}: {place.available_bytes} bytes are available; "
                f"tight under {place.tight_bytes}"
            )
    if stalls.some * ease >= _SOME_RATIO:
        return PressureLevel.TIGHT, f"{stalls.name}: some avg10 {stalls.some:.0%}"
    if hit and (not places or any(_less_than(place, 2) for place in places)):
        return PressureLevel.TIGHT, "a memory limit of our control group was hit"
    return PressureLevel.CALM, ", ".join([p.name for p in places] or [stalls.name])


def _less_than(place: Place, times: float) -> bool:
    return place.available_bytes < place.tight_bytes * times


def _next_s(places: list[Place]) -> float:
    above = [p.room_bytes - p.reserve_bytes for p in places if p.room_bytes is not None]
    if not above:
        return _INTERVAL_MOST_S
    return min(_INTERVAL_MOST_S, max(_INTERVAL_LEAST_S, min(above) / _FASTEST_BYTES_S))


def _counters(root: Path, folder: str) -> Iterator[tuple[str, int, bool]]:
    """Yield counters of a group: name, count, and whether it tells of memory that ran out."""
    for file, limits, fatal in _COUNTERS:
        table = key_values(read_text(root, f"{folder}/{file}"))
        for key in (*limits, *fatal):
            count = natural(table.get(key))
            if count is not None:
                yield f"{folder}/{file} {key}", count, key in fatal
    failed = read_int(root, f"{folder}/memory.failcnt")
    if failed is not None:
        yield f"{folder}/memory.failcnt", failed, False


def _unwatched() -> Reading:
    return Reading(
        level=PressureLevel.CALM,
        easing=PressureLevel.CALM,
        reason="neither memory nor its pressure can be read here",
        available_bytes=None,
        room_bytes=None,
        next_s=_INTERVAL_MOST_S,
        watched=False,
    )


def _own(group: Group) -> str:
    return next(group.levels())


class PressureGauge:
    """The level that readings come to: it rises at once and falls late, so it does not flap."""

    def __init__(self, hold_s: float = 5.0) -> None:
        """Take how long a lower level has to be read, with something to spare, to be believed."""
        self.level = PressureLevel.CALM
        self._hold_s = hold_s
        self._easier_since_s: float | None = None

    def take(self, reading: Reading, now_s: float) -> PressureLevel:
        """Return the level after another reading."""
        self.level = max(self.level, reading.level)
        if reading.easing >= self.level:
            self._easier_since_s = None
        elif self._easier_since_s is None:
            self._easier_since_s = now_s
        elif now_s - self._easier_since_s >= self._hold_s:
            self.level, self._easier_since_s = reading.easing, None
        return self.level
