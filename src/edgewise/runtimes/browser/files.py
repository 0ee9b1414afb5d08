"""What a loopback server serves: a fixed table of files and documents, made beforehand.

Invariants: a path of the table leads to a regular file inside the folder that was named; a link
is never followed, neither when the table is made nor when a file is opened.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edgewise.errors import InputError

__all__ = [
    "TEXT_TYPE",
    "Mount",
    "ServedDocument",
    "ServedFile",
    "collect",
    "document",
    "open_regular",
]

_FILES_MAX = 20_000
TEXT_TYPE = "text/plain; charset=utf-8"

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
}
_TYPE_OTHER = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Files of a folder, or one file, under a path of the server.

    Attributes:
        prefix: Where they appear: ``/`` or ``/name/``.
        source: A folder, served with its subfolders, or a single file.
        names: Paths inside the folder to serve, with ``/``; empty for every regular file.
    """

    prefix: str
    source: Path
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFile:
    """A regular file, as it was found, and the folder it may not leave."""

    path: Path
    root: Path
    content_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDocument:
    """Content that is no file."""

    body: bytes
    content_type: str


def collect(mount: Mount) -> dict[str, ServedFile | ServedDocument]:
    """Return the files of a mount by the path they are served at.

    Raises:
        InputError: the prefix is no path, the source or a named file is missing, or there are
            more files than a page ever needs.
    """
    if not re.fullmatch(r"/(?:[A-Za-z0-9@_-][A-Za-z0-9@._-]*/)*", mount.prefix):
        raise InputError("browser-mount-invalid", f"{mount.prefix!r} is no path like / or /name/")
    try:
        source = mount.source.resolve(strict=True)
    except OSError as error:
        raise InputError(
            "browser-mount-missing", f"{mount.source} cannot be served: {error.strerror}"
        ) from error
    if source.is_file():
        return {mount.prefix + mount.source.name: _entry(source, source.parent)}
    found = _regular_files(source)
    if mount.names:
        missing = sorted(set(mount.names) - set(found))
        if missing:
            raise InputError(
                "browser-mount-missing",
                f"{source} lacks {', '.join(missing[:5])}",
                context={"missing": missing},
            )
        found = {name: found[name] for name in mount.names}
    return {mount.prefix + name: _entry(path, source) for name, path in found.items()}


def document(value: object) -> ServedDocument:
    """Return bytes as they are, and any other value as JSON."""
    if isinstance(value, bytes):
        return ServedDocument(body=value, content_type=_TYPE_OTHER)
    return ServedDocument(body=json.dumps(value).encode(), content_type=_TYPES[".json"])


def _entry(path: Path, root: Path) -> ServedFile:
    return ServedFile(
        path=path, root=root, content_type=_TYPES.get(path.suffix.lower(), _TYPE_OTHER)
    )


def _regular_files(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for base, _, names in os.walk(folder, followlinks=False):
        for name in names:
            path = Path(base, name)
            if not stat.S_ISREG(path.lstat().st_mode):
                continue  # a link may lead out of the folder; a device is no content
            found[path.relative_to(folder).as_posix()] = path
            if len(found) > _FILES_MAX:
                raise InputError(
                    "browser-mount-too-large", f"{folder} holds more than {_FILES_MAX} files"
                )
    return found


def open_regular(entry: ServedFile) -> tuple[BinaryIO, int] | None:
    """Open a file again as what it was when it was collected, or return ``None``."""
    try:
        if not entry.path.resolve(strict=True).is_relative_to(entry.root):
            return None
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(entry.path, flags)
    except OSError:
        return None
    file = os.fdopen(descriptor, "rb")
    state = os.fstat(file.fileno())
    if not stat.S_ISREG(state.st_mode):
        file.close()
        return None
    return file, state.st_size
