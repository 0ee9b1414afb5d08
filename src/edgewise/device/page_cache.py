"""How much of a file the page cache holds, so that a cold start is not called warm.

Invariant: the kernel answers "all of it" to a process that could not write the file, so that
answer is not taken; it is unknown there.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

from edgewise.core.quantity import Measured, Quantity, Unknown

__all__ = ["page_cache_ratio"]

_RESIDENT = bytes(value & 1 for value in range(256))  # only the lowest bit is defined


def page_cache_ratio(path: Path) -> Quantity:
    """Return the share of the file's pages that are in the page cache, from 0 to 1, or why not.

    Args:
        path: A regular file; it is mapped, not read.
    """
    if not sys.platform.startswith("linux"):
        return Unknown(reason=f"not read on {sys.platform}")
    try:
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if not status.st_size:
                return Unknown(reason="the file is empty")
            # mincore(2): since Linux 5.2 only an owner or a possible writer gets the truth.
            if os.geteuid() not in (0, status.st_uid) and not os.access(path, os.W_OK):
                return Unknown(reason="the kernel tells residency only to the owner or a writer")
            region = mmap.mmap(stream.fileno(), status.st_size, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Unknown(reason=f"the file cannot be mapped: {reason}")
    with region:
        return _resident(region, status.st_size)


def _resident(region: mmap.mmap, size: int) -> Quantity:
    pages = -(-size // mmap.PAGESIZE)
    vector = ctypes.create_string_buffer(pages)
    anchor = ctypes.c_char.from_buffer(region)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        result = libc.mincore(ctypes.addressof(anchor), size, vector)
    except (OSError, AttributeError):
        return Unknown(reason="the C library has no mincore")
    finally:
        del anchor  # the mapping cannot be closed while it is exported
    if result:
        return Unknown(reason=f"mincore failed: {os.strerror(ctypes.get_errno())}")
    resident = vector.raw.translate(_RESIDENT).count(1)
    return Measured(value=resident / pages, source=f"mincore over {pages} pages")
