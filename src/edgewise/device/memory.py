"""Main memory: what there is, what limits this process, and how pages are given out.

Invariants: memory in use by others counts; a control-group or process limit counts; what is
not known never enters the budget as zero or as infinity.
"""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

from edgewise.core.quantity import Declared, Estimated, Known, Quantity, Unknown
from edgewise.device.cgroup import memory_headroom, memory_limit
from edgewise.device.foreign import psutil_module
from edgewise.device.sections import MemoryInfo, fact
from edgewise.device.system import libc_version
from edgewise.device.tree import key_values, read_int, read_text

__all__ = ["available_now", "hugetlb_tunable", "process_limit", "read_memory", "smallest"]

_THP = "sys/kernel/mm/transparent_hugepage"
_HUGETLB_SINCE = (2, 35)  # glibc 2.35 release notes: glibc.malloc.hugetlb


def read_memory(root: Path = Path("/"), *, system: str = sys.platform) -> MemoryInfo:
    """Return the memory section.

    Args:
        root: Root of the tree that holds ``/proc`` and ``/sys``.
        system: ``sys.platform`` of the machine.
    """
    linux = system.startswith("linux")
    gap = Unknown(reason=f"not read on {system}")
    process = process_limit() if linux else gap
    group, headroom = (memory_limit(root), memory_headroom(root)) if linux else (gap, gap)
    limit = smallest(group, process) or (group if linux else gap)
    if linux:
        table = key_values(read_text(root, "proc/meminfo"), ":")
        total, available, swap, swap_free = (
            _meminfo(table, key) for key in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
        )
    else:
        total, available, swap, swap_free = _psutil(gap)
    budget = smallest(available, headroom, limit, total)
    return MemoryInfo(
        total_bytes=total,
        available_bytes=available,
        limit_bytes=limit,
        headroom_bytes=headroom,
        budget_bytes=Estimated(value=int(budget.number), source=f"least: {budget.source}")
        if budget and not isinstance(available, Unknown)
        else Unknown(reason="available memory is not known"),
        swap_total_bytes=swap,
        swap_free_bytes=swap_free,
        page_bytes=fact(mmap.PAGESIZE, "the C library's page size"),
        huge_page_bytes=_huge_page_bytes(root) if linux else gap,
        transparent_huge_pages=_transparent(root) if linux else gap,
        hugetlb_tunable=hugetlb_tunable(libc_version()),
    )


def available_now(root: Path = Path("/"), *, system: str = sys.platform) -> Quantity:
    """Return the bytes that a new allocation may use now.

    The least of the kernel's available memory and the headroom of the control group.

    Args:
        root: Root of the tree that holds ``/proc`` and ``/sys``.
        system: ``sys.platform`` of the machine.
    """
    if not system.startswith("linux"):
        return _psutil(Unknown(reason=f"not read on {system}"))[1]
    available = _meminfo(key_values(read_text(root, "proc/meminfo"), ":"), "MemAvailable")
    if isinstance(available, Unknown):
        return available
    return smallest(available, memory_headroom(root)) or available


def smallest(*quantities: Quantity) -> Known | None:
    """Return the known quantity with the least number, or ``None`` when none is known.

    Raises:
        InputError: a known quantity holds no number.
    """
    known = [q for q in quantities if not isinstance(q, Unknown)]
    return min(known, key=lambda q: q.number) if known else None


def process_limit() -> Quantity:
    """Return this process's address-space limit in bytes, or why there is none."""
    try:
        import resource  # noqa: PLC0415 - absent on Windows
    except ImportError:
        return Unknown(reason="the platform has no process limits")
    soft = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    finite = [value for value in soft if value != resource.RLIM_INFINITY]
    if not finite:
        return Unknown(reason="no limit set")
    return fact(min(finite), "getrlimit RLIMIT_AS, RLIMIT_DATA (soft)")


def hugetlb_tunable(libc: tuple[str, str] | None) -> Quantity:
    """Return whether the C library has ``glibc.malloc.hugetlb``.

    Args:
        libc: Name and version as :func:`libc_version` gives them.
    """
    if libc is None:
        return Unknown(reason="the C library is not known")
    name, version = libc
    if name != "glibc":
        return Declared(value=False, source=f"a tunable of glibc; this is {name}")
    parts = tuple(int(p) for p in version.split(".")[:2] if p.isdigit())
    if len(parts) < 2:
        return Unknown(reason=f"the glibc version {version!r} is not understood")
    return Declared(value=parts >= _HUGETLB_SINCE, source=f"glibc {version}; since 2.35")


def _meminfo(table: dict[str, str], key: str) -> Quantity:
    number, _, unit = table.get(key, "").partition(" ")
    if not number.isdigit() or unit not in ("kB", ""):
        return Unknown(reason=f"/proc/meminfo has no {key}")
    return fact(int(number) * (1024 if unit else 1), f"/proc/meminfo {key}")


def _psutil(gap: Unknown) -> tuple[Quantity, Quantity, Quantity, Quantity]:
    module = psutil_module()
    if module is None:
        return gap, gap, gap, gap
    try:
        memory, swap = module.virtual_memory(), module.swap_memory()
    except (OSError, RuntimeError, module.Error):
        return gap, gap, gap, gap
    return (
        fact(int(memory.total), "psutil virtual_memory"),
        fact(int(memory.available), "psutil virtual_memory"),
        fact(int(swap.total), "psutil swap_memory"),
        fact(int(swap.free), "psutil swap_memory"),
    )


def _huge_page_bytes(root: Path) -> Quantity:
    size = read_int(root, f"{_THP}/hpage_pmd_size")
    if not size:
        return Unknown(reason="the kernel has no transparent huge pages")
    return fact(size, f"/{_THP}/hpage_pmd_size")


def _transparent(root: Path) -> Quantity:
    text = read_text(root, f"{_THP}/enabled")
    if text is None:
        return Unknown(reason="the kernel has no transparent huge pages")
    _, _, rest = text.partition("[")
    mode, bracket, _ = rest.partition("]")
    if not bracket:
        return Unknown(reason=f"/{_THP}/enabled marks no mode: {text[:40]!r}")
    return fact(mode, f"/{_THP}/enabled")
