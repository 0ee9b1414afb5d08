"""Units for people: bytes are ints everywhere, and MiB only when shown."""

from __future__ import annotations

__all__ = ["mib"]

_KIB, _MIB = 1 << 10, 1 << 20


def mib(size_bytes: float) -> str:
    """Return bytes in MiB, or in KiB where that would round to nothing."""
    if 0 < abs(size_bytes) < _MIB:
        return f"{size_bytes / _KIB:,.1f} KiB"
    return f"{size_bytes / _MIB:,.1f} MiB"
