"""The live state of this machine, cheap enough to read before every request.

Invariants: no sleeping, no measuring, a few small files; a signal that cannot be read is
``unknown`` with its reason in ``sources``, never taken for a good one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from edgewise.core.quantity import Quantity, Unknown
from edgewise.core.state import DeviceState, MemoryState, StorageState
from edgewise.device.cgroup import memory_pressure_ratio, pressure_some_ratio, under_oom
from edgewise.device.memory import available_now
from edgewise.device.power import power_state, read_power, thermal_state
from edgewise.device.storage import read_storage
from edgewise.device.tree import key_values, read_text

__all__ = ["memory_state", "read_state", "storage_state"]

# Thresholds specified here.
_PRESSURE_RATIO = 0.10  # of the last 10 s, some task waited for memory
_AVAILABLE_RATIO = 0.05  # of total memory
_STORAGE_RATIO = 0.05  # of the volume, within the two bounds below
_STORAGE_LEAST_BYTES, _STORAGE_MOST_BYTES = 512 << 20, 8 << 30


def read_state(
    storage_path: Path, root: Path = Path("/"), *, system: str = sys.platform
) -> DeviceState:
    """Return the live signals.

    Args:
        storage_path: Folder whose volume counts; it need not exist yet.
        root: Root of the tree that holds ``/proc`` and ``/sys``.
        system: ``sys.platform`` of the machine.
    """
    available = available_now(root, system=system)
    storage = read_storage(storage_path, root)
    memory, memory_source = memory_state(available, root, system=system)
    space, space_source = storage_state(storage.free_bytes, storage.total_bytes, storage.read_only)
    power, power_source = power_state(read_power(root, system=system))
    thermal, thermal_source = thermal_state(root, system=system)
    return DeviceState(
        memory_available_bytes=available,
        storage_free_bytes=storage.free_bytes,
        memory=memory,
        storage=space,
        power=power,
        thermal=thermal,
        sources={
            "memory": memory_source,
            "storage": space_source,
            "power": power_source,
            "thermal": thermal_source,
        },
    )


def memory_state(
    available_bytes: Quantity, root: Path = Path("/"), *, system: str = sys.platform
) -> tuple[MemoryState, str]:
    """Return the memory pressure and where it came from.

    Args:
        available_bytes: What a new allocation may use.
        root: Root of the tree that holds ``/proc`` and ``/sys``.
        system: ``sys.platform`` of the machine.
    """
    if not system.startswith("linux"):
        return MemoryState.UNKNOWN, f"not read on {system}"
    if under_oom(root):
        return MemoryState.PRESSURE, "cgroup v1 memory.oom_control under_oom"
    ratios = {
        "cgroup memory.pressure some avg10": memory_pressure_ratio(root),
        "/proc/pressure/memory some avg10": pressure_some_ratio(
            read_text(root, "proc/pressure/memory")
        ),
    }
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    for name, ratio in known.items():
        if ratio >= _PRESSURE_RATIO:
            return MemoryState.PRESSURE, f"{name} {ratio:.0%}"
    total = key_values(read_text(root, "proc/meminfo"), ":").get("MemTotal", "").split(" ")[0]
    if not isinstance(available_bytes, Unknown) and total.isdigit() and int(total):
        share = available_bytes.number / (int(total) * 1024)
        source = f"{share:.0%} of memory may be allocated"
        if share < _AVAILABLE_RATIO:
            return MemoryState.PRESSURE, f"{source} ({available_bytes.source})"
        if not known:
            return MemoryState.NORMAL, f"{source}; no pressure file"
    if not known:
        return MemoryState.UNKNOWN, "neither a pressure file nor available memory can be read"
    name, ratio = max(known.items(), key=lambda item: item[1])
    return MemoryState.NORMAL, f"{name} {ratio:.0%}"


def storage_state(
    free_bytes: Quantity, total_bytes: Quantity, read_only: Quantity
) -> tuple[StorageState, str]:
    """Return the storage headroom and where it came from.

    Low means less free than a twentieth of the volume, but at least 512 MiB and at most 8 GiB;
    a volume that cannot be written is low.

    Args:
        free_bytes: Free space.
        total_bytes: Size of the volume.
        read_only: Whether it is mounted read-only.
    """
    if not isinstance(read_only, Unknown) and read_only.value:
        return StorageState.LOW, "the volume is mounted read-only"
    if isinstance(free_bytes, Unknown):
        return StorageState.UNKNOWN, free_bytes.reason
    share = 0.0 if isinstance(total_bytes, Unknown) else total_bytes.number * _STORAGE_RATIO
    limit = min(_STORAGE_MOST_BYTES, max(_STORAGE_LEAST_BYTES, int(share)))
    state = StorageState.LOW if free_bytes.number < limit else StorageState.NORMAL
    return state, f"{free_bytes.source}; low under {limit} bytes"
