"""The sections of a device profile, one frozen struct each.

Invariants: every leaf is a quantity, so a reader can tell a reading from a guess and from
"not known, and why"; bytes are ints; nothing is shown as zero because it could not be read.
This module holds values; the readers beside it fill them.
"""

from __future__ import annotations

import msgspec

from edgewise.core.quantity import Measured, Quantity, Unknown

__all__ = [
    "AbiInfo",
    "AcceleratorInfo",
    "BandwidthInfo",
    "BandwidthPoint",
    "ClockInfo",
    "ContainerInfo",
    "ContentionInfo",
    "CpuInfo",
    "MemoryInfo",
    "OsInfo",
    "PowerInfo",
    "Section",
    "StorageInfo",
    "ThermalInfo",
    "fact",
]


def fact(value: bool | float | str | tuple[str, ...], source: str) -> Measured:
    """Return one reading taken on this machine.

    Raises:
        InputError: the value is not finite or the source is empty.
    """
    return Measured(value=value, source=source)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of a profile."""


class OsInfo(Section, frozen=True, kw_only=True):
    """The operating system.

    Attributes:
        name: Family or distribution, e.g. ``debian``.
        version: Its version, e.g. ``12``.
        build: Build of the system; the kernel release where the system names none.
        kernel: Kernel name and release.
        libc: C library and version of this process.
    """

    name: Quantity
    version: Quantity
    build: Quantity
    kernel: Quantity
    libc: Quantity


class AbiInfo(Section, frozen=True, kw_only=True):
    """The binary interface.

    Attributes:
        machine: Instruction set architecture, e.g. ``x86_64``.
        triple: Machine, system and C library, e.g. ``x86_64-linux-gnu``.
    """

    machine: Quantity
    triple: Quantity


class CpuInfo(Section, frozen=True, kw_only=True):
    """The processor.

    Attributes:
        model: Marketing or part name.
        vendor: Who made it.
        soc: System on chip or board, where the firmware names one.
        cores_logical: Logical cores online.
        cores_physical: Physical cores online.
        cores_usable: The least of the affinity mask and the control group's quota; may be
            fractional (1.5).
        instruction_sets: Those that change kernels, sorted, as the kernel spells them.
        simd_bits: Widest vector register that those sets imply, in bits.
        l2_bytes: One L2 cache.
        l3_bytes: One L3 cache.
        l3_total_bytes: All L3 caches that the usable cores reach.
        frequency_max_hz: Highest frequency the driver states.
        frequency_limit_ratio: Present cap over that maximum.
    """

    model: Quantity
    vendor: Quantity
    soc: Quantity
    cores_logical: Quantity
    cores_physical: Quantity
    cores_usable: Quantity
    instruction_sets: Quantity
    simd_bits: Quantity
    l2_bytes: Quantity
    l3_bytes: Quantity
    l3_total_bytes: Quantity
    frequency_max_hz: Quantity
    frequency_limit_ratio: Quantity


class MemoryInfo(Section, frozen=True, kw_only=True):
    """Main memory.

    Attributes:
        total_bytes: Memory the kernel manages.
        available_bytes: What the kernel can give without swapping.
        limit_bytes: Tightest control-group or process limit.
        headroom_bytes: What is left below the control-group limits.
        budget_bytes: The least of available, headroom and limit: what may be allocated now.
        swap_total_bytes: Swap configured.
        swap_free_bytes: Swap unused.
        page_bytes: Base page size.
        huge_page_bytes: Size of a transparent huge page.
        transparent_huge_pages: ``always``, ``madvise`` or ``never``.
        hugetlb_tunable: Whether the C library has ``glibc.malloc.hugetlb``.
    """

    total_bytes: Quantity
    available_bytes: Quantity
    limit_bytes: Quantity
    headroom_bytes: Quantity
    budget_bytes: Quantity
    swap_total_bytes: Quantity
    swap_free_bytes: Quantity
    page_bytes: Quantity
    huge_page_bytes: Quantity
    transparent_huge_pages: Quantity
    hugetlb_tunable: Quantity


class StorageInfo(Section, frozen=True, kw_only=True):
    """The volume that holds the home.

    Attributes:
        path: Folder whose volume was read.
        free_bytes: Free to this user.
        total_bytes: Size of the volume.
        read_only: Whether it is mounted read-only.
        filesystem: File system type.
    """

    path: Quantity
    free_bytes: Quantity
    total_bytes: Quantity
    read_only: Quantity
    filesystem: Quantity


class BandwidthPoint(Section, frozen=True, kw_only=True):
    """Read bandwidth reached by a number of threads.

    Attributes:
        threads: Threads that read at once.
        read_bytes_s: Bytes a second, all threads together.
    """

    threads: int
    read_bytes_s: Quantity


class BandwidthInfo(Section, frozen=True, kw_only=True):
    """Memory bandwidth and matrix throughput: floors, reached by the kernel the source names.

    Attributes:
        read_base_bytes_s: Best sequential read with base pages.
        read_huge_bytes_s: Best sequential read with huge pages.
        base_points: By thread count, base pages.
        huge_points: By thread count, huge pages.
        matmul_gflops: f32 matrix product throughput, in 1e9 operations a second.
    """

    read_base_bytes_s: Quantity
    read_huge_bytes_s: Quantity
    matmul_gflops: Quantity
    base_points: tuple[BandwidthPoint, ...] = ()
    huge_points: tuple[BandwidthPoint, ...] = ()

    @classmethod
    def unknown(cls, reason: str) -> BandwidthInfo:
        """Return a section in which nothing was measured, for one reason."""
        gap = Unknown(reason=reason)
        return cls(read_base_bytes_s=gap, read_huge_bytes_s=gap, matmul_gflops=gap)


class ContentionInfo(Section, frozen=True, kw_only=True):
    """Whether other work competes for the usable cores right now.

    Attributes:
        contended: The verdict, every reason for it in ``reasons``; ``None`` where not watched.
        reasons: One sentence each; empty when not contended.
        load_1min: Load average of the last minute.
        runnable_others: Threads ready to run, other than the reader.
        others_busy_cores: Cores' worth of work by other processes on the usable cores.
        steal_ratio: Share of time the hypervisor took.
        pressure_some_ratio: Share of the last 10 s in which some task waited for a core.
        throttled_ratio: Share of quota periods in which this group was throttled, in the window.
        spin_share_ratio: CPU time over wall time of the most delayed of our spinning threads.
    """

    contended: bool | None
    reasons: tuple[str, ...]
    load_1min: Quantity
    runnable_others: Quantity
    others_busy_cores: Quantity
    steal_ratio: Quantity
    pressure_some_ratio: Quantity
    throttled_ratio: Quantity
    spin_share_ratio: Quantity


class PowerInfo(Section, frozen=True, kw_only=True):
    """Battery.

    Attributes:
        battery_present: Whether a battery powers this machine.
        battery_ratio: Charge from 0 to 1.
        charging: Whether external power is charging it or has filled it.
    """

    battery_present: Quantity
    battery_ratio: Quantity
    charging: Quantity


class ThermalInfo(Section, frozen=True, kw_only=True):
    """Temperatures.

    Attributes:
        sensors: Names of the sensors read.
        highest_c: The highest reading, in degrees Celsius.
        throttle_count: Thermal throttling events since boot, all cores.
    """

    sensors: Quantity
    highest_c: Quantity
    throttle_count: Quantity


class AcceleratorInfo(Section, frozen=True, kw_only=True):
    """Accelerators as seen, never as usable: only a runtime that loads proves use.

    Attributes:
        device_nodes: Device nodes of GPUs and NPUs.
        pci_devices: ``vendor:device`` of display and accelerator functions on PCI.
    """

    device_nodes: Quantity
    pci_devices: Quantity


class ContainerInfo(Section, frozen=True, kw_only=True):
    """Containment.

    Attributes:
        cgroup_version: ``v1``, ``v2`` or ``hybrid``.
        cgroup_path: Group that limits this process's memory.
        container: Kind of container that the markers point at, or ``none``.
    """

    cgroup_version: Quantity
    cgroup_path: Quantity
    container: Quantity


class ClockInfo(Section, frozen=True, kw_only=True):
    """Clocks.

    Attributes:
        wall_utc: Time of the probe, ISO 8601.
        source: Hardware counter behind the kernel's clock.
        resolution_s: Resolution of the monotonic clock.
        synchronised: Whether the kernel counts the wall clock as synchronised.
    """

    wall_utc: Quantity
    source: Quantity
    resolution_s: Quantity
    synchronised: Quantity
