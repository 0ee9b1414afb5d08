"""The volume below a path: free space, size, file system, and whether it can be written.

Invariant: a path that does not exist yet is read at its nearest existing parent, since that is
where it would be made.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from edgewise.core.quantity import Quantity, Unknown
from edgewise.device.sections import StorageInfo, fact
from edgewise.device.tree import read_text

__all__ = ["nearest_existing", "read_storage"]


def nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists, absolute."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() follows links
    return next((p for p in (absolute, *absolute.parents) if os.path.lexists(p)), absolute)


def read_storage(path: Path, root: Path = Path("/")) -> StorageInfo:
    """Return the storage section.

    Args:
        path: Folder whose volume is read; it need not exist yet.
        root: Root of the tree that holds ``/proc``.
    """
    place = nearest_existing(path)
    try:
        usage = shutil.disk_usage(place)
    except OSError as error:
        free: Quantity = Unknown(reason=f"the volume cannot be read: {error.strerror}")
        total: Quantity = free
    else:
        free = fact(usage.free, "statvfs, free to this user")
        total = fact(usage.total, "statvfs")
    return StorageInfo(
        path=fact(str(place), "nearest existing folder"),
        free_bytes=free,
        total_bytes=total,
        read_only=_read_only(place),
        filesystem=_filesystem(place, root),
    )


def _read_only(place: Path) -> Quantity:
    if not hasattr(os, "statvfs"):
        return Unknown(reason="the platform does not tell")
    try:
        flags = os.statvfs(place).f_flag
    except OSError as error:
        return Unknown(reason=f"the volume cannot be read: {error.strerror}")
    return fact(bool(flags & os.ST_RDONLY), "statvfs flags")


def _filesystem(place: Path, root: Path) -> Quantity:
    best, kind = "", ""
    for line in (read_text(root, "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or not tail:
            continue
        mount = fields[4].replace("\\040", " ")
        if place.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, tail[0]
    return fact(kind, "/proc/self/mountinfo") if kind else Unknown(reason="no mount table")
