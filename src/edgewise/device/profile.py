"""The device profile: the properties of one machine that decide how a model runs on it.

Invariants: the digest covers only what stays the same between two probes of one machine; a
runtime's presence here means that it was loaded, not that it was listed. This module holds
values; :func:`edgewise.device.probe.probe` fills them.
"""

from __future__ import annotations

from edgewise.core.canonical import digest_of
from edgewise.core.quantity import Quantity, Unknown
from edgewise.device.sections import (
    AbiInfo,
    AcceleratorInfo,
    BandwidthInfo,
    ClockInfo,
    ContainerInfo,
    ContentionInfo,
    CpuInfo,
    MemoryInfo,
    OsInfo,
    PowerInfo,
    Section,
    StorageInfo,
    ThermalInfo,
)

__all__ = ["DeviceProfile", "RuntimePresence", "profile_digest"]

# Total memory moves by a few MiB with the kernel's own reservations; identity must not.
_MEMORY_STEP_BYTES = 256 << 20


class RuntimePresence(Section, frozen=True, kw_only=True):
    """A runtime that the layer above tried to load.

    Attributes:
        name: Runtime, e.g. ``llamacpp``.
        version: Its version, empty where it did not say.
        can_run: Whether it truly loaded.
        reason: Why not, or what was done to show that it can.
        backends: Backends it executed on, never those it merely lists.
    """

    name: str
    version: str
    can_run: bool
    reason: str
    backends: tuple[str, ...] = ()


class DeviceProfile(Section, frozen=True, kw_only=True, tag_field="type", tag="device-profile"):
    """One machine, as probed.

    Attributes:
        schema_version: Version of this JSON form.
        runtimes: Runtimes that the layer above tried; empty when it was not asked.
    """

    os: OsInfo
    abi: AbiInfo
    cpu: CpuInfo
    memory: MemoryInfo
    storage: StorageInfo
    bandwidth: BandwidthInfo
    contention: ContentionInfo
    power: PowerInfo
    thermal: ThermalInfo
    accelerators: AcceleratorInfo
    container: ContainerInfo
    clock: ClockInfo
    runtimes: tuple[RuntimePresence, ...] = ()
    schema_version: int = 1

    @property
    def digest(self) -> str:
        """Return the SHA-256 over the stable identity fields, as 64 hex digits.

        Raises:
            InputError: a field has no canonical form.
        """
        return profile_digest(os=self.os, abi=self.abi, cpu=self.cpu, memory=self.memory)


def profile_digest(*, os: OsInfo, abi: AbiInfo, cpu: CpuInfo, memory: MemoryInfo) -> str:
    """Return the SHA-256 of the RFC 8785 JSON of what identifies a device, as 64 hex digits.

    Covered: system name, version and build; machine and triple; CPU model; instruction sets;
    logical and physical cores; total memory to the nearest 256 MiB. An unknown field counts as
    null. Not covered: whatever changes between two probes, such as affinity or free memory.

    Raises:
        InputError: a field has no canonical form.
    """
    total = _value(memory.total_bytes)
    if isinstance(total, int):
        total = round(total / _MEMORY_STEP_BYTES) * _MEMORY_STEP_BYTES
    return digest_of(
        {
            "schema_version": 1,
            "os": [_value(os.name), _value(os.version), _value(os.build)],
            "abi": [_value(abi.machine), _value(abi.triple)],
            "cpu_model": _value(cpu.model),
            "cores": [_value(cpu.cores_logical), _value(cpu.cores_physical)],
            "instruction_sets": _value(cpu.instruction_sets),
            "memory_total_bytes": total,
        }
    )


def _value(quantity: Quantity) -> object:
    return None if isinstance(quantity, Unknown) else quantity.value
