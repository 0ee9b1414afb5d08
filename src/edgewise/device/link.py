"""Whether there is a network at all, told without sending anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from edgewise.core.state import LinkState

__all__ = ["read_link"]

_INTERFACES: Final = Path("/sys/class/net")
# Specified: <linux/if.h> and <linux/if_arp.h>.
_UP: Final = 0x1
_LOOPBACK: Final = 0x8
_RUNNING: Final = ("up", "unknown")  # drivers without an operational state say "unknown"


def read_link() -> LinkState:
    """Return ``online`` where an interface other than the loopback is up, else ``offline``.

    Nothing is sent to find out more: whether a login page or nobody answers behind the interface
    shows when something that is allowed to leave does. ``unknown`` where the system does not tell.

    On Linux files of the kernel are read and no socket is made. Elsewhere psutil asks the system,
    which may make a socket that is never connected.
    """
    try:
        up = _up_on_linux() if sys.platform == "linux" else _up_by_psutil()
    except OSError:
        return LinkState.UNKNOWN
    return LinkState.ONLINE if up else LinkState.OFFLINE


def _up_on_linux() -> bool:
    return any(_is_up(interface) for interface in _INTERFACES.iterdir())


def _is_up(interface: Path) -> bool:
    try:
        flags = int((interface / "flags").read_text("ascii"), 16)
        running = (interface / "operstate").read_text("ascii").strip() in _RUNNING
    except (OSError, ValueError):  # it went away meanwhile, or is no interface
        return False
    return bool(flags & _UP) and not flags & _LOOPBACK and running


def _up_by_psutil() -> bool:
    import psutil  # noqa: PLC0415 - elsewhere than on Linux only

    return any(
        found.isup and "loopback" not in found.flags and not name.startswith("lo")
        for name, found in psutil.net_if_stats().items()
    )
