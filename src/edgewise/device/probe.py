"""One probe of this machine: every reader, in the order that disturbs least.

Contention is looked for before anything is measured, and every measured figure carries it in
its source. Which runtimes truly load is the business of the layer above; it passes a callable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from edgewise.core.quantity import Unknown
from edgewise.device.bandwidth import measure_bandwidth
from edgewise.device.cgroup import read_container
from edgewise.device.contention import detect_contention
from edgewise.device.cpu import read_cpu
from edgewise.device.memory import read_memory
from edgewise.device.power import read_power, read_thermal
from edgewise.device.profile import DeviceProfile, RuntimePresence, profile_digest
from edgewise.device.sections import BandwidthInfo, ContentionInfo
from edgewise.device.storage import read_storage
from edgewise.device.system import read_abi, read_accelerators, read_clock, read_os

__all__ = ["probe"]


def probe(
    *,
    storage_path: Path,
    measure: bool = True,
    runtimes: Callable[[], Sequence[RuntimePresence]] | None = None,
    progress: Callable[[str], None] | None = None,
    root: Path = Path("/"),
    system: str = sys.platform,
) -> DeviceProfile:
    """Return the profile of this machine.

    Takes about a second when it measures, a few milliseconds when it does not.

    Args:
        storage_path: Folder whose volume is read; it need not exist yet.
        measure: Whether to measure bandwidth and throughput and to watch for contention.
        runtimes: Tries the runtimes and says which loaded; whatever it raises passes through.
        progress: Told what comes next, in a few words.
        root: Root of the tree that holds ``/proc``, ``/sys``, ``/dev`` and ``/etc``.
        system: ``sys.platform`` of the machine.

    Raises:
        InputError: a reading has no canonical form.
    """
    say = progress or (lambda _: None)
    say("reading the system")
    os_info, abi = read_os(root, system=system), read_abi(system=system)
    cpu, memory = read_cpu(root, system=system), read_memory(root, system=system)
    digest = profile_digest(os=os_info, abi=abi, cpu=cpu, memory=memory)
    if measure:
        say("watching for other work")
        contention = detect_contention(root, system=system)
        say("measuring memory bandwidth")
        usable = cpu.cores_usable
        bandwidth = measure_bandwidth(
            threads=1 if isinstance(usable, Unknown) else max(1, int(usable.number)),
            available_bytes=memory.budget_bytes,
            l3_total_bytes=cpu.l3_total_bytes,
            device=digest,
            note="taken under contention" if contention.contended else "",
        )
    else:
        reason = "not measured: the probe was asked only to read"
        contention, bandwidth = _unwatched(reason), BandwidthInfo.unknown(reason)
    if runtimes is not None:
        say("trying the runtimes")
    return DeviceProfile(
        os=os_info,
        abi=abi,
        cpu=cpu,
        memory=memory,
        storage=read_storage(storage_path, root),
        bandwidth=bandwidth,
        contention=contention,
        power=read_power(root, system=system),
        thermal=read_thermal(root, system=system),
        accelerators=read_accelerators(root, system=system),
        container=read_container(root),
        clock=read_clock(root, system=system),
        runtimes=tuple(runtimes()) if runtimes is not None else (),
    )


def _unwatched(reason: str) -> ContentionInfo:
    gap = Unknown(reason=reason)
    return ContentionInfo(
        contended=None,
        reasons=(),
        load_1min=gap,
        runnable_others=gap,
        others_busy_cores=gap,
        steal_ratio=gap,
        pressure_some_ratio=gap,
        throttled_ratio=gap,
        spin_share_ratio=gap,
    )
