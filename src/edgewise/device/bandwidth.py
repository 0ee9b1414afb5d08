"""Memory bandwidth and matrix throughput, measured briefly on the usable cores.

The figures are floors: what the kernel named in the source reaches on the machine as loaded
now. A plain C kernel may reach more. Invariants: the buffer is well above the last-level cache
and at most an eighth of the memory that may be allocated, or nothing is measured; huge pages
are reported only where ``/proc/self/smaps`` shows that they were given; every kernel releases
the interpreter lock, so threads truly read at once. Nothing runs at import.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edgewise.core.quantity import Measured, Quantity, Unknown
from edgewise.device.cpu import pin_thread
from edgewise.device.kernels import ReadKernel, fastest_kernel, measure_matmul, summarise
from edgewise.device.sections import BandwidthInfo, BandwidthPoint
from edgewise.device.tree import key_values

__all__ = ["buffer_bytes", "huge_bytes_given", "measure_bandwidth"]

_MIN_BUFFER_BYTES = 128 << 20
_MAX_BUFFER_BYTES = 512 << 20  # faulting in more would take longer than the whole measurement
_ALIGN_BYTES = 2 << 20
_L3_TIMES, _L3_TIMES_LEAST = 4, 2
_ROUNDS, _ROUNDS_LEAST = 9, 5
_BUDGET_S = 1.1  # for both page kinds together; the matrix product has its own
_GIVEN_RATIO = 0.9

# A round this long outlasts the scheduler's habit of waking threads on one core (measured).
_ROUND_S = 0.010
_PASSES_MOST = 64


def measure_bandwidth(
    *,
    threads: int,
    available_bytes: Quantity,
    l3_total_bytes: Quantity,
    device: str | None = None,
    note: str = "",
    clock: Callable[[], float] = time.perf_counter,
) -> BandwidthInfo:
    """Return the read bandwidth by thread count and page size, and the matrix throughput.

    Takes about a second, never much more: a point that does not get five rounds in the time
    left is unknown.

    Args:
        threads: Usable cores, at least 1.
        available_bytes: Memory that may be allocated.
        l3_total_bytes: Last-level cache that the usable cores reach.
        device: Digest of the device profile, kept with each measured value.
        note: What a reader must know about the machine now, added to each source.
        clock: Monotonic seconds.
    """
    size = buffer_bytes(available_bytes=available_bytes, l3_total_bytes=l3_total_bytes)
    matmul = measure_matmul(device=device, note=note, clock=clock)
    if isinstance(size, Unknown):
        return BandwidthInfo(read_base_bytes_s=size, read_huge_bytes_s=size, matmul_gflops=matmul)
    start = clock()
    found: dict[bool, tuple[BandwidthPoint, ...] | Unknown] = {}
    kernel: ReadKernel | None = None
    for huge in (False, True):
        deadline = start + _BUDGET_S * (1.0 if huge else 0.55)
        with _buffer(size, threads, huge=huge) as data:
            if isinstance(data, Unknown):
                found[huge] = data
                continue
            kernel = kernel or fastest_kernel(data, clock)
            label = f"{kernel.name}, {size >> 20} MiB, {'huge' if huge else 'base'} pages"
            label = f"{label}, a floor{'; ' + note if note else ''}"
            found[huge] = tuple(
                BandwidthPoint(
                    threads=count,
                    read_bytes_s=_point(
                        data, kernel, threads=count, deadline=deadline, label=label, device=device
                    ),
                )
                for count in _thread_counts(threads)
            )
    base, large = found[False], found[True]
    return BandwidthInfo(
        read_base_bytes_s=_best(base),
        read_huge_bytes_s=_best(large),
        matmul_gflops=matmul,
        base_points=() if isinstance(base, Unknown) else base,
        huge_points=() if isinstance(large, Unknown) else large,
    )


def buffer_bytes(*, available_bytes: Quantity, l3_total_bytes: Quantity) -> int | Unknown:
    """Return the size of the buffer to read, or why none would give an honest figure.

    Args:
        available_bytes: Memory that may be allocated; at most an eighth is used.
        l3_total_bytes: Last-level cache; at least twice as much is needed, four times wanted.
            Unknown counts as the 32 MiB that the smallest buffer covers four times.
    """
    if isinstance(available_bytes, Unknown):
        return Unknown(reason=f"available memory is not known: {available_bytes.reason}")
    cache = _MIN_BUFFER_BYTES // _L3_TIMES
    if not isinstance(l3_total_bytes, Unknown):
        cache = int(l3_total_bytes.number)
    most = min(_MAX_BUFFER_BYTES, int(available_bytes.number) // 8)
    size = min(max(_MIN_BUFFER_BYTES, _L3_TIMES * cache), most) // _ALIGN_BYTES * _ALIGN_BYTES
    if size < max(_L3_TIMES_LEAST * cache, _ALIGN_BYTES):
        return Unknown(
            reason=f"{max(size, 0)} bytes may be used, too few to exceed twice the "
            f"{cache} bytes of last-level cache"
        )
    return size


def huge_bytes_given(smaps: str, address: int) -> int:
    """Return the bytes in huge pages of the mapping that holds ``address``.

    Args:
        smaps: Text of ``/proc/self/smaps``.
        address: Any address inside the mapping.
    """
    inside = False
    for line in smaps.splitlines():
        first, _, last = line.split(" ", 1)[0].partition("-")
        if last and ":" not in first:
            inside = int(first, 16) <= address < int(last, 16)
        elif inside and line.startswith("AnonHugePages:"):
            number = key_values(line, ":")["AnonHugePages"].split()[0]
            return int(number) * 1024
    return 0


def _thread_counts(threads: int) -> list[int]:
    powers = {1 << bit for bit in range(threads.bit_length()) if 1 << bit < threads}
    middle = sorted(powers - {1}, reverse=True)
    return sorted({1, threads, *middle[:2]})


def _best(points: tuple[BandwidthPoint, ...] | Unknown) -> Quantity:
    if isinstance(points, Unknown):
        return points
    known = [(p.read_bytes_s, p.threads) for p in points if isinstance(p.read_bytes_s, Measured)]
    if not known:
        return points[0].read_bytes_s
    best, threads = max(known, key=lambda pair: pair[0].number)
    return Measured(
        value=best.value,
        source=f"{best.source}; best thread count: {threads}",
        n=best.n,
        spread=best.spread,
        device=best.device,
    )


@contextlib.contextmanager
def _buffer(size: int, threads: int, *, huge: bool) -> Iterator[Any]:
    """Give a touched ``(size // 8,) uint64`` array with the wanted pages, or why not."""
    try:
        import numpy as np  # noqa: PLC0415 - keeps imports quick
    except ImportError:
        yield Unknown(reason="numpy is not installed; a runtime brings it")
        return
    advice = getattr(mmap, "MADV_HUGEPAGE" if huge else "MADV_NOHUGEPAGE", None)
    if huge and (advice is None or not sys.platform.startswith("linux")):
        yield Unknown(reason=f"no transparent huge pages on {sys.platform}")
        return
    try:
        # Private: a shared anonymous mapping is shmem, which follows another huge page setting.
        flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
        region = mmap.mmap(-1, size + _ALIGN_BYTES, **flags)
    except OSError as error:
        yield Unknown(reason=f"{size} bytes could not be mapped: {error.strerror}")
        return
    if advice is not None:
        with contextlib.suppress(OSError):  # a kernel without them: smaps decides below
            region.madvise(advice)
    whole = np.frombuffer(region, dtype=np.uint64)
    skip = -whole.ctypes.data % _ALIGN_BYTES // 8
    data = whole[skip : skip + size // 8]
    parts = np.array_split(data, threads)
    workers = [threading.Thread(target=part.fill, args=(1,), daemon=True) for part in parts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    problem = _wrong_pages(int(data.ctypes.data), size, huge=huge)
    try:
        yield problem or data
    finally:
        del data, parts, whole, workers
        with contextlib.suppress(BufferError):  # freed with the last view instead
            region.close()


def _wrong_pages(address: int, size: int, *, huge: bool) -> Unknown | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        given = huge_bytes_given(Path("/proc/self/smaps").read_text(encoding="utf-8"), address)
    except OSError as error:
        return Unknown(reason=f"/proc/self/smaps cannot be read: {error.strerror}")
    if huge and given < _GIVEN_RATIO * size:
        return Unknown(reason=f"the kernel gave {given} of {size} bytes in huge pages")
    if not huge and given:
        return Unknown(reason=f"the kernel gave {given} bytes in huge pages unasked")
    return None


def _point(
    data: Any,
    choice: ReadKernel,
    *,
    threads: int,
    deadline: float,
    label: str,
    device: str | None,
) -> Quantity:
    """Return bytes a second over rounds in which each thread reads its own part."""
    step = len(data) // threads
    parts = [data[i * step : (i + 1) * step] for i in range(threads)]
    spans: list[list[tuple[float, float]]] = [[] for _ in parts]
    passes = max(1, min(_PASSES_MOST, round(_ROUND_S * threads / max(choice.pass_s, 1e-6))))
    go_on = [True]

    def decide() -> None:
        go_on[0] = len(spans[0]) < _ROUNDS + 1 and time.perf_counter() < deadline

    barrier = threading.Barrier(threads, action=decide)

    def read(index: int) -> None:
        if threads > 1:
            pin_thread(index)
        while True:
            barrier.wait()
            if not go_on[0]:
                return
            start = time.perf_counter()
            for _ in range(passes):
                choice.run(parts[index])
            spans[index].append((start, time.perf_counter()))

    workers = [threading.Thread(target=read, args=(i,), daemon=True) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    total = step * threads * 8 * passes
    rates = [
        total / (max(end for _, end in turn) - min(start for start, _ in turn))
        for turn in list(zip(*spans, strict=True))[1:]  # the first round warms up
        if max(end for _, end in turn) > min(start for start, _ in turn)
    ]
    if len(rates) < _ROUNDS_LEAST:
        return Unknown(reason=f"{len(rates)} rounds of {_ROUNDS_LEAST} in the time allowed")
    return summarise(rates, label, device)
