"""The routing policy: what may run here, versioned, as a value."""

from __future__ import annotations

import msgspec

from edgewise.core.canonical import digest_of
from edgewise.core.request import DataClass

__all__ = ["DEFAULT_POLICY", "Policy"]


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the router may decide.

    Attributes:
        name: Name and revision a person chose.
        tasks: Task classes the feature answers.
        data_classes: Data classes it takes.
        decline_when_thermal_critical: Whether a device in the critical thermal state declines.
        decline_when_battery_low: Whether a device with a low battery declines.
    """

    schema_version: int = 1
    name: str
    tasks: tuple[str, ...] = ("chat",)
    data_classes: tuple[DataClass, ...] = tuple(DataClass)
    decline_when_thermal_critical: bool = True
    decline_when_battery_low: bool = False

    @property
    def version(self) -> str:
        """Return the name with the head of the policy's digest."""
        return f"{self.name}@{digest_of(self)[:12]}"


DEFAULT_POLICY = Policy(name="local-default-1")
