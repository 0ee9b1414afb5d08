"""The audit hook: what Python code of a process does with sockets, names, programs and files.

This file is also loaded by its path in every Python process that a watched one starts, which may
be another interpreter without Edgewise: it needs the standard library only.

What it sees it hands to recorders. A recorder that cannot record raises, and what was about to
happen does not: nothing goes unseen because a disk is full. While there is no recorder, an event
costs one comparison. An audit hook cannot be removed; it stays, idle.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

__all__ = [
    "Journal",
    "Patterns",
    "Recorder",
    "core_limit",
    "find_in",
    "is_file",
    "search_file",
    "search_handle",
    "start",
    "start_in_child",
    "stop",
    "writable",
]

Patterns = Sequence[tuple[str, bytes]]
JOURNAL = "journal"
FORMS = "forms.json"
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TMPFILE: int = getattr(os, "O_TMPFILE", 0)
_CHUNK_BYTES = 1 << 20


class Recorder(Protocol):
    """Takes what was seen."""

    @property
    def patterns(self) -> Patterns:
        """Return what it looks for."""
        ...

    def record(self, kind: str, detail: str, form: str = "") -> None:
        """Take one thing; raise if that cannot be done."""
        ...


_recorders: list[Recorder] = []
_installed = False
_inside = threading.local()


def start(recorder: Recorder) -> None:
    """Hand what is seen from now on to a recorder too; the first call installs the hook."""
    global _installed  # noqa: PLW0603 - one hook a process, for good
    _recorders.append(recorder)
    if not _installed:
        _installed = True
        sys.addaudithook(_hook)


def stop(recorder: Recorder) -> None:
    """Hand a recorder nothing more."""
    with contextlib.suppress(ValueError):
        _recorders.remove(recorder)


def find_in(data: bytes | bytearray, patterns: Patterns) -> str:
    """Return the name of a form that is in the data, or an empty text."""
    return next((name for name, pattern in patterns if pattern in data), "")


def search_file(path: str, patterns: Patterns) -> str | None:
    """Return the form that a file holds, an empty text for none, ``None`` if it cannot be read.

    Only a regular file is read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return search_handle(handle, patterns)
    except OSError:
        return None
    finally:
        os.close(handle)


def search_handle(handle: int, patterns: Patterns) -> str:
    """Return the form that an open file holds, an empty text for none.

    Raises:
        OSError: it cannot be read.
    """
    overlap = max((len(pattern) for _, pattern in patterns), default=1) - 1
    offset, tail = 0, b""
    while chunk := os.pread(handle, _CHUNK_BYTES, offset):
        form = find_in(tail + chunk, patterns)
        if form:
            return form
        offset += len(chunk)
        tail = (tail + chunk)[-overlap:] if overlap else b""
    return ""


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _recorders:
        return
    handler = _HANDLERS.get(event)
    if handler is None or getattr(_inside, "busy", False):
        return
    _inside.busy = True
    try:
        for recorder in tuple(_recorders):
            for found in handler(arguments, recorder):
                recorder.record(*found)
    finally:
        _inside.busy = False


_Found = Iterator[tuple[str, ...]]


def _open(arguments: tuple[Any, ...], recorder: Recorder) -> _Found:
    path, _, flags = arguments
    if isinstance(path, int) or not isinstance(flags, int) or not flags & WRITE_FLAGS:
        return  # a descriptor was seen when it was opened
    where = _path(path)
    if flags & os.O_TRUNC:
        yield from _before_it_goes(where, recorder)
    anonymous = _TMPFILE and flags & _TMPFILE == _TMPFILE
    yield ("anonymous" if anonymous else "write"), where


def _mmap(arguments: tuple[Any, ...], _recorder: Recorder) -> _Found:
    descriptor, _, access = arguments[:3]
    if descriptor != -1 and access != 1 and writable(descriptor):  # 1 is ACCESS_READ
        where = _path(descriptor)
        if not where.endswith(" (deleted)"):
            yield "write", where


def _remove(arguments: tuple[Any, ...], recorder: Recorder) -> _Found:
    yield from _before_it_goes(_path(arguments[0], arguments[1]), recorder)


def _truncate(arguments: tuple[Any, ...], recorder: Recorder) -> _Found:
    yield from _before_it_goes(_path(arguments[0]), recorder)


def _rename(arguments: tuple[Any, ...], recorder: Recorder) -> _Found:
    source, target = _path(arguments[0], arguments[2]), _path(arguments[1], arguments[3])
    yield from _before_it_goes(target, recorder)
    yield "rename", json.dumps([source, target])


def _named(arguments: tuple[Any, ...], _recorder: Recorder) -> _Found:
    for name in arguments[:2]:
        if isinstance(name, str | bytes | os.PathLike):
            yield "name", _path(name)


def _sqlite(arguments: tuple[Any, ...], _recorder: Recorder) -> _Found:
    name = os.fsdecode(arguments[0])
    if name and ":memory:" not in name:
        path = _path(name.removeprefix("file:").partition("?")[0])
        yield "write", path
        for suffix in ("-journal", "-wal", "-shm"):
            yield "write-perhaps", path + suffix


def _socket_made(arguments: tuple[Any, ...], _recorder: Recorder) -> _Found:
    family = int(arguments[1])
    local = family == getattr(sys.modules.get("socket"), "AF_UNIX", None)
    # A pair of connected ones comes this way too, and reaches nobody else.
    yield ("socket-local" if local else "socket"), f"socket of family {family}"


def _socket_used(what: str) -> Callable[[tuple[Any, ...], Recorder], _Found]:
    def handler(arguments: tuple[Any, ...], _recorder: Recorder) -> _Found:
        yield "socket", f"{what} {arguments[1]!r}"

    return handler


def _looked_up(what: str) -> Callable[[tuple[Any, ...], Recorder], _Found]:
    def handler(arguments: tuple[Any, ...], _recorder: Recorder) -> _Found:
        yield "lookup", f"{what} {arguments[0]!r}"

    return handler


def _log_message(arguments: tuple[Any, ...], _recorder: Recorder) -> _Found:
    yield "socket", f"syslog {arguments[-1]!r}"


def _program(arguments: tuple[Any, ...], _recorder: Recorder) -> _Found:
    words = arguments[1] if len(arguments) > 1 else arguments[0]
    if isinstance(words, str | bytes):
        words = [words]
    elif not isinstance(words, list | tuple):
        words = list(arguments)
    yield "program", json.dumps([_word(word) for word in words])


def _limit(arguments: tuple[Any, ...], _recorder: Recorder) -> _Found:
    try:
        import resource  # noqa: PLC0415 - not on every platform
    except ImportError:
        return
    if arguments[0] == resource.RLIMIT_CORE:
        yield "core-limit", str(arguments[1][0])


_HANDLERS: dict[str, Callable[[tuple[Any, ...], Recorder], Iterable[tuple[str, ...]]]] = {
    "open": _open,
    "mmap.__new__": _mmap,
    "os.remove": _remove,
    "os.truncate": _truncate,
    "os.rename": _rename,
    "os.link": _named,
    "os.symlink": _named,
    "os.mkdir": _named,
    "sqlite3.connect": _sqlite,
    "socket.__new__": _socket_made,
    "socket.bind": _socket_used("bind"),
    "socket.connect": _socket_used("connect"),
    "socket.sendto": _socket_used("sendto"),
    "socket.sendmsg": _socket_used("sendmsg"),
    "socket.getaddrinfo": _looked_up("getaddrinfo"),
    "socket.gethostbyname": _looked_up("gethostbyname"),
    "socket.gethostbyaddr": _looked_up("gethostbyaddr"),
    "socket.getnameinfo": _looked_up("getnameinfo"),
    "syslog.openlog": _log_message,
    "syslog.syslog": _log_message,
    "subprocess.Popen": _program,
    "os.system": _program,
    "os.exec": _program,
    "os.posix_spawn": _program,
    "os.spawn": _program,
    "pty.spawn": _program,
    "resource.setrlimit": _limit,
}


def _before_it_goes(path: str, recorder: Recorder) -> _Found:
    """Search a file that is about to be removed, cut or replaced: later nobody can."""
    form = search_file(path, recorder.patterns)
    if form:
        yield "hit", path, form
    elif form is not None:
        yield "searched", path
    elif is_file(path):
        yield "unsearched", path


def is_file(path: str) -> bool:
    """Return whether a regular file is there, however little of it may be read."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def writable(descriptor: int) -> bool:
    """Return whether a descriptor can be written."""
    try:
        import fcntl  # noqa: PLC0415 - not on every platform
    except ImportError:
        return True
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY


def _path(path: Any, folder: Any = -1) -> str:
    """Return the absolute path that a call means; a descriptor's is asked of the system."""
    if isinstance(path, int):
        try:
            return os.readlink(f"/proc/self/fd/{path}")  # noqa: PTH115 - a hot path
        except OSError:
            return f"descriptor {path}"
    name = _word(path)
    if os.path.isabs(name):  # noqa: PTH117 - a hot path
        return os.path.normpath(name)
    if isinstance(folder, int) and folder >= 0:
        return os.path.normpath(os.path.join(_path(folder), name))  # noqa: PTH118 - a hot path
    try:
        return os.path.abspath(name)  # noqa: PTH100 - a hot path
    except OSError:  # the folder is gone
        return name


def _word(value: Any) -> str:
    try:
        return os.fsdecode(value)
    except (TypeError, ValueError):
        return repr(value)


class Journal:
    """Records as lines of JSON at the end of a file that all watched processes share.

    A file keeps what a process said before it was killed, and needs nobody who reads.
    """

    def __init__(self, folder: str) -> None:
        with open(os.path.join(folder, FORMS), encoding="utf-8") as stream:  # noqa: PTH118, PTH123
            forms = json.load(stream)
        self.patterns: Patterns = [(name, bytes.fromhex(data)) for name, data in forms]
        self._folder = folder
        path = os.path.join(folder, JOURNAL)  # noqa: PTH118
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        found = os.fstat(self._handle)
        self._file = found.st_dev, found.st_ino

    def record(self, kind: str, detail: str, form: str = "") -> None:
        """Write one record, unless it is about the folder itself; raise if that is impossible."""
        if detail.startswith(self._folder + os.sep):
            return
        line = json.dumps({"process": os.getpid(), "kind": kind, "detail": detail, "form": form})
        found = os.fstat(self._handle)
        if (found.st_dev, found.st_ino) != self._file:
            raise RuntimeError("the journal of the egress check was closed")
        data = line.encode("utf-8", "surrogateescape") + b"\n"
        if os.write(self._handle, data) != len(data):
            raise RuntimeError("the journal of the egress check cannot be written")

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def start_in_child(folder: str) -> None:
    """Record into a harness's folder from now on; without that the process does not go on."""
    try:
        journal = Journal(folder)
        journal.record("hello", json.dumps([sys.executable, *sys.orig_argv[1:]]))
        journal.record("core-limit", core_limit())
        start(journal)
    except BaseException as error:  # noqa: BLE001 - site would go on without a word
        os.write(2, f"the egress check cannot watch this process: {error!r}\n".encode())
        os._exit(71)


def core_limit() -> str:
    """Return this process's limit for core dumps in bytes, -1 for none; 0 where there is none."""
    try:
        import resource  # noqa: PLC0415 - not on every platform
    except ImportError:
        return "0"
    return str(resource.getrlimit(resource.RLIMIT_CORE)[0])
