"""The operating system, binary interface, clocks, and accelerator nodes.

Invariant: an accelerator is only ever reported as seen; whether a runtime can use it is found
by loading that runtime, elsewhere.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from edgewise.core.quantity import Declared, Estimated, Quantity, Unknown
from edgewise.device.foreign import sysctl
from edgewise.device.sections import AbiInfo, AcceleratorInfo, ClockInfo, OsInfo, fact
from edgewise.device.tree import entries, key_values, read_text

__all__ = ["libc_version", "read_abi", "read_accelerators", "read_clock", "read_os"]

_NODES = (
    "dri/card*", "dri/renderD*", "nvidia[0-9]*", "kfd", "dxg", "accel/accel*", "accel[0-9]*",
    "apex_*", "mali*", "kgsl-3d*", "hailo*", "davinci*", "rknpu*", "galcore", "ethosu*",
)  # fmt: skip
# PCI class codes: 0x03 display controller, 0x12 processing accelerator.
_PCI_CLASSES = ("0x03", "0x12")
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_TIMEX_BYTES = 512  # sizeof(struct timex) is 208 on 64-bit Linux; the rest is slack


def libc_version() -> tuple[str, str] | None:
    """Return the C library's name and version, such as ``("glibc", "2.36")``, or ``None``."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        text = ""
    name, _, version = text.partition(" ")
    if version:
        return name, version
    name, version = platform.libc_ver()
    return (name, version) if name else None


def read_os(root: Path = Path("/"), *, system: str = sys.platform) -> OsInfo:
    """Return the operating system section.

    Args:
        root: Root of the tree that holds ``/etc`` and ``/proc``.
        system: ``sys.platform`` of the machine.
    """
    libc = libc_version()
    libc_fact: Quantity = (
        fact(" ".join(libc), "the C library of this process")
        if libc
        else Unknown(reason=f"the C library of this process does not tell its version on {system}")
    )
    if system.startswith("linux"):
        return _linux(root, libc_fact)
    release = platform.release()
    kernel: Quantity = fact(f"{platform.system()} {release}".strip(), "platform.release")
    if system == "darwin":
        version, build = platform.mac_ver()[0], sysctl().get("kern.osversion", "")
        return OsInfo(
            name=fact("macos", "sys.platform"),
            version=_or_gap(version, "platform.mac_ver", "macOS told no version"),
            build=_or_gap(build, "sysctl kern.osversion", "sysctl told no build"),
            kernel=kernel,
            libc=libc_fact,
        )
    return OsInfo(
        name=fact("windows" if system == "win32" else system, "sys.platform"),
        version=_or_gap(release, "platform.release", "the platform told no release"),
        build=_or_gap(platform.version(), "platform.version", "the platform told no build"),
        kernel=kernel,
        libc=libc_fact,
    )


def _or_gap(text: str, source: str, reason: str) -> Quantity:
    return fact(text, source) if text else Unknown(reason=reason)


def _linux(root: Path, libc: Quantity) -> OsInfo:
    path = "/etc/os-release"
    text = read_text(root, path) or read_text(root, "usr/lib/os-release")
    release = {key: value.strip("\"'") for key, value in key_values(text, "=").items()}
    words = (read_text(root, "proc/version") or "").split()
    kernel = read_text(root, "proc/sys/kernel/osrelease") or "".join(words[2:3])
    if build := release.get("BUILD_ID", ""):
        build_fact: Quantity = fact(build, f"{path} BUILD_ID")
    else:
        source = "kernel release (os-release names no build)"
        build_fact = _or_gap(kernel, source, "neither os-release nor the kernel names a build")
    return OsInfo(
        name=_or_gap(release.get("ID", ""), f"{path} ID", f"{path} has no ID"),
        version=_or_gap(
            release.get("VERSION_ID", ""), f"{path} VERSION_ID", f"{path} has no VERSION_ID"
        ),
        build=build_fact,
        kernel=_or_gap(
            kernel and f"Linux {kernel}",
            "/proc/sys/kernel/osrelease or /proc/version",
            "neither /proc/sys/kernel/osrelease nor /proc/version can be read",
        ),
        libc=libc,
    )


def read_abi(*, system: str = sys.platform) -> AbiInfo:
    """Return the binary interface of this process.

    Args:
        system: ``sys.platform`` of the machine.
    """
    raw = platform.machine().lower()
    if not raw:
        gap = Unknown(reason="the platform told no machine")
        return AbiInfo(machine=gap, triple=gap)
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(raw, raw)
    wide = sys.maxsize > 2**32
    if machine in ("x86_64", "aarch64") and not wide:
        machine = {"x86_64": "i686", "aarch64": "armv7l"}[machine]
    if system.startswith("linux"):
        libc = libc_version()
        suffix = "linux-gnu" if libc and libc[0] == "glibc" else "linux-musl" if libc else ""
    else:
        suffix = {"darwin": "apple-darwin", "win32": "pc-windows-msvc"}.get(system, "")
    triple: Quantity = (
        Estimated(value=f"{machine}-{suffix}", source="machine, system and C library")
        if suffix
        else Unknown(reason=f"the C library is not known on {system}")
    )
    return AbiInfo(
        machine=fact(machine, f"platform.machine ({raw}), pointers of {64 if wide else 32} bits"),
        triple=triple,
    )


def read_clock(root: Path = Path("/"), *, system: str = sys.platform) -> ClockInfo:
    """Return the clocks.

    Args:
        root: Root of the tree that holds ``/sys``.
        system: ``sys.platform`` of the machine.
    """
    path = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    counter = read_text(root, path) if system.startswith("linux") else None
    return ClockInfo(
        wall_utc=fact(datetime.now(UTC).isoformat(timespec="seconds"), "the system's wall clock"),
        source=_or_gap(counter or "", f"/{path}", f"no clock source is named on {system}"),
        resolution_s=Declared(
            value=time.get_clock_info("perf_counter").resolution,
            source="time.get_clock_info(perf_counter)",
        ),
        synchronised=_synchronised(system),
    )


def _synchronised(system: str) -> Quantity:
    if not system.startswith("linux"):
        return Unknown(reason=f"not read on {system}")
    try:
        # A zeroed request (modes = 0) only reads.
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return Unknown(reason="the C library has no adjtimex")
    if state < 0:
        return Unknown(reason="adjtimex was refused")
    return fact(state != _TIME_ERROR, "adjtimex")


def read_accelerators(root: Path = Path("/"), *, system: str = sys.platform) -> AcceleratorInfo:
    """Return the GPU and NPU nodes that are seen; nothing here says that they can be used.

    Args:
        root: Root of the tree that holds ``/dev`` and ``/sys``.
        system: ``sys.platform`` of the machine.
    """
    if not system.startswith("linux"):
        gap = Unknown(reason=f"not read on {system}")
        return AcceleratorInfo(device_nodes=gap, pci_devices=gap)
    device = root / "dev"
    nodes = sorted({f"/dev/{node.relative_to(device)}" for p in _NODES for node in device.glob(p)})
    functions = entries(root, "sys/bus/pci/devices")
    pci: Quantity = Unknown(reason="/sys/bus/pci is absent")
    if functions is not None:
        names = [
            f"{_hex(folder, 'vendor')}:{_hex(folder, 'device')}"
            for folder in functions
            if (read_text(folder, "class") or "").startswith(_PCI_CLASSES)
        ]
        pci = Declared(value=tuple(names), source="PCI class codes; seen, not shown to be usable")
    return AcceleratorInfo(
        device_nodes=Declared(
            value=tuple(nodes), source="nodes under /dev; seen, not shown to be usable"
        ),
        pci_devices=pci,
    )


def _hex(folder: Path, name: str) -> str:
    return (read_text(folder, name) or "?").removeprefix("0x")
