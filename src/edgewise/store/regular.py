"""Reading small files that anybody may have replaced by something else.

A pipe in place of a file would block for ever, a device would never end. Both are refused, and
so is a file above its bound, before a byte of it is read.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

__all__ = ["open_regular", "read_regular"]


def open_regular(path: Path, *, follow: bool = True) -> IO[bytes]:
    """Open a regular file for reading.

    Args:
        path: The file.
        follow: Whether its name may be a symbolic link.

    Raises:
        OSError: it cannot be opened, is no regular file (``EINVAL``), or is a link that is not to
            be followed (``ELOOP``).
    """
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags | (0 if follow else os.O_NOFOLLOW))
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file")


def read_regular(path: Path, *, limit_bytes: int, follow: bool = True) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        OSError: as :func:`open_regular`, or it is larger than the limit (``EFBIG``).
    """
    with open_regular(path, follow=follow) as stream:
        if os.fstat(stream.fileno()).st_size > limit_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {limit_bytes} bytes")
        return stream.read(limit_bytes + 1)
