"""Large files that environments have in common are kept once on disk, as hard links.

Several runtimes bring the same libraries at the same versions (torch alone is 700 MiB). pip
replaces a file by unlinking it, so a change of one environment never reaches another.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from edgewise.store.digest import file_digest

__all__ = ["share_files"]

_LEAST_BYTES = 1 << 20


def share_files(folder: Path, others: Path) -> int:
    """Replace large files of an environment by links to equal ones in its neighbours.

    Only regular files of equal size, permissions, owner and digest are shared. Where the file
    system cannot link, everything stays as it is.

    Args:
        folder: The environment.
        others: The folder that holds all environments; ``folder`` itself is left out.

    Returns:
        Bytes that the environment takes no longer for itself.
    """
    known: dict[tuple[int, ...], list[Path]] = defaultdict(list)
    for neighbour in sorted(others.iterdir()) if others.is_dir() else []:
        if neighbour.is_dir() and neighbour != folder:
            for path, facts in _large_files(neighbour):
                known[_kind(facts)].append(path)
    saved = 0
    for path, facts in _large_files(folder):
        if any(_replaced(path, facts, other) for other in known[_kind(facts)]):
            saved += facts.st_size
    return saved


def _large_files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            try:
                facts = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(facts.st_mode) and facts.st_size >= _LEAST_BYTES:
                yield path, facts


def _kind(facts: os.stat_result) -> tuple[int, ...]:
    return (facts.st_size, facts.st_mode, facts.st_uid, facts.st_gid, facts.st_dev)


def _replaced(path: Path, facts: os.stat_result, other: Path) -> bool:
    """Return whether ``path`` is now a link to the file of ``other``."""
    try:
        if other.lstat().st_ino == facts.st_ino:
            return True
        if file_digest(path) != file_digest(other):
            return False
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".sharing-") as scratch:
            link = Path(scratch, path.name)
            link.hardlink_to(other)
            link.replace(path)
    except OSError:
        return False
    return True
