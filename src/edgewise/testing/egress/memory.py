"""Read what a stopped system call of another process points at: paths, words, buffers."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["bytes_at", "group_of", "path_at", "text_at", "vectors_at", "words_at"]

_PATH_BYTES, _PAGE_BYTES, _WORDS_MAX, _VECTORS_MAX = 4096, 4096, 256, 64
_HERE = -100  # AT_FDCWD


def bytes_at(pid: int, address: int, size: int) -> bytes:
    """Return ``size`` bytes of a process's memory.

    Raises:
        OSError: they cannot be read.
    """
    handle = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        return os.pread(handle, size, address)
    finally:
        os.close(handle)


def text_at(pid: int, address: int) -> str:
    """Return the text that ends with a zero byte; at most what a path may have.

    Raises:
        OSError: it cannot be read.
    """
    found = b""
    while len(found) < _PATH_BYTES:
        at = address + len(found)
        piece = bytes_at(pid, at, _PAGE_BYTES - at % _PAGE_BYTES)  # never into the next page
        found += piece
        if not piece or b"\0" in piece:
            break
    return os.fsdecode(found.partition(b"\0")[0])


def words_at(pid: int, address: int) -> list[str]:
    """Return the texts of an array of pointers that ends with none.

    Raises:
        OSError: they cannot be read.
    """
    words: list[str] = []
    while address and len(words) < _WORDS_MAX:
        pointer = int.from_bytes(bytes_at(pid, address + 8 * len(words), 8), "little")
        if not pointer:
            break
        words.append(text_at(pid, pointer))
    return words


def vectors_at(pid: int, address: int, count: int) -> bytes:
    """Return what an array of ``struct iovec`` points at, one behind the other.

    Raises:
        OSError: it cannot be read.
    """
    parts = []
    for index in range(min(count, _VECTORS_MAX)):
        entry = bytes_at(pid, address + 16 * index, 16)
        start, size = int.from_bytes(entry[:8], "little"), int.from_bytes(entry[8:], "little")
        parts.append(bytes_at(pid, start, size))
    return b"".join(parts)


def path_at(pid: int, folder: int, address: int) -> str:
    """Return the absolute path that a call of a process means.

    Args:
        pid: The process, or a thread of it.
        folder: Descriptor of the folder that a relative path starts from.
        address: Where the path stands.

    Raises:
        OSError: it cannot be read.
    """
    name = text_at(pid, address)
    if name.startswith("/proc/self/"):
        name = f"/proc/{pid}/{name.removeprefix('/proc/self/')}"
    if not name.startswith("/"):
        folder = folder & 0xFFFFFFFF
        folder = folder - (1 << 32) if folder >> 31 else folder
        link = f"/proc/{pid}/cwd" if folder == _HERE else f"/proc/{pid}/fd/{folder}"
        start = str(Path(link).readlink())
        name = os.path.join(start, name) if name else start  # noqa: PTH118 - must stay a text
    return os.path.normpath(name)


def group_of(thread: int) -> int:
    """Return the process that a thread belongs to; the thread itself when that cannot be told."""
    try:
        for line in Path(f"/proc/{thread}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return thread
