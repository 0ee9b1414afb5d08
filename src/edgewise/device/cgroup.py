"""Control groups, v1 and v2: the limits that bind this process, over every enclosing group.

Invariants: a limit is the tightest of all groups from the process's own up to the mount; a
group without a limit adds none; v1 writes "no limit" as a number near 2**63. Files are read
below a root, so tests bring their own tree. Nothing is written here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from edgewise.core.quantity import Estimated, Quantity, Unknown
from edgewise.device.sections import ContainerInfo, fact
from edgewise.device.tree import key_values, read_int, read_text

__all__ = [
    "CpuThrottle",
    "Group",
    "cpu_quota",
    "cpu_throttle",
    "find_group",
    "limit_of",
    "memory_headroom",
    "memory_limit",
    "memory_pressure_ratio",
    "pressure_ratio",
    "pressure_some_ratio",
    "read_container",
    "under_oom",
]

# Kernel: PAGE_COUNTER_MAX is 2**63 rounded down to a page; anything this large is no limit.
_NO_LIMIT_BYTES = 1 << 60
_NO_GROUP = "no control group with this controller is mounted"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The group of this process for one controller.

    Attributes:
        version: 1 or 2.
        mount: Where the hierarchy is mounted, absolute below the root.
        path: The group below the mount, ``/`` for the mount itself.
    """

    version: int
    mount: str
    path: str

    def levels(self) -> Iterator[str]:
        """Yield the folder of the group and of each enclosing one, innermost first."""
        path = PurePosixPath("/") / self.path.lstrip("/")
        for level in (path, *path.parents):
            yield str(PurePosixPath(self.mount) / str(level).lstrip("/"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CpuThrottle:
    """Quota counters of one group since its creation."""

    periods: int
    throttled: int


def find_group(root: Path, controller: str) -> Group | None:
    """Return the group that binds this process for ``controller``, or ``None``.

    Args:
        root: Root of the tree that holds ``/proc`` and ``/sys``.
        controller: ``memory`` or ``cpu``.
    """
    v2_path: str | None = None
    for line in (read_text(root, "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(","):
            mount, inside = _mount(root, "cgroup", controller)
            return Group(version=1, mount=mount, path=_below(path, inside))
        if number == "0" and not names:
            v2_path = path
    if v2_path is None:
        return None
    mount, inside = _mount(root, "cgroup2", None)
    group = Group(version=2, mount=mount, path=_below(v2_path, inside))
    controllers = (read_text(root, f"{mount}/cgroup.controllers") or "").split()
    return group if controller in controllers else None


def _mount(root: Path, kind: str, controller: str | None) -> tuple[str, str]:
    """Return the mount point and the group that is mounted there."""
    for line in (read_text(root, "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or not tail or tail[0] != kind:
            continue
        if controller is None or controller in tail[-1].split(","):
            return fields[4], fields[3]
    default = "/sys/fs/cgroup" if controller is None else f"/sys/fs/cgroup/{controller}"
    return default, "/"


def _below(path: str, inside: str) -> str:
    """Return ``path`` as seen below a mount of the group ``inside``."""
    if inside != "/" and (path == inside or path.startswith(inside.rstrip("/") + "/")):
        path = path[len(inside) :] or "/"
    # A path outside the cgroup namespace starts with `/..`: only the mount itself is visible.
    return "/" if ".." in PurePosixPath(path).parts else path


def memory_limit(root: Path) -> Quantity:
    """Return the tightest memory limit in bytes, or why there is none."""
    group = find_group(root, "memory")
    if group is None:
        return Unknown(reason=_NO_GROUP)
    limits = [limit for limit, _ in _memory_limits(root, group)]
    if not limits:
        return Unknown(reason="no limit set")
    return fact(min(limits), f"cgroup v{group.version} memory limit, tightest enclosing group")


def memory_headroom(root: Path) -> Quantity:
    """Return the bytes left below the tightest limit; reclaimable file cache counts as free."""
    group = find_group(root, "memory")
    if group is None:
        return Unknown(reason=_NO_GROUP)
    rooms: list[int] = []
    for limit, folder in _memory_limits(root, group):
        name = "memory.usage_in_bytes" if group.version == 1 else "memory.current"
        used = read_int(root, f"{folder}/{name}")
        if used is None:
            return Unknown(reason=f"{name} of a limited group cannot be read")
        stat = key_values(read_text(root, f"{folder}/memory.stat"))
        key = "total_inactive_file" if group.version == 1 else "inactive_file"
        cache = stat.get(key, "0")
        reclaimable = int(cache) if cache.isdigit() else 0
        rooms.append(max(0, limit - max(0, used - reclaimable)))
    if not rooms:
        return Unknown(reason="no limit set")
    return Estimated(
        value=min(rooms),
        source=f"cgroup v{group.version}: limit - (usage - inactive_file), tightest group",
    )


def _memory_limits(root: Path, group: Group) -> Iterator[tuple[int, str]]:
    names = ("memory.limit_in_bytes",) if group.version == 1 else ("memory.max", "memory.high")
    for folder in group.levels():
        for name in names:
            limit = limit_of(root, f"{folder}/{name}")
            if limit is not None:
                yield limit, folder


def limit_of(root: Path, path: str) -> int | None:
    """Return the limit in bytes that a file of a control group sets, or ``None``."""
    limit = read_int(root, path)  # `max` is no integer: no limit
    return limit if limit is not None and 0 <= limit < _NO_LIMIT_BYTES else None


def cpu_quota(root: Path) -> Quantity:
    """Return the tightest CPU quota in cores (150000 of 100000 µs is 1.5), or why none."""
    group = find_group(root, "cpu")
    if group is None:
        return Unknown(reason=_NO_GROUP)
    quotas: list[float] = []
    for folder in group.levels():
        if group.version == 1:
            quota = read_int(root, f"{folder}/cpu.cfs_quota_us")
            period = read_int(root, f"{folder}/cpu.cfs_period_us")
        else:
            parts = (read_text(root, f"{folder}/cpu.max") or "max").split()
            quota = int(parts[0]) if parts and parts[0].isdigit() else None
            period = int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 100_000
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    if not quotas:
        return Unknown(reason="no limit set")
    return fact(min(quotas), f"cgroup v{group.version} CPU quota, tightest enclosing group")


def cpu_throttle(root: Path) -> CpuThrottle | None:
    """Return quota counters of the innermost group that has any, or ``None``."""
    group = find_group(root, "cpu")
    for folder in group.levels() if group else ():
        stat = key_values(read_text(root, f"{folder}/cpu.stat"))
        periods, throttled = stat.get("nr_periods", ""), stat.get("nr_throttled", "")
        if periods.isdigit() and throttled.isdigit() and int(periods) > 0:
            return CpuThrottle(periods=int(periods), throttled=int(throttled))
    return None


def memory_pressure_ratio(root: Path) -> float | None:
    """Return the share of the last 10 s in which a task of our group waited for memory."""
    group = find_group(root, "memory")
    if group is None or group.version == 1:
        return None
    return pressure_some_ratio(read_text(root, f"{next(group.levels())}/memory.pressure"))


def pressure_some_ratio(text: str | None) -> float | None:
    """Return ``some avg10`` of a pressure-stall file as a ratio from 0 to 1, or ``None``."""
    return pressure_ratio(text, "some")


def pressure_ratio(text: str | None, kind: str) -> float | None:
    """Return ``avg10`` of a pressure-stall file as a ratio from 0 to 1, or ``None``.

    Args:
        text: The file's text, or ``None``.
        kind: ``some`` (a task waited) or ``full`` (all of them did).
    """
    for line in (text or "").splitlines():
        if line.startswith(f"{kind} "):
            fields = dict(p.split("=", 1) for p in line.split()[1:] if "=" in p)
            try:
                percent = float(fields.get("avg10", ""))
            except ValueError:
                return None
            return percent / 100 if 0 <= percent <= 100 else None
    return None


def under_oom(root: Path) -> bool | None:
    """Return whether our v1 group is stalled out of memory now; ``None`` where not told."""
    group = find_group(root, "memory")
    if group is None or group.version == 2:
        return None
    control = key_values(read_text(root, f"{next(group.levels())}/memory.oom_control"))
    return control["under_oom"] != "0" if "under_oom" in control else None


def read_container(root: Path) -> ContainerInfo:
    """Return the control-group version, our group, and the container that markers point at."""
    text = read_text(root, "proc/self/cgroup")
    if text is None:
        version: Quantity = Unknown(reason="/proc/self/cgroup cannot be read")
    else:
        v2 = any(line.startswith("0::") for line in text.splitlines())
        v1 = any(line and not line.startswith("0::") for line in text.splitlines())
        name = "hybrid" if v1 and v2 else "v1" if v1 else "v2" if v2 else ""
        known = fact(name, "/proc/self/cgroup") if name else None
        version = known or Unknown(reason="/proc/self/cgroup lists no group")
    group = find_group(root, "memory")
    return ContainerInfo(
        cgroup_version=version,
        cgroup_path=fact(group.path, "/proc/self/cgroup") if group else Unknown(reason=_NO_GROUP),
        container=_container(root, text or ""),
    )


def _container(root: Path, groups: str) -> Quantity:
    for marker, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if (root / marker.lstrip("/")).exists():
            return fact(kind, f"{marker} exists")
    named = read_text(root, "run/systemd/container")
    if named:
        return fact(named, "/run/systemd/container")
    for word in ("kubepods", "docker", "containerd", "lxc", "libpod"):
        if word in groups:
            return Estimated(value=word, source="a group name in /proc/self/cgroup")
    return Estimated(value="none", source="no container marker and no container group name")
