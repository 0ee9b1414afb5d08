"""Points at which a process can be killed, and hooks that call them.

Three kinds: before every SQL statement, commits among them; before, and in the middle of, every
write of SQLite to a file; before every piece that goes to or comes from the server, and around the
effect of the application. The hook in SQLite is its own: ``xSetSystemCall`` of its VFS replaces
the system calls it writes with (sqlite.org/c3ref/vfs.html).
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import signal
import sqlite3
from typing import Any

_CALLS = {
    b"pwrite64": (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64),
    b"pwrite": (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64),
    b"write": (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t),
    b"ftruncate": (ctypes.c_int, ctypes.c_int, ctypes.c_int64),
    b"unlink": (ctypes.c_int, ctypes.c_char_p),
}


class CrashPoints:
    """Counts the points a process passes, and kills it at one of them with SIGKILL."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.target = -1
        self.on = False
        self._hooks: list[Any] = []

    def hit(self, name: str) -> bool:
        """Pass a point; return whether the process must die in the middle of what follows."""
        if not self.on:
            return False
        here = len(self.names)
        self.names.append(name)
        if here == self.target:
            if name.endswith("half"):
                return True
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    def statement(self, sql: str) -> None:
        self.hit("sql " + " ".join(sql.split()[:3]))

    def hook_connections(self) -> None:
        """Pass a point before every statement of every connection that is opened from now on."""
        connect = sqlite3.connect

        def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **kwargs)
            if self.on:
                connection.set_trace_callback(self.statement)
            return connection

        sqlite3.connect = traced  # type: ignore[assignment]

    def hook_system_calls(self) -> list[str]:
        """Pass two points before every write of SQLite; return which calls are hooked.

        A library that keeps its symbols to itself cannot be hooked; the list is then empty.
        """
        try:
            library = ctypes.CDLL(_sqlite3.__file__)
            find = library.sqlite3_vfs_find
        except AttributeError:
            return []
        find.restype = ctypes.POINTER(_Vfs)
        vfs = find(None)
        if not vfs or vfs.contents.version < 3:
            return []
        return [name.decode() for name in _CALLS if self._hook(vfs, name)]

    def _hook(self, vfs: Any, name: bytes) -> bool:
        kind = ctypes.CFUNCTYPE(*_CALLS[name], use_errno=True)
        address = vfs.contents.get_call(vfs, name)
        if not address:
            return False
        real = kind(address)
        label = name.decode()

        def called(*args: Any) -> int:
            self.hit(label)
            if label.startswith(("pwrite", "write")) and args[2] > 1 and self.hit(f"{label} half"):
                real(args[0], args[1], args[2] // 2, *args[3:])
                os.kill(os.getpid(), signal.SIGKILL)
            done = real(*args)
            return int(done)

        hook = kind(called)
        self._hooks.append((hook, real))
        vfs.contents.set_call(vfs, name, ctypes.cast(hook, ctypes.c_void_p))
        return True


class _Vfs(ctypes.Structure):
    pass


_Vfs._fields_ = [
    ("version", ctypes.c_int),
    ("file_size", ctypes.c_int),
    ("path_max", ctypes.c_int),
    ("next", ctypes.POINTER(_Vfs)),
    ("name", ctypes.c_char_p),
    ("data", ctypes.c_void_p),
    ("functions", ctypes.c_void_p * 13),  # xOpen … xGetLastError, xCurrentTimeInt64
    (
        "set_call",
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Vfs), ctypes.c_char_p, ctypes.c_void_p),
    ),
    (
        "get_call",
        ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Vfs), ctypes.c_char_p),
    ),
    ("next_call", ctypes.c_void_p),
]
