"""Put walls around this process, have them proven, and become the command that runs inside.

Run as ``python -I -S launcher.py CONFIG COMMAND…``; it needs the standard library only. It tells
through a pipe what it could do, hands the supervisor the number of its listener, and waits.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_NO_NEW_PRIVILEGES = 38
_SET_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 8, 32
_GET_FLAGS, _IS_UP = 0x8913, 1  # SIOCGIFFLAGS, IFF_UP
# RFC 5737: an address that nobody has; and this machine itself.
_OUTSIDE, _INSIDE = ("192.0.2.1", 9), ("127.0.0.1", 9)


def leave_network() -> dict[str, Any]:
    """Go into a network namespace of its own; return whether it worked, or why not."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_NEW_NETWORK) != 0:
        if libc.unshare(_NEW_USER | _NEW_NETWORK) != 0:
            return {"namespace": False, "why": f"unshare: {os.strerror(ctypes.get_errno())}"}
        try:
            Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
        except OSError as error:
            return {"namespace": False, "why": f"user namespace: {error.strerror}"}
    try:
        return _proven()
    except OSError as error:  # inside another's walls there is no socket to try it with
        return {"namespace": False, "why": f"it cannot be tried: {error.strerror}"}


def _proven() -> dict[str, Any]:
    """Return whether there is really no way out: no interface that is up, and no connection."""
    import fcntl  # noqa: PLC0415 - Linux only
    import socket  # noqa: PLC0415 - before the filter, which refuses it

    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()[2:]
    for name in (line.partition(":")[0].strip() for line in lines):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            said = fcntl.ioctl(probe, _GET_FLAGS, name.encode().ljust(40, b"\0"))
        if int.from_bytes(said[16:18], sys.byteorder) & _IS_UP:
            return {"namespace": False, "why": f"its interface {name} is up"}
    for address in (_OUTSIDE, _INSIDE):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            found = probe.connect_ex(address)
        if found != errno.ENETUNREACH:
            why = f"connecting to {address[0]} gave {errno.errorcode.get(found, found)}"
            return {"namespace": False, "why": why}
    return {"namespace": True, "why": ""}


def set_filter(program: bytes, number: int, *, listen: bool) -> dict[str, Any]:
    """Put the filter on; return the number of the listener, or why there is none.

    Args:
        program: Array of ``struct sock_filter``.
        number: Number of the system call ``seccomp``.
        listen: Whether a supervisor is to be told.
    """

    class Program(ctypes.Structure):  # struct sock_fprog
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return {"filter": False, "filter_why": f"prctl: {os.strerror(ctypes.get_errno())}"}
    wanted = Program(len(program) // 8, program)
    got = -1
    # The second of these is for kernels before 5.19, where a signal repeats what is told.
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER) if listen else (0,):
        got = libc.syscall(
            ctypes.c_long(number),
            ctypes.c_ulong(_SET_FILTER),
            ctypes.c_ulong(flags),
            ctypes.byref(wanted),
        )
        if got >= 0:
            break
    if got < 0:
        return {"filter": False, "filter_why": f"seccomp: {os.strerror(ctypes.get_errno())}"}
    return {"filter": True, "filter_why": "", "listener": got if listen else None}


def socket_refused() -> bool:
    """Return whether native code is refused a socket."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.socket(2, 1, 0)  # AF_INET, SOCK_STREAM
    if handle >= 0:
        os.close(handle)
    return bool(handle < 0 and ctypes.get_errno() == errno.EPERM)


def main(argv: list[str]) -> None:
    """Do as the configuration says; does not return."""
    config, command = json.loads(argv[1]), argv[2:]
    told: dict[str, Any] = {}
    if config["namespace"]:
        told |= leave_network()
    if config["program"]:
        program = bytes.fromhex(config["program"])
        told |= set_filter(program, config["seccomp"], listen=config["listen"])
    _say(config["say"], told)
    os.read(config["hear"], 1)
    _say(config["say"], {"refused": socket_refused() if told.get("filter") else None})
    os.read(config["hear"], 1)
    os.close(config["say"])
    os.close(config["hear"])
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command of the caller
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _say(pipe: int, value: dict[str, Any]) -> None:
    os.write(pipe, json.dumps(value).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv)
