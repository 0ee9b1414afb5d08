"""The places where memory can run out: the machine, and each limited control group around us.

Invariants: what is *available* leaves the page cache in use alone, as admission does; the *room*
before a kill is all that the kernel could still take, cache and swap included. A place that
cannot be read is left out. Files are read below a root, so tests bring their own tree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from edgewise.device.cgroup import limit_of
from edgewise.device.foreign import psutil_module
from edgewise.device.tree import key_values, read_int, read_text

__all__ = ["Place", "is_limited", "natural", "places_of", "psutil_places"]

# Thresholds specified here.
_TIGHT_SHARE: Final = 10
_TIGHT_MOST_BYTES: Final = 1 << 30
_RESERVE_SHARE: Final = 40
_RESERVE_LEAST_BYTES, _RESERVE_MOST_BYTES = 16 << 20, 256 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Somewhere memory can run out.

    Attributes:
        name: The machine, or a control group's folder.
        capacity_bytes: What there is, or the limit.
        available_bytes: What may be allocated without taking page cache that is in use.
        room_bytes: What may be allocated before the kernel has to kill; ``None`` where it never
            would, since the limit only slows down.
    """

    name: str
    capacity_bytes: int
    available_bytes: int
    room_bytes: int | None

    @property
    def tight_bytes(self) -> int:
        """Return below which availability memory is tight here."""
        return min(self.capacity_bytes // _TIGHT_SHARE, _TIGHT_MOST_BYTES)

    @property
    def reserve_bytes(self) -> int:
        """Return below which room it is critical here."""
        share = min(self.capacity_bytes // _RESERVE_SHARE, _RESERVE_MOST_BYTES)
        return max(share, _RESERVE_LEAST_BYTES)


def places_of(root: Path, limited: Iterable[str]) -> Iterator[Place]:
    """Yield the machine and the limited control groups, as far as they can be read.

    Args:
        root: Root of the tree that holds ``/proc`` and ``/sys``.
        limited: Folders of the groups that have a limit.
    """
    table = key_values(read_text(root, "proc/meminfo"), ":")
    yield from _machine(table)
    swap = _meminfo(table, "SwapFree") or 0
    for folder in limited:
        yield from _v1_place(root, folder, swap)
        yield from _v2_places(root, folder, swap)


def is_limited(root: Path, folder: str) -> bool:
    """Return whether a control group sets a limit of its own."""
    names = ("memory.limit_in_bytes", "memory.max", "memory.high")
    return any(limit_of(root, f"{folder}/{name}") is not None for name in names)


def psutil_places() -> Iterator[Place]:
    """Yield the machine as psutil sees it, where there is no ``/proc``."""
    module = psutil_module()
    if module is None:
        return
    try:
        memory = module.virtual_memory()
    except (OSError, RuntimeError, module.Error):
        return
    total, available = int(memory.total), int(memory.available)
    yield Place(
        name="the machine",
        capacity_bytes=total,
        available_bytes=available,
        room_bytes=available,
    )


def _machine(table: dict[str, str]) -> Iterator[Place]:
    total, available = _meminfo(table, "MemTotal"), _meminfo(table, "MemAvailable")
    free = _meminfo(table, "MemFree")
    if not total or available is None:
        return
    room = None
    if free is not None:
        keys = ("Active(file)", "Inactive(file)", "SReclaimable", "SwapFree")
        room = free + sum(_meminfo(table, key) or 0 for key in keys)
    yield Place(
        name="the machine", capacity_bytes=total, available_bytes=available, room_bytes=room
    )


def _v1_place(root: Path, folder: str, swap_free: int) -> Iterator[Place]:
    limit = limit_of(root, f"{folder}/memory.limit_in_bytes")
    used = read_int(root, f"{folder}/memory.usage_in_bytes")
    if not limit or used is None:
        return
    both = limit_of(root, f"{folder}/memory.memsw.limit_in_bytes")
    both_used = read_int(root, f"{folder}/memory.memsw.usage_in_bytes")
    if both is not None and both_used is not None:
        swap_free = min(swap_free, max(0, both - both_used - max(0, limit - used)))
    yield _place(root, folder, limit, used, swap_free, prefix="total_")


def _v2_places(root: Path, folder: str, swap_free: int) -> Iterator[Place]:
    used = read_int(root, f"{folder}/memory.current")
    if used is None:
        return
    limit, high = (limit_of(root, f"{folder}/memory.{name}") for name in ("max", "high"))
    if limit:
        most, swapped = (
            limit_of(root, f"{folder}/memory.swap.max"),
            read_int(root, f"{folder}/memory.swap.current"),
        )
        if most is not None and swapped is not None:
            swap_free = min(swap_free, max(0, most - swapped))
        yield _place(root, folder, limit, used, swap_free)
    if high:
        yield dataclasses.replace(_place(root, folder, high, used, 0), room_bytes=None)


def _place(
    root: Path, folder: str, limit: int, used: int, swap_free: int, *, prefix: str = ""
) -> Place:
    stat = key_values(read_text(root, f"{folder}/memory.stat"))
    inactive, active = (
        natural(stat.get(f"{prefix}{name}_file")) or 0 for name in ("inactive", "active")
    )
    return Place(
        name=f"control group {folder}",
        capacity_bytes=limit,
        available_bytes=max(0, limit - max(0, used - inactive)),
        room_bytes=max(0, limit - max(0, used - inactive - active)) + swap_free,
    )


def _meminfo(table: dict[str, str], key: str) -> int | None:
    number, _, unit = table.get(key, "").partition(" ")
    count = natural(number)
    return None if count is None or unit not in ("kB", "") else count * (1024 if unit else 1)


def natural(text: str | None) -> int | None:
    """Return the number that a text spells in digits, or ``None``."""
    return int(text) if text is not None and text.isdecimal() else None
