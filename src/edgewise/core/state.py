"""The state a device is in right now, as the router and admission see it.

Each signal is a quantity or an enum with ``unknown`` as a value of its own: an unread signal is
never taken for a good one.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from edgewise.core.quantity import Quantity, Unknown

__all__ = [
    "DeviceState",
    "LinkState",
    "MemoryState",
    "PowerState",
    "StorageState",
    "ThermalState",
]


class MemoryState(StrEnum):
    """Memory pressure as the kernel reports it."""

    NORMAL = "normal"
    PRESSURE = "pressure"
    UNKNOWN = "unknown"


class StorageState(StrEnum):
    """Free space on the volume that holds the home."""

    NORMAL = "normal"
    LOW = "low"
    UNKNOWN = "unknown"


class PowerState(StrEnum):
    """Battery state; ``mains`` means that there is no battery."""

    MAINS = "mains"
    CHARGING = "charging"
    NORMAL = "normal"
    LOW = "low"
    UNKNOWN = "unknown"


class ThermalState(StrEnum):
    """Thermal state in the four steps that phone platforms use."""

    NOMINAL = "nominal"
    FAIR = "fair"
    SERIOUS = "serious"
    CRITICAL = "critical"
    UNKNOWN = "unknown"


class LinkState(StrEnum):
    """State of the network, as far as a server outside can be reached over it.

    ``CAPTIVE``: something answers in its place, e.g. a login page. ``WEAK``: connections break or
    hang.
    """

    ONLINE = "online"
    WEAK = "weak"
    CAPTIVE = "captive"
    OFFLINE = "offline"
    UNKNOWN = "unknown"


class DeviceState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reading of the live signals.

    Attributes:
        memory_available_bytes: What a new allocation may use: the least of the kernel's
            available memory and the headroom of the control group.
        storage_free_bytes: Free space where the home lives.
        memory: Memory pressure.
        storage: Storage headroom.
        power: Battery state.
        thermal: Thermal state.
        link: State of the network; nobody looks unless something may leave.
        sources: Where each enum came from, by field name.
    """

    memory_available_bytes: Quantity = Unknown(reason="not read")
    storage_free_bytes: Quantity = Unknown(reason="not read")
    memory: MemoryState = MemoryState.UNKNOWN
    storage: StorageState = StorageState.UNKNOWN
    power: PowerState = PowerState.UNKNOWN
    thermal: ThermalState = ThermalState.UNKNOWN
    link: LinkState = LinkState.UNKNOWN
    sources: dict[str, str] = {}
