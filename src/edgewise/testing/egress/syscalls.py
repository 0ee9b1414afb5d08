"""Which system calls are watched, and the seccomp filter that hands them to a supervisor.

Numbers: ``arch/x86/entry/syscalls/syscall_64.tbl`` and ``include/uapi/asm-generic/unistd.h`` of
Linux. The filter's instructions: ``linux/filter.h`` and ``linux/seccomp.h``. Calls of another
architecture's table on the same processor, which have other numbers, are refused.
"""

from __future__ import annotations

import platform
import struct
import sys
from dataclasses import dataclass
from typing import Final

from edgewise.testing.egress.hook import WRITE_FLAGS

__all__ = ["Table", "build_filter", "table_of_this_machine"]

_X86_64: Final = {
    "write": 1,
    "open": 2,
    "pwrite64": 18,
    "writev": 20,
    "socket": 41,
    "execve": 59,
    "truncate": 76,
    "ftruncate": 77,
    "rename": 82,
    "mkdir": 83,
    "creat": 85,
    "link": 86,
    "unlink": 87,
    "symlink": 88,
    "openat": 257,
    "mkdirat": 258,
    "unlinkat": 263,
    "renameat": 264,
    "linkat": 265,
    "symlinkat": 266,
    "pwritev": 296,
    "renameat2": 316,
    "seccomp": 317,
    "memfd_create": 319,
    "execveat": 322,
    "pwritev2": 328,
}
_AARCH64: Final = {
    "mkdirat": 34,
    "unlinkat": 35,
    "symlinkat": 36,
    "linkat": 37,
    "renameat": 38,
    "truncate": 45,
    "ftruncate": 46,
    "openat": 56,
    "write": 64,
    "writev": 66,
    "pwrite64": 68,
    "pwritev": 70,
    "socket": 198,
    "execve": 221,
    "renameat2": 276,
    "seccomp": 277,
    "memfd_create": 279,
    "execveat": 281,
    "pwritev2": 287,
}
_BOTH: Final = {"io_uring_setup": 425, "pidfd_open": 434, "openat2": 437, "pidfd_getfd": 438}
_NOT_WATCHED: Final = {"seccomp", "pidfd_open", "pidfd_getfd"}
# Refused in every case; the rest goes on once it has been recorded.
_REFUSED: Final = ("socket", "io_uring_setup")
_FLAGS_AT: Final = {"open": 1, "openat": 2}
_OUTPUT: Final = ("write", "writev", "pwrite64", "pwritev", "pwritev2")

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _NOTIFY, _ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000
_EPERM = 1
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32 = 0x40000000


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The system calls of one architecture: its mark for the kernel, and numbers by name."""

    audit: int
    numbers: dict[str, int]

    def name(self, number: int) -> str:
        """Return a watched call's name."""
        return next((name for name, known in self.numbers.items() if known == number), str(number))


def table_of_this_machine() -> Table | None:
    """Return the table for this system, ``None`` where there is none here."""
    if not sys.platform.startswith("linux") or sys.byteorder != "little":
        return None
    machine, bits = platform.machine(), struct.calcsize("P") * 8
    if machine == "x86_64" and bits == 64:
        return Table(audit=0xC000003E, numbers={**_X86_64, **_BOTH})
    if machine == "aarch64" and bits == 64:
        return Table(audit=0xC00000B7, numbers={**_AARCH64, **_BOTH})
    return None


def build_filter(table: Table, *, notify: bool) -> bytes:
    """Return the filter as an array of ``struct sock_filter``.

    Args:
        table: The system calls.
        notify: Whether a supervisor is told; without one, sockets are refused and that is all.
    """
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, table.audit),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
    ]
    for name in table.numbers if notify else _REFUSED:
        if name not in _NOT_WATCHED:
            program += _rule(name, table.numbers[name], notify=notify)
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _rule(name: str, number: int, *, notify: bool) -> list[tuple[int, int, int, int]]:
    """Return what is done with one call; the number is in the accumulator before and after."""
    if not notify:
        return [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    if name in _FLAGS_AT:
        wanted = [(_ANY_BIT, 0, 1, WRITE_FLAGS)]
        argument = _FLAGS_AT[name]
    elif name in _OUTPUT:
        wanted = [(_EQUAL, 1, 0, 1), (_EQUAL, 0, 1, 2)]  # standard output, standard error
        argument = 0
    else:
        return [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _NOTIFY)]
    body = [
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument),
        *wanted,
        (_RETURN, 0, 0, _NOTIFY),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return [(_EQUAL, 0, len(body), number), *body]
