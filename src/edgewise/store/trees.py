"""Folders kept by content: a checkpoint in the HF form, or an artifact of several files.

A tree's digest is the SHA-256 of the canonical JSON of its index: path, digest and size of every
file, sorted by path. Only regular files count; a link or a device in a tree is refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from edgewise.core.canonical import digest_of
from edgewise.errors import InputError, IntegrityError
from edgewise.store import scratch
from edgewise.store.digest import file_digest
from edgewise.store.home import Home, storage_error
from edgewise.store.regular import open_regular

__all__ = [
    "FileEntry",
    "adopt",
    "copy_in",
    "digest_matches",
    "index",
    "index_names",
    "path_of",
    "size_of",
    "tree_digest",
    "verified_path",
]

_MOST_FILES = 10_000


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file: its path inside the tree with ``/``, its digest and size."""

    path: str
    sha256: str
    size_bytes: int


def index(folder: Path) -> tuple[FileEntry, ...]:
    """Return the files of a folder, sorted by path, each read whole.

    Raises:
        InputError: it holds something that is no regular file, too many files, or none.
    """
    entries = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise InputError(
                "tree-not-plain",
                f"{path.relative_to(folder)} is no regular file",
                context={"folder": str(folder)},
                hint="copy links and special files into plain ones",
            )
        if path.is_file():
            entries.append(
                FileEntry(
                    path=path.relative_to(folder).as_posix(),
                    sha256=file_digest(path),
                    size_bytes=path.stat().st_size,
                )
            )
        if len(entries) > _MOST_FILES:
            raise InputError("tree-too-large", f"{folder} holds over {_MOST_FILES} files")
    if not entries:
        raise InputError("tree-empty", f"{folder} holds no file")
    return tuple(sorted(entries, key=lambda entry: entry.path))


def index_names(folder: Path, names: Iterable[str]) -> tuple[FileEntry, ...]:
    """Return some files of somebody's folder, sorted by path; links to files are followed.

    Caches of checkpoints consist of links; what they point at is what is read and copied.

    Raises:
        InputError: a name is no file, or there is none.
    """
    entries = []
    for name in names:
        path = folder / name
        try:
            with open_regular(path) as stream:
                size = os.fstat(stream.fileno()).st_size
        except OSError as error:
            raise InputError(
                "tree-not-plain",
                f"{name} is no regular file",
                context={"folder": str(folder)},
                hint="name a folder of plain files",
            ) from error
        entries.append(FileEntry(path=name, sha256=file_digest(path), size_bytes=size))
    if not entries:
        raise InputError("tree-empty", f"{folder} holds no file of a checkpoint")
    return tuple(sorted(entries, key=lambda entry: entry.path))


def tree_digest(entries: tuple[FileEntry, ...]) -> str:
    """Return the identity of a tree: one file's own digest, or the digest of the index."""
    return entries[0].sha256 if len(entries) == 1 else digest_of(list(entries))


def path_of(home: Home, digest: str) -> Path:
    """Return where an artifact lies: a file among the blobs, or a folder among the trees."""
    folder = home.root / "trees" / digest
    return folder if folder.is_dir() else home.blob(digest)


def adopt(home: Home, folder: Path, entries: tuple[FileEntry, ...]) -> Path:
    """Move a finished folder, whose index is known, into the store.

    A folder of one file becomes a blob. What is there and sound already stays.

    Raises:
        ResourceError: the home cannot be written.
    """
    digest = tree_digest(entries)
    if len(entries) == 1:
        return home.adopt(folder / entries[0].path, digest)
    target = home.folder("trees") / digest
    try:
        if target.exists():
            if _sound(target, entries):
                return target
            with home.work_folder() as attic:
                target.rename(attic / "damaged")
        for entry in entries:
            path = folder / entry.path
            with path.open("rb") as stream:
                scratch.sync(stream)
            path.chmod(0o444)
        folder.rename(target)
        scratch.sync_folder(target.parent)
    except OSError as error:
        raise storage_error(error, target, "storing files") from error
    return target


def copy_in(home: Home, source: Path, entries: tuple[FileEntry, ...]) -> Path:
    """Copy a folder that belongs to somebody else into the store, unless it is there and sound.

    Raises:
        IntegrityError: a file changed while it was copied.
        ResourceError: the home cannot be written.
    """
    kept = home.root / "trees" / tree_digest(entries)
    if kept.is_dir() and _sound(kept, entries):
        return kept  # the disk need not hold it twice
    with home.work_folder() as work:
        copy = work / "tree"
        try:
            for entry in entries:
                target = copy / entry.path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / entry.path, target)
        except OSError as error:
            raise storage_error(error, copy, "copying files") from error
        if not _sound(copy, entries):
            raise IntegrityError("tree-changed", f"{source} changed while it was read")
        return adopt(home, copy, entries)


def verified_path(home: Home, digest: str) -> Path:
    """Return an artifact's path after reading it whole and checking its digest.

    Raises:
        IntegrityError: it is missing, or its bytes have changed.
    """
    path = path_of(home, digest)
    if not path.is_dir():
        return home.verified_blob(digest)
    if digest_matches(path, digest):
        return path
    raise IntegrityError(
        "tree-corrupt",
        f"the stored files {digest[:12]} have changed since they were written",
        context={"path": str(path), "expected": digest},
        hint="remove the folder and make it again",
    )


def digest_matches(path: Path, digest: str) -> bool:
    """Return whether a file or a folder still has a digest."""
    try:
        actual = tree_digest(index(path)) if path.is_dir() else file_digest(path)
    except (OSError, InputError):
        return False
    return actual == digest


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    total = 0
    for root, _, names in os.walk(folder):
        total += sum((Path(root) / name).lstat().st_size for name in names)
    return total


def _sound(folder: Path, entries: tuple[FileEntry, ...]) -> bool:
    try:
        return index(folder) == entries
    except (OSError, InputError):
        return False
