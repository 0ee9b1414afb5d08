"""The supervisor: told by the kernel of every watched system call, native code's included.

A socket is refused and counted. Whatever writes is recorded and goes on. A file is searched before
it is removed, cut or replaced, since nobody can do that afterwards; one that is removed is held
open and searched again at the end, for it may still be written. Files that never have a name are
refused, as by a file system that has none; programs then take one with a name. What is written to
standard output and standard error is searched on its way.

The memory of a process is read while its call waits. A process with several threads could change
it after that; this finds what happens by mistake, and does not hold a program that is out to cheat.
Sockets it holds all the same: those are refused whatever their arguments.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from edgewise.testing.egress.hook import (
    Patterns,
    find_in,
    is_file,
    search_file,
    search_handle,
)
from edgewise.testing.egress.memory import (
    bytes_at,
    group_of,
    path_at,
    text_at,
    vectors_at,
    words_at,
)
from edgewise.testing.egress.syscalls import Table

__all__ = ["Call", "Supervisor", "take_descriptor"]

# linux/seccomp.h: struct seccomp_notif and struct seccomp_notif_resp, and their ioctls.
_NOTICE: Final = struct.Struct("<QIIiIQ6Q")
_ANSWER: Final = struct.Struct("<QqiI")
_RECEIVE, _SEND, _VALID = 0xC0502100, 0xC0182101, 0x40082102
_GO_ON: Final = 1
_POLL_MS = 200
_HELD_MAX = 512
_TMPFILE = getattr(os, "O_TMPFILE", 0)
# Which arguments of a call that only makes a name are paths: (folder or None, path).
_HERE = None
_NAMES: Final[dict[str, tuple[tuple[int | None, int], ...]]] = {
    "mkdir": ((_HERE, 0),),
    "mkdirat": ((0, 1),),
    "symlink": ((_HERE, 0), (_HERE, 1)),
    "symlinkat": ((_HERE, 0), (1, 2)),
    "link": ((_HERE, 0), (_HERE, 1)),
    "linkat": ((0, 1), (2, 3)),
}


class Call(NamedTuple):
    """A system call that waits: who made it, which one, and its arguments."""

    thread: int
    name: str
    arguments: tuple[int, ...]


Record = Callable[[int, str, str, str], None]


def take_descriptor(table: Table, process: int, number: int) -> int | None:
    """Return a copy of another process's descriptor; ``None`` when the system gives none."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.syscall(ctypes.c_long(table.numbers["pidfd_open"]), process, 0)
    if handle < 0:
        return None
    try:
        got = libc.syscall(ctypes.c_long(table.numbers["pidfd_getfd"]), handle, number, 0)
    finally:
        os.close(handle)
    return int(got) if got >= 0 else None


class Supervisor:
    """Answers the kernel until no process with the filter is left.

    Attributes:
        quiet: While set, nothing is recorded; sockets are refused all the same.
        refused: Sockets that were refused, those of the harness's own trial included.
        failed: Why it stopped before its end, or nothing. Calls that it would have been told of
            fail from then on.
    """

    def __init__(self, listener: int, table: Table, patterns: Patterns, record: Record) -> None:
        """Take the listener, which is closed at the end.

        Args:
            listener: Descriptor that the kernel tells.
            table: The system calls.
            patterns: What to search for.
            record: Called with process, kind, detail and form.
        """
        self.quiet = True
        self.refused = 0
        self.failed = ""
        self._listener = listener
        self._table = table
        self._patterns = patterns
        self._record_with = record
        self._overlap = max((len(pattern) for _, pattern in patterns), default=1) - 1
        self._written: dict[tuple[int, int], bytes] = {}
        self._writable: set[str] = set()
        self._held: list[tuple[int, int, str]] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="egress-supervisor", daemon=True)
        self._libc = ctypes.CDLL(None, use_errno=True)

    def start(self) -> None:
        """Answer from now on, in a thread."""
        self._thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Wait until nobody is left to watch, and return whether that is so."""
        self._thread.join(timeout_s)
        over = not self._thread.is_alive()
        self._ends.set()
        self._thread.join()
        return over

    def _run(self) -> None:
        """Answer; the kernel's end of the descriptor hangs up when the last process has gone."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        try:
            while not self._ends.is_set():
                for _, events in poll.poll(_POLL_MS):
                    if events & select.POLLIN:
                        self._answer_one()
                    elif events:
                        return
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is seen any more
            self.failed = f"{type(error).__name__}: {error}"
        finally:
            os.close(self._listener)  # calls that still wait fail with ENOSYS
            self._search_held()

    def _answer_one(self) -> None:
        notice = bytearray(_NOTICE.size)
        if not self._control(_RECEIVE, notice):
            return  # the process was killed meanwhile
        key, thread, _, number, _, _, *arguments = _NOTICE.unpack(notice)
        call = Call(thread, self._table.name(number), tuple(arguments))
        error, flags = 0, _GO_ON
        if call.name in {"socket", "io_uring_setup"}:
            error, flags = -(errno.EPERM if call.name == "socket" else errno.ENOSYS), 0
            self.refused += call.name == "socket"
        try:
            if not self.quiet and self._look(call, key):
                error, flags = -errno.EOPNOTSUPP, 0
        finally:
            self._control(_SEND, bytearray(_ANSWER.pack(key, 0, error, flags)))

    def _control(self, request: int, data: bytearray) -> bool:
        buffer = (ctypes.c_char * len(data)).from_buffer(data)
        while True:
            done = self._libc.ioctl(self._listener, ctypes.c_ulong(request), buffer)
            if done == 0 or ctypes.get_errno() != errno.EINTR:
                return bool(done == 0)

    def _look(self, call: Call, key: int) -> bool:
        """Record what a call does; return whether it is for a file without a name."""
        process = group_of(call.thread)
        try:
            handler = getattr(self, f"_on_{call.name}", self._on_name)
            found = handler(call, process)
        except OSError as error:
            found = [("unreadable", f"{call.name}: {error.strerror}", "")]
        # Was it still that process when its memory was read? Numbers are given out again.
        if self._control(_VALID, bytearray(struct.pack("<Q", key))):
            for kind, detail, form in found:
                self._record_with(process, kind, detail, form)
        return any(kind == "nameless" for kind, _, _ in found)

    def _on_socket(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        family, kind, protocol = call.arguments[:3]
        return [("socket", f"socket of family {family}, type {kind & 0xF}, {protocol}", "")]

    def _on_io_uring_setup(self, _call: Call, _process: int) -> list[tuple[str, str, str]]:
        return [("refused", "io_uring, which could open sockets unseen", "")]

    def _on_openat(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        path = path_at(call.thread, call.arguments[0], call.arguments[1])
        return self._opened(path, call.arguments[2])

    def _on_openat2(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        flags = int.from_bytes(bytes_at(call.thread, call.arguments[2], 8), "little")
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            return []
        return self._opened(path_at(call.thread, call.arguments[0], call.arguments[1]), flags)

    def _on_open(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        return self._opened(path_at(call.thread, -100, call.arguments[0]), call.arguments[1])

    def _on_creat(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        path = path_at(call.thread, -100, call.arguments[0])
        return self._opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def _opened(self, path: str, flags: int) -> list[tuple[str, str, str]]:
        if _TMPFILE and flags & _TMPFILE == _TMPFILE:
            return [("nameless", path, "")]
        gone = self._before_it_goes(path) if flags & os.O_TRUNC else []
        self._writable.add(path)
        return [*gone, ("write", path, "")]

    def _on_memfd_create(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        return [("anonymous", f"memory: {text_at(call.thread, call.arguments[0])}", "")]

    def _on_unlink(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        return self._removed(path_at(call.thread, -100, call.arguments[0]), call.thread)

    def _on_unlinkat(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        path = path_at(call.thread, call.arguments[0], call.arguments[1])
        return self._removed(path, call.thread)

    def _on_truncate(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        path = path_at(call.thread, -100, call.arguments[0])
        return [*self._before_it_goes(path), ("write", path, "")]

    def _on_ftruncate(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        # Opened through the link, a file without a name is read too.
        return self._before_it_goes(f"/proc/{call.thread}/fd/{call.arguments[0] & 0xFFFFFFFF}")

    def _on_rename(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        source = path_at(call.thread, -100, call.arguments[0])
        return self._renamed(source, path_at(call.thread, -100, call.arguments[1]), call.thread)

    def _on_renameat(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        source = path_at(call.thread, call.arguments[0], call.arguments[1])
        target = path_at(call.thread, call.arguments[2], call.arguments[3])
        return self._renamed(source, target, call.thread)

    _on_renameat2 = _on_renameat

    def _renamed(self, source: str, target: str, thread: int) -> list[tuple[str, str, str]]:
        found = self._removed(target, thread)
        if source in self._writable:
            self._writable.add(target)
        return [*found, ("rename", json.dumps([source, target]), "")]

    def _on_execve(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        path = path_at(call.thread, -100, call.arguments[0])
        return self._program(call, path, call.arguments[1], call.arguments[2])

    def _on_execveat(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        path = path_at(call.thread, call.arguments[0], call.arguments[1])
        return self._program(call, path, call.arguments[2], call.arguments[3])

    def _program(
        self, call: Call, path: str, words: int, environment: int
    ) -> list[tuple[str, str, str]]:
        found = [("program", json.dumps([path, *words_at(call.thread, words)[1:]]), "")]
        for word in words_at(call.thread, environment):
            form = find_in(os.fsencode(word), self._patterns)
            if form:
                found.append(("hit", f"environment of {path}: {word.partition('=')[0]}", form))
        return found

    def _on_write(self, call: Call, process: int) -> list[tuple[str, str, str]]:
        data = bytes_at(call.thread, call.arguments[1], call.arguments[2])
        return self._said(process, call.arguments[0], data)

    _on_pwrite64 = _on_write

    def _on_writev(self, call: Call, process: int) -> list[tuple[str, str, str]]:
        data = vectors_at(call.thread, call.arguments[1], call.arguments[2])
        return self._said(process, call.arguments[0], data)

    _on_pwritev = _on_pwritev2 = _on_writev

    def _said(self, process: int, stream: int, data: bytes) -> list[tuple[str, str, str]]:
        data = self._written.get((process, stream), b"") + data
        self._written[process, stream] = data[-self._overlap :]
        form = find_in(data, self._patterns)
        name = "standard output" if stream == 1 else "standard error"
        return [("output", name, form)] if form else []

    def _on_name(self, call: Call, _process: int) -> list[tuple[str, str, str]]:
        found = []
        for folder, path in _NAMES.get(call.name, ()):
            start = -100 if folder is None else call.arguments[folder]
            with contextlib.suppress(OSError):
                found.append(("name", path_at(call.thread, start, call.arguments[path]), ""))
        return found

    def _removed(self, path: str, thread: int) -> list[tuple[str, str, str]]:
        found = self._before_it_goes(path)
        if path not in self._writable or any(kind == "hit" for kind, _, _ in found):
            return found
        if len(self._held) >= _HELD_MAX:
            return [*found, ("unsearched", path, "")]
        with contextlib.suppress(OSError):
            self._held.append((os.open(path, os.O_RDONLY | os.O_NONBLOCK), thread, path))
        return found

    def _search_held(self) -> None:
        """Search what was removed while it may have been open, now that nobody writes any more."""
        for handle, thread, path in self._held:
            try:
                form = search_handle(handle, self._patterns)
            except OSError:
                self._record_with(thread, "unsearched", path, "")
            else:
                if form:
                    self._record_with(thread, "hit", path, form)
            finally:
                os.close(handle)

    def _before_it_goes(self, path: str) -> list[tuple[str, str, str]]:
        form = search_file(path, self._patterns)
        if form is None:
            return [("unsearched", path, "")] if is_file(path) else []
        shown = path
        if path.startswith("/proc/"):
            with contextlib.suppress(OSError):
                shown = str(Path(path).readlink())
        return [("hit", shown, form)] if form else [("searched", shown, "")]
