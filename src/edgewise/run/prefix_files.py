"""Saved states on disk: one file each, verified whole before it is used.

A file holds a magic word, the length of a header, the header (fingerprint, tokens, how many of
them were evaluated as in a clean run, size of the state) and the state. The header is checked by
itself and by the file's name here; the state carries a digest of its own, which the engine checks
before it takes it. Files are written in one step, readable by their owner only, and those used
longest ago are removed when the quota is reached. What is damaged, foreign or too large is removed
and counts as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final

import msgspec

from edgewise.errors import EdgewiseError
from edgewise.store.home import Home
from edgewise.store.regular import open_regular

__all__ = ["PrefixFiles"]

_MAGIC: Final = b"EDGEWISEPREFIX3\n"
_HEADER_BYTES_MAX: Final = 8 << 20
_SUFFIX: Final = ".prefix"
_LOCK: Final = "prefixes"
_LOCK_TIMEOUT_S: Final = 2.0

Key = tuple[int, ...]


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fingerprint: str
    tokens: Key
    clean: int
    size_bytes: int


class PrefixFiles:
    """The states of one deployment in a home."""

    def __init__(self, home: Home, fingerprint: str, quota_bytes: int) -> None:
        """Take the deployment, and the bytes that all deployments' states may take together."""
        self._home = home
        self._fingerprint = fingerprint
        self._quota = quota_bytes
        self._root = home.root / "prefixes"
        self._folder = self._root / fingerprint
        self._known: dict[str, Key] = {}

    def keys(self) -> Iterable[Key]:
        """Return the tokens of every state that is there now."""
        try:
            names = {entry.name for entry in os.scandir(self._folder)}
        except OSError:
            names = set()
        for gone in set(self._known) - names:
            del self._known[gone]
        for name in names - set(self._known):
            tokens = self._tokens(self._folder / name) if name.endswith(_SUFFIX) else None
            if tokens is not None:
                self._known[name] = tokens
        return self._known.values()

    def holds(self, key: Key) -> bool:
        """Return whether the state of these tokens is there."""
        return (self._folder / _name(key)).exists()

    def write(self, key: Key, state: bytes, clean: int) -> None:
        """Keep a state, and remove those used longest ago when all take too much.

        A disk that is full or cannot be written costs the state, nothing else.
        """
        header = msgspec.msgpack.encode(_Header(self._fingerprint, key, clean, len(state)))
        data = b"".join((_MAGIC, len(header).to_bytes(4, "little"), header, state))
        if len(data) > self._quota:
            return
        path = self._folder / _name(key)
        lock = self._home.lock(_LOCK, timeout_s=_LOCK_TIMEOUT_S)
        with contextlib.suppress(EdgewiseError, OSError), lock:
            self._make_room(len(data))
            self._home.write(path, data)
            path.chmod(0o600)

    def read(self, key: Key) -> tuple[bytes, int] | None:
        """Return a state, for the engine to verify, and how many of its tokens are clean.

        ``None`` when the file is not what it says.
        """
        path = self._folder / _name(key)
        try:
            with open_regular(path) as stream:
                header = _read_header(stream)
                left = os.fstat(stream.fileno()).st_size - stream.tell()
                # The length is checked before it is read by: it is anybody's word.
                state = stream.read(left) if left == header.size_bytes else b""
        except (OSError, ValueError, msgspec.MsgspecError):
            self.remove(key)
            return None
        sound = state and 0 <= header.clean <= len(key)
        if not sound or header.fingerprint != self._fingerprint or header.tokens != key:
            self.remove(key)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return state, header.clean

    def remove(self, key: Key) -> None:
        """Remove a state."""
        name = _name(key)
        self._known.pop(name, None)
        with contextlib.suppress(OSError):
            (self._folder / name).unlink(missing_ok=True)

    def _tokens(self, path: Path) -> Key | None:
        try:
            with open_regular(path) as stream:
                header = _read_header(stream)
        except (OSError, ValueError, msgspec.MsgspecError):
            header = None
        if (
            header is not None
            and header.fingerprint == self._fingerprint
            and _name(header.tokens) == path.name
        ):
            return header.tokens
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def _make_room(self, needed: int) -> None:
        files = []
        for path in self._root.glob(f"*/*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                files.append((stat.st_mtime, stat.st_size, path))
        total = needed + sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._quota:
                return
            path.unlink(missing_ok=True)
            total -= size


def _read_header(stream: IO[bytes]) -> _Header:
    start = stream.read(len(_MAGIC) + 4)
    length = int.from_bytes(start[len(_MAGIC) :], "little")
    if not start.startswith(_MAGIC) or length > _HEADER_BYTES_MAX:
        raise ValueError("no prefix file")
    return msgspec.msgpack.decode(stream.read(length), type=_Header)


def _name(key: Key) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:40] + _SUFFIX
