"""The processor: model, cores, instruction sets, caches, frequency.

Invariants: instruction sets are those that every listed core has; usable cores are the least of
the affinity mask and the control group's quota, over all enclosing groups. Linux is read from
``/proc`` and ``/sys`` below a root; macOS through sysctl; elsewhere only what Python knows.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from edgewise.core.quantity import Declared, Estimated, Quantity, Unknown
from edgewise.device.cgroup import cpu_quota
from edgewise.device.foreign import sysctl
from edgewise.device.sections import CpuInfo, fact
from edgewise.device.tree import cpu_list, entries, key_values, read_int, read_text

__all__ = ["affinity", "pin_thread", "read_cpu", "usable_cpus"]

# The sets that make a runtime pick another kernel, as Linux spells them.
_INSTRUCTION_SETS = frozenset({
    "sse4_2", "avx", "avx2", "f16c", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512vl",
    "avx512_vnni", "avx512vbmi", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
    "sha_ni", "neon", "asimd", "asimddp", "asimdhp", "fphp", "i8mm", "bf16", "svei8mm", "sve",
    "sve2", "sme", "lasx", "lsx",
})  # fmt: skip
_SIMD_BITS = (
    ("avx512f", 512),
    ("avx2", 256),
    ("lasx", 256),
    ("avx", 256),
    ("asimd", 128),
    ("neon", 128),
    ("sse4_2", 128),
    ("lsx", 128),
)
# Arm Ltd., "MIDR_EL1 implementer codes".
_IMPLEMENTERS = {
    0x41: "ARM", 0x42: "Broadcom", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA",
    0x51: "Qualcomm", 0x53: "Samsung", 0x61: "Apple", 0x69: "Intel", 0x6D: "Microsoft",
    0xC0: "Ampere",
}  # fmt: skip


def affinity() -> frozenset[int] | None:
    """Return the CPUs that this process may run on, or ``None`` where the system has no mask."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return None


def pin_thread(index: int) -> None:
    """Bind the calling thread to one usable CPU; two threads woken together may share one."""
    cpus = sorted(affinity() or ())
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {cpus[index % len(cpus)]})


def usable_cpus(root: Path = Path("/"), *, mask: frozenset[int] | None = None) -> Quantity:
    """Return how many cores this process may use, in cores; fractional under a quota.

    Args:
        root: Root of the tree that holds ``/proc`` and ``/sys``.
        mask: CPUs to assume instead of this process's own mask.
    """
    mask = affinity() if mask is None else mask
    count = len(mask) if mask else os.cpu_count()
    name = "affinity mask" if mask else "os.cpu_count"
    quota = cpu_quota(root)
    if not isinstance(quota, Unknown) and (count is None or quota.number < count):
        return fact(quota.number, f"{quota.source} (below the {name}: {count})")
    if count is None:
        return Unknown(reason="neither an affinity mask nor a core count is available")
    return fact(count, name)


def read_cpu(
    root: Path = Path("/"),
    *,
    system: str = sys.platform,
    mask: frozenset[int] | None = None,
) -> CpuInfo:
    """Return the processor section.

    Args:
        root: Root of the tree that holds ``/proc`` and ``/sys``.
        system: ``sys.platform`` of the machine.
        mask: CPUs to assume instead of this process's own mask.
    """
    mask = affinity() if mask is None else mask
    if system.startswith("linux"):
        return _linux(root, mask)
    return _elsewhere(root, system)


def _linux(root: Path, mask: frozenset[int] | None) -> CpuInfo:
    blocks = [
        key_values(block, ":") for block in (read_text(root, "proc/cpuinfo") or "").split("\n\n")
    ]
    cores = [block for block in blocks if "processor" in block]
    sets = _instruction_sets(cores)
    l3_one, l3_all = _cache(root, 3, mask)
    maximum = read_int(root, "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    limit = read_int(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq")
    no_driver = Unknown(reason="no cpufreq driver")
    return CpuInfo(
        model=_model(cores),
        vendor=_vendor(cores),
        soc=_soc(root),
        cores_logical=_logical(root, cores),
        cores_physical=_physical(root, cores),
        cores_usable=usable_cpus(root, mask=mask),
        instruction_sets=sets,
        simd_bits=_simd_bits(sets),
        l2_bytes=_cache(root, 2, mask)[0],
        l3_bytes=l3_one,
        l3_total_bytes=l3_all,
        frequency_max_hz=Declared(value=maximum * 1000, source="cpufreq cpuinfo_max_freq, cpu0")
        if maximum
        else no_driver,
        frequency_limit_ratio=fact(limit / maximum, "cpufreq scaling_max_freq / cpuinfo_max_freq")
        if maximum and limit
        else no_driver,
    )


def _distinct(cores: list[dict[str, str]], key: str) -> list[str]:
    return sorted({core[key] for core in cores if core.get(key)})


def _model(cores: list[dict[str, str]]) -> Quantity:
    for key in ("model name", "Model Name", "cpu model"):
        if names := _distinct(cores, key):
            return fact(" + ".join(names), f"/proc/cpuinfo {key}")
    if parts := _distinct(cores, "CPU part"):
        text = f"{' + '.join(_implementers(cores))} part {' + '.join(parts)}"
        return fact(text.strip(), "/proc/cpuinfo CPU implementer and part")
    return Unknown(reason="/proc/cpuinfo names no model")


def _vendor(cores: list[dict[str, str]]) -> Quantity:
    names = _distinct(cores, "vendor_id") or _implementers(cores)
    if names:
        return fact(" + ".join(names), "/proc/cpuinfo vendor_id or CPU implementer")
    return Unknown(reason="/proc/cpuinfo names no vendor")


def _implementers(cores: list[dict[str, str]]) -> list[str]:
    names = []
    for code in _distinct(cores, "CPU implementer"):
        try:
            names.append(_IMPLEMENTERS.get(int(code, 16), code))
        except ValueError:
            names.append(code)
    return names


def _soc(root: Path) -> Quantity:
    for path in ("sys/firmware/devicetree/base/model", "sys/devices/soc0/machine"):
        if name := read_text(root, path):
            return fact(name, f"/{path}")
    return Unknown(reason="the firmware names no system on chip or board")


def _logical(root: Path, cores: list[dict[str, str]]) -> Quantity:
    online = cpu_list(read_text(root, "sys/devices/system/cpu/online"))
    if online:
        return fact(len(online), "/sys/devices/system/cpu/online")
    if cores:
        return fact(len(cores), "/proc/cpuinfo processors")
    return Unknown(reason="neither /sys/devices/system/cpu nor /proc/cpuinfo lists cores")


def _physical(root: Path, cores: list[dict[str, str]]) -> Quantity:
    places: set[tuple[int | None, int]] = set()
    for folder in entries(root, "sys/devices/system/cpu", "cpu[0-9]*") or ():
        package = read_int(folder, "topology/physical_package_id")
        core = read_int(folder, "topology/core_id")
        if core is not None:
            places.add((package, core))
    if places:
        return fact(len(places), "/sys/devices/system/cpu topology")
    pairs = {(c.get("physical id"), c["core id"]) for c in cores if "core id" in c}
    if pairs:
        return fact(len(pairs), "/proc/cpuinfo core ids")
    return Unknown(reason="the topology of the cores cannot be read")


def _instruction_sets(cores: list[dict[str, str]]) -> Quantity:
    per_core = [set((core.get("flags") or core.get("Features") or "").split()) for core in cores]
    if not per_core or not all(per_core):
        return Unknown(reason="/proc/cpuinfo lists no flags")
    shared = set.intersection(*per_core) & _INSTRUCTION_SETS
    if "asimd" in shared:
        shared.add("neon")  # AArch64 spells NEON asimd
    return fact(tuple(sorted(shared)), "/proc/cpuinfo flags that every core has")


def _simd_bits(sets: Quantity) -> Quantity:
    if isinstance(sets, Unknown) or not isinstance(sets.value, tuple):
        return Unknown(reason="the instruction sets are not known")
    for name, bits in _SIMD_BITS:
        if name in sets.value:
            note = " (scalable vectors may be wider)" if "sve" in sets.value else ""
            return Estimated(value=bits, source=f"register width of {name}{note}")
    return Unknown(reason="no known vector instruction set")


def _cache(root: Path, level: int, mask: frozenset[int] | None) -> tuple[Quantity, Quantity]:
    """Return the size of one cache of the level and of all that the usable cores reach."""
    found: dict[str, int] = {}
    for folder in entries(root, "sys/devices/system/cpu", "cpu[0-9]*") or ():
        number = folder.name.removeprefix("cpu")
        if not number.isdigit() or (mask and int(number) not in mask):
            continue
        for cache in entries(folder, "cache", "index*") or ():
            kind = read_text(cache, "type")
            size = _size_bytes(read_text(cache, "size"))
            if read_int(cache, "level") == level and kind != "Instruction" and size:
                found[read_text(cache, "shared_cpu_list") or number] = size
    if not found:
        gap = Unknown(reason=f"no level {level} cache is listed under /sys/devices/system/cpu")
        return gap, gap
    source = f"/sys/devices/system/cpu cache, level {level}"
    return (
        fact(max(found.values()), source),
        fact(sum(found.values()), f"{source}, all of the usable cores"),
    )


def _size_bytes(text: str | None) -> int | None:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    digits, unit = (text or "").rstrip("KMG"), (text or "")[-1:]
    return int(digits) * units.get(unit, 1) if digits.isdigit() else None


def _elsewhere(root: Path, system: str) -> CpuInfo:
    gap = Unknown(reason=f"not read on {system}")
    names: Mapping[str, str] = sysctl() if system == "darwin" else {}

    def number(key: str) -> Quantity:
        text = names.get(key, "")
        return fact(int(text), f"sysctl {key}") if text.isdigit() else gap

    model = names.get("machdep.cpu.brand_string") or platform.processor()
    arm = ("asimddp", "DotProd"), ("i8mm", "I8MM"), ("bf16", "BF16"), ("fphp", "FP16")
    sets = {ours for ours, theirs in arm if names.get(f"hw.optional.arm.FEAT_{theirs}") == "1"}
    if names.get("hw.optional.arm64") == "1":
        sets |= {"asimd", "neon"}
    for ours, theirs in (("avx2", "avx2_0"), ("avx512f", "avx512f"), ("fma", "fma")):
        if names.get(f"hw.optional.{theirs}") == "1":
            sets.add(ours)
    listed: Quantity = fact(tuple(sorted(sets)), "sysctl hw.optional") if sets else gap
    return CpuInfo(
        model=fact(model, "sysctl or platform.processor") if model else gap,
        vendor=fact(names["machdep.cpu.vendor"], "sysctl machdep.cpu.vendor")
        if names.get("machdep.cpu.vendor")
        else gap,
        soc=fact(names["hw.model"], "sysctl hw.model") if names.get("hw.model") else gap,
        cores_logical=fact(os.cpu_count() or 1, "os.cpu_count"),
        cores_physical=number("hw.physicalcpu"),
        cores_usable=usable_cpus(root),
        instruction_sets=listed,
        simd_bits=_simd_bits(listed),
        l2_bytes=number("hw.l2cachesize"),
        l3_bytes=number("hw.l3cachesize"),
        l3_total_bytes=number("hw.l3cachesize"),
        frequency_max_hz=number("hw.cpufrequency_max"),
        frequency_limit_ratio=gap,
    )
