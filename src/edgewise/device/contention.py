"""Whether other work competes for the usable cores right now.

One busy neighbour can slow a two-thread runtime fivefold, because its threads wait for each
other; a figure taken beside one is worthless, so it is looked for first. Invariants: our own
work is never counted as others'; each reason quotes the reading it rests on; a signal that
cannot be read neither accuses nor acquits. Takes under 300 ms.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from edgewise.core.quantity import Quantity, Unknown
from edgewise.device.cgroup import CpuThrottle, cpu_throttle, pressure_some_ratio
from edgewise.device.cpu import affinity, pin_thread, usable_cpus
from edgewise.device.foreign import psutil_module
from edgewise.device.sections import ContentionInfo, fact
from edgewise.device.tree import read_text

__all__ = ["detect_contention", "spin_share"]

_WINDOW_S = 0.14
_SPIN_S = 0.04
_SPIN_THREADS_MOST = 16
# Thresholds specified here. A quarter of a core is above the noise of a 10 ms tick in the
# window; on a big machine background work of a twentieth of it is normal.
_BUSY_CORES_LEAST, _BUSY_SHARE = 0.25, 0.05
_STEAL_RATIO = 0.05
_PRESSURE_RATIO = 0.10
_SPIN_RATIO = 0.90


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """Counters at one moment; ticks of the usable CPUs."""

    wall_s: float
    own_s: float
    busy: int
    steal: int
    total: int
    cpus: int
    throttle: CpuThrottle | None


def detect_contention(
    root: Path = Path("/"),
    *,
    system: str = sys.platform,
    mask: frozenset[int] | None = None,
    window_s: float = _WINDOW_S,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
    spin: Callable[[int], float | None] | None = None,
) -> ContentionInfo:
    """Return the readings and the verdict.

    Args:
        root: Root of the tree that holds ``/proc`` and ``/sys``.
        system: ``sys.platform`` of the machine.
        mask: CPUs to assume instead of this process's own mask.
        window_s: Seconds between the two readings of the counters.
        sleep: Waits that long; a test moves its counters here.
        clock: Monotonic seconds.
        spin: Takes a thread count and gives the least share of a core that a spinning thread
            got, or ``None``; :func:`spin_share` by default.
    """
    mask = affinity() if mask is None else mask
    usable = usable_cpus(root, mask=mask)
    cores = 1.0 if isinstance(usable, Unknown) else usable.number
    load, runnable = _load(root)
    pressure = pressure_some_ratio(read_text(root, "proc/pressure/cpu"))
    before = _sample(root, system, mask, clock)
    sleep(window_s)
    after = _sample(root, system, mask, clock)
    busy, steal, throttled = _difference(before, after, system)
    share = (spin or spin_share)(max(1, int(cores)))
    spin_fact: Quantity = (
        Unknown(reason="thread CPU time is too coarse or a thread could not run")
        if share is None
        else fact(share, "CPU time over wall time of spinning threads, the least of them")
    )
    pressure_fact: Quantity = (
        Unknown(reason="no /proc/pressure/cpu")
        if pressure is None
        else fact(pressure, "/proc/pressure/cpu some avg10")
    )
    reasons = _reasons(
        cores,
        runnable=runnable,
        busy=busy,
        steal=steal,
        pressure=pressure_fact,
        throttled=throttled,
        spin=spin_fact,
    )
    blind = all(isinstance(q, Unknown) for q in (runnable, busy, pressure_fact, spin_fact))
    return ContentionInfo(
        contended=None if blind else bool(reasons),
        reasons=reasons,
        load_1min=load,
        runnable_others=runnable,
        others_busy_cores=busy,
        steal_ratio=steal,
        pressure_some_ratio=pressure_fact,
        throttled_ratio=throttled,
        spin_share_ratio=spin_fact,
    )


def spin_share(threads: int, *, duration_s: float = _SPIN_S) -> float | None:
    """Return the least share of a core that any of our spinning threads got, from 0 to 1.

    The threads hash without the interpreter lock. ``None`` where thread CPU time is too coarse.

    Args:
        threads: How many spin at once; at most 16 are used.
        duration_s: Seconds that each would take alone, about.
    """
    if time.get_clock_info("thread_time").resolution > duration_s / 20:
        return None
    begin = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"e", b"w", 2000)
    rounds = max(2000, int(2000 * duration_s / max(time.perf_counter() - begin, 1e-6)))
    # A warm-up slowed by contention would make the spin short, never long.
    threads = min(threads, _SPIN_THREADS_MOST)
    shares: list[float] = []
    barrier = threading.Barrier(threads)

    def work(index: int) -> None:
        pin_thread(index)
        barrier.wait()
        wall, used = time.perf_counter(), time.thread_time()
        hashlib.pbkdf2_hmac("sha256", b"e", b"w", rounds)
        used, wall = time.thread_time() - used, time.perf_counter() - wall
        shares.append(min(1.0, used / wall) if wall > 0 else 1.0)

    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return min(shares, default=None)


def _load(root: Path) -> tuple[Quantity, Quantity]:
    fields = (read_text(root, "proc/loadavg") or "").split()
    try:
        load, running = float(fields[0]), int(fields[3].split("/")[0])
    except (IndexError, ValueError):
        gap = Unknown(reason="/proc/loadavg cannot be read")
        return gap, gap
    return (
        fact(load, "/proc/loadavg, 1 minute"),
        fact(max(0, running - 1), "/proc/loadavg, less the reader; all cores"),
    )


def _sample(
    root: Path, system: str, mask: frozenset[int] | None, clock: Callable[[], float]
) -> _Sample | None:
    if not system.startswith("linux"):
        return _sample_psutil(clock)
    busy = steal = total = cpus = 0
    for line in (read_text(root, "proc/stat") or "").splitlines():
        name, _, rest = line.partition(" ")
        number = name.removeprefix("cpu")
        if not name.startswith("cpu") or not number.isdigit():
            continue
        ticks = [int(part) for part in rest.split() if part.isdigit()]
        if len(ticks) < 8 or (mask and int(number) not in mask):
            continue
        user, nice, kernel, idle, iowait, irq, softirq, stolen = ticks[:8]
        busy += user + nice + kernel + irq + softirq
        steal += stolen
        total += user + nice + kernel + idle + iowait + irq + softirq + stolen
        cpus += 1
    if not cpus:
        return None
    return _Sample(
        wall_s=clock(),
        own_s=time.process_time(),
        busy=busy,
        steal=steal,
        total=total,
        cpus=cpus,
        throttle=cpu_throttle(root),
    )


def _sample_psutil(clock: Callable[[], float]) -> _Sample | None:
    module = psutil_module()
    if module is None:
        return None
    times = module.cpu_times()._asdict()
    idle = times.get("idle", 0.0) + times.get("iowait", 0.0)
    total = sum(times.values())
    return _Sample(
        wall_s=clock(),
        own_s=time.process_time(),
        busy=round((total - idle) * 1000),
        steal=0,
        total=round(total * 1000),
        cpus=module.cpu_count() or 1,
        throttle=None,
    )


def _difference(
    before: _Sample | None, after: _Sample | None, system: str
) -> tuple[Quantity, Quantity, Quantity]:
    """Return others' busy cores, the steal ratio and the throttled ratio."""
    no_quota = Unknown(reason="no CPU quota, so nothing throttles")
    if before is None or after is None:
        gap = Unknown(reason="the CPU counters cannot be read")
        return gap, gap, no_quota
    total, wall = after.total - before.total, after.wall_s - before.wall_s
    if total <= 0 or wall <= 0:
        gap = Unknown(reason="the CPU counters did not move in the window")
        return gap, gap, no_quota
    own_cores = (after.own_s - before.own_s) / wall
    busy_cores = (after.busy - before.busy) / total * after.cpus
    others = min(float(after.cpus), max(0.0, busy_cores - own_cores))
    source = "/proc/stat" if system.startswith("linux") else "psutil cpu_times"
    busy = fact(others, f"{source} of the usable cores over {wall:.2f} s, less this process")
    steal: Quantity = Unknown(reason=f"not read on {system}")
    if system.startswith("linux"):
        ratio = min(1.0, max(0, after.steal - before.steal) / total)
        steal = fact(ratio, f"{source} over {wall:.2f} s")
    if before.throttle is None or after.throttle is None:
        return busy, steal, no_quota
    periods = after.throttle.periods - before.throttle.periods
    if periods <= 0:
        return busy, steal, Unknown(reason="no quota period ended in the window")
    throttled = max(0, after.throttle.throttled - before.throttle.throttled)
    return busy, steal, fact(min(1.0, throttled / periods), "cgroup cpu.stat in the window")


def _reasons(
    cores: float,
    *,
    runnable: Quantity,
    busy: Quantity,
    steal: Quantity,
    pressure: Quantity,
    throttled: Quantity,
    spin: Quantity,
) -> tuple[str, ...]:
    found: list[str] = []

    def over(quantity: Quantity, limit: float, text: str) -> None:
        if not isinstance(quantity, Unknown) and quantity.number > limit:
            found.append(f"{text.format(quantity.number)} ({quantity.source})")

    limit = max(_BUSY_CORES_LEAST, _BUSY_SHARE * cores)
    over(busy, limit, "other processes use {:.2f} of " + f"{cores:g} usable cores")
    over(runnable, cores, "{:.0f} other tasks are ready to run on " + f"{cores:g} usable cores")
    over(steal, _STEAL_RATIO, "the hypervisor takes {:.0%} of the time")
    over(pressure, _PRESSURE_RATIO, "tasks waited for a core in {:.0%} of the last 10 s")
    over(throttled, 0.0, "the CPU quota throttled us in {:.0%} of its periods")
    if not isinstance(spin, Unknown) and spin.number < _SPIN_RATIO:
        found.append(f"a spinning thread of ours got only {spin.number:.0%} of a core")
    return tuple(found)
