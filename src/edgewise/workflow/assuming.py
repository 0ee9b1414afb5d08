"""What is taken for true, and not read, when somebody asks where a request would run."""

from __future__ import annotations

from typing import Any

import msgspec

from edgewise.core.quantity import Declared
from edgewise.core.state import (
    DeviceState,
    LinkState,
    MemoryState,
    PowerState,
    StorageState,
    ThermalState,
)
from edgewise.route import RouteEvidence
from edgewise.route.facts import Doubt

__all__ = ["Assumed"]

_SOURCE = "assumed"


class Assumed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to assume; ``None`` for what is read.

    Attributes:
        link: State of the network.
        power: Battery state.
        thermal: Thermal state.
        memory: Memory pressure.
        storage: Storage headroom.
        memory_available_bytes: What a new allocation may use.
        unsure: Whether a calibrated doubt speaks against the local answer.
    """

    link: LinkState | None = None
    power: PowerState | None = None
    thermal: ThermalState | None = None
    memory: MemoryState | None = None
    storage: StorageState | None = None
    memory_available_bytes: int | None = None
    unsure: bool | None = None

    def state(self, read: DeviceState) -> DeviceState:
        """Return the device's state with what is assumed in place of what was read."""
        names = ("link", "power", "thermal", "memory", "storage")
        found: dict[str, Any] = {
            name: value for name in names if (value := getattr(self, name)) is not None
        }
        sources = {**read.sources, **dict.fromkeys(found, _SOURCE)}
        if self.memory_available_bytes is not None:
            available = Declared(value=self.memory_available_bytes, source=_SOURCE)
            found["memory_available_bytes"] = available
        return msgspec.structs.replace(read, **found, sources=sources)

    def evidence(self, known: RouteEvidence) -> RouteEvidence:
        """Return the evidence with the doubt that is assumed."""
        if self.unsure is None:
            return known
        words = "unsure of its answer" if self.unsure else "sure of its answer"
        doubt = Doubt(unsure=self.unsure, calibrated=True, reason=f"assumed: the model is {words}")
        return msgspec.structs.replace(known, doubt=doubt)

    def told(self) -> dict[str, str]:
        """Return what is assumed, by name, in words."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        found = {name: str(value) for name, value in values.items() if value is not None}
        if found.pop("unsure", None) is not None:
            found["doubt"] = "unsure" if self.unsure else "sure"
        if (power := found.pop("power", None)) is not None:
            found["battery"] = power
        return found
