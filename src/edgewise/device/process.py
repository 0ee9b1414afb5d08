"""Resident memory of one process, now and at its peak."""

from __future__ import annotations

from pathlib import Path

from edgewise.core.quantity import Measured, Quantity, Unknown

__all__ = ["peak_resident_bytes", "resident_bytes"]


def resident_bytes(pid: int | None = None, *, root: Path = Path("/")) -> Quantity:
    """Return the resident set of a process (this one by default), in bytes."""
    return _status(pid, "VmRSS", root)


def peak_resident_bytes(pid: int | None = None, *, root: Path = Path("/")) -> Quantity:
    """Return the highest resident set a process has had, in bytes."""
    return _status(pid, "VmHWM", root)


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
