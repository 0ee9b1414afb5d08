"""Work in progress in the staging folder, and the sweep of what killed processes left there.

Invariants: every entry is named ``work-…`` (a folder) or ``write-…`` (a file), is made below
staging, and is held by an exclusive ``flock`` for as long as its process works on it. The kernel
drops that lock when the process ends, however it ends, so an entry whose lock can be had belongs
to nobody. Process ids are not asked: a home may be shared between containers, where they mean
nothing. Where there is no ``flock`` (another platform, a file system without it), nothing is
swept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["make_file", "make_folder", "sweep", "sync", "sync_folder"]

_FOLDER, _FILE = "work-", "write-"


def make_folder(staging: Path) -> tuple[Path, int]:
    """Return a fresh folder below ``staging`` and the descriptor that holds it.

    Raises:
        OSError: it cannot be made.
    """

    def make(path: Path) -> int | None:
        path.mkdir(mode=0o700)
        try:
            return os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None  # swept already

    return _make(staging, _FOLDER, make)


def make_file(staging: Path) -> tuple[Path, int]:
    """Return a fresh, empty file below ``staging`` and its descriptor, which holds it.

    Raises:
        OSError: it cannot be made.
    """
    return _make(
        staging, _FILE, lambda path: os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    )


def sweep(staging: Path) -> None:
    """Remove every entry that no living process holds; what cannot be removed stays."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):
        for path in list(staging.iterdir()):
            if path.name.startswith((_FOLDER, _FILE)):
                _remove_if_free(path)


def sync(stream: IO[Any]) -> None:
    """Put what was written to a stream on the disk.

    Raises:
        OSError: the disk is full or failed.
    """
    stream.flush()
    os.fsync(stream.fileno())


def sync_folder(path: Path) -> None:
    """Put a folder's entries on the disk, where the platform and the file system can.

    Raises:
        OSError: the disk failed.
    """
    if fcntl is None:
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:  # this file system has no such thing
            raise
    finally:
        os.close(folder)


def _make(staging: Path, prefix: str, make: Callable[[Path], int | None]) -> tuple[Path, int]:
    while True:
        path = staging / f"{prefix}{secrets.token_hex(8)}"
        held = make(path)
        if held is None:
            continue
        if fcntl is None:
            return path, held
        with contextlib.suppress(OSError):  # a file system without locks: nothing is swept there
            fcntl.flock(held, fcntl.LOCK_EX)
        if _is_at(held, path):
            return path, held
        os.close(held)  # swept between its making and its lock


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _remove_if_free(path: Path) -> None:
    with contextlib.suppress(OSError):
        entry = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(entry, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        finally:
            os.close(entry)
