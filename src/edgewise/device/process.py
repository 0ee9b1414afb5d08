"""Memory of one process: how much is resident, giving back what is free, and no dump of it."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from edgewise.core.quantity import Measured, Quantity, Unknown

__all__ = [
    "anonymous_bytes",
    "give_back_free_memory",
    "peak_resident_bytes",
    "refuse_core_dumps",
    "resident_bytes",
]


def resident_bytes(pid: int | None = None, *, root: Path = Path("/")) -> Quantity:
    """Return the resident set of a process (this one by default), in bytes."""
    return _status(pid, "VmRSS", root)


def anonymous_bytes(pid: int | None = None, *, root: Path = Path("/")) -> Quantity:
    """Return what of a process's resident set is its own: not files, not shared, in bytes."""
    if not (root / "proc").exists():
        return Unknown(reason="this system does not tell it apart from mapped files")
    return _status(pid, "RssAnon", root)


def peak_resident_bytes(pid: int | None = None, *, root: Path = Path("/")) -> Quantity:
    """Return the highest resident set a process has had, in bytes."""
    return _status(pid, "VmHWM", root)


def give_back_free_memory() -> bool:
    """Have the C library hand free memory back to the system; return whether it can."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        trim = ctypes.CDLL(None).malloc_trim  # glibc only
    except (OSError, AttributeError):
        return False
    trim.argtypes, trim.restype = (ctypes.c_size_t,), ctypes.c_int
    trim(0)
    return True


def refuse_core_dumps() -> bool:
    """Keep this process's memory, and with it prompts, out of crash dumps; return whether it is.

    The limits of this process and of those that it starts are lowered for good. core(5): a limit
    of 0 holds a file back, but not what Linux pipes to a crash handler. A limit of one byte holds
    both back (``fs/coredump.c``), and where it may not be set, 0 is.
    """
    try:
        import resource  # noqa: PLC0415 - not on every platform
    except ImportError:
        return False
    for limit in (1, 0) if sys.platform.startswith("linux") else (0,):
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
        except (OSError, ValueError):
            continue
        return True
    return False


def _status(pid: int | None, field: str, root: Path) -> Quantity:
    name = "self" if pid is None else str(pid)
    try:
        lines = (root / "proc" / name / "status").read_text().splitlines()
    except OSError:
        return _other_platform(pid, field)
    for line in lines:
        key, _, value = line.partition(":")
        if key == field:
            return Measured(value=int(value.split()[0]) * 1024, source=f"/proc/PID/status {field}")
    return Unknown(reason=f"/proc/PID/status has no {field}")


def _other_platform(pid: int | None, field: str) -> Quantity:
    import psutil  # noqa: PLC0415 - only where there is no /proc

    try:
        info = psutil.Process(pid).memory_info()
    except psutil.Error as error:
        return Unknown(reason=f"the process cannot be read: {type(error).__name__}")
    if field == "VmRSS":
        return Measured(value=int(info.rss), source="psutil rss")
    peak = getattr(info, "peak_wset", None)
    if peak is None:
        return Unknown(reason="this system reports no peak for another process")
    return Measured(value=int(peak), source="psutil peak_wset")
