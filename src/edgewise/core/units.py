"""Units for people: bytes are ints everywhere, and MiB only when shown."""

from __future__ import annotations

__all__ = ["binary", "mib"]

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


def mib(size_bytes: float) -> str:
    """Return bytes in MiB, or in KiB where that would round to nothing."""
    if 0 < abs(size_bytes) < _MIB:
        return f"{size_bytes / _KIB:,.1f} KiB"
    return f"{size_bytes / _MIB:,.1f} MiB"


def binary(size_bytes: float) -> str:
    """Return bytes in the largest of GiB, MiB and KiB that there is one of, else in bytes."""
    for unit, name in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if abs(size_bytes) >= unit:
            return f"{size_bytes / unit:,.{2 if unit == _GIB else 1}f} {name}"
    return f"{size_bytes:.0f} bytes"
