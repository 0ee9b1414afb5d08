"""The kernels behind the bandwidth and compute figures, and how their rates become a value.

Invariants: every kernel reads its whole array once, and releases the interpreter lock while it
does; nothing is imported or run before a function here is called.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from edgewise.core.quantity import Measured, Quantity, Unknown

__all__ = ["ReadKernel", "fastest_kernel", "measure_matmul", "summarise"]

_ROUNDS = 9
_MATMUL_BUDGET_S = 0.15

_Kernel = Callable[[Any], object]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadKernel:
    """A kernel that reads an array once, and its time for the whole buffer on one thread."""

    name: str
    run: _Kernel
    pass_s: float


def _kernels() -> dict[str, _Kernel]:
    import numpy as np  # noqa: PLC0415 - keeps imports quick

    kernels: dict[str, _Kernel] = {
        "numpy bitwise_xor.reduce u64": np.bitwise_xor.reduce,
        "numpy maximum.reduce u64": np.maximum.reduce,
    }
    if os.name == "posix":
        compare = ctypes.CDLL(None).memcmp
        compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

        def halves(data: Any) -> object:
            half = data.nbytes // 2
            return compare(data.ctypes.data, data.ctypes.data + half, half)

        kernels["libc memcmp of two equal halves"] = halves
    return kernels


def fastest_kernel(data: Any, clock: Callable[[], float]) -> ReadKernel:
    """Return the kernel with the least median of three passes over ``data`` on one thread."""
    choices = []
    for name, kernel in _kernels().items():
        times = []
        for _ in range(3):
            start = clock()
            kernel(data)
            times.append(clock() - start)
        choices.append(ReadKernel(name=name, run=kernel, pass_s=statistics.median(times)))
    return min(choices, key=lambda choice: choice.pass_s)


def measure_matmul(
    *,
    device: str | None = None,
    note: str = "",
    clock: Callable[[], float] = time.perf_counter,
) -> Quantity:
    """Return the f32 matrix product throughput of numpy's BLAS, in 1e9 operations a second.

    Args:
        device: Digest of the device profile, kept with the value.
        note: What a reader must know about the machine now, added to the source.
        clock: Monotonic seconds.
    """
    try:
        import numpy as np  # noqa: PLC0415 - keeps imports quick
    except ImportError:
        return Unknown(reason="numpy is not installed; a runtime brings it")
    rates: list[float] = []
    side = 256
    begin = clock()
    while len(rates) < _ROUNDS:
        left = np.full((side, side), 0.5, dtype=np.float32)
        result = np.empty_like(left)
        np.matmul(left, left, out=result)  # warm: threads, caches, clock speed
        for _ in range(_ROUNDS):
            start = clock()
            np.matmul(left, left, out=result)
            end = clock()
            if end > start:
                rates.append(2 * side**3 / (end - start) / 1e9)
            if end - begin > _MATMUL_BUDGET_S and len(rates) >= 3:
                break
        spent = clock() - begin
        if side == 256 and spent * 8 < _MATMUL_BUDGET_S:  # eight times the work still fits
            side, rates = 512, []
        elif not rates:
            return Unknown(reason="the clock is too coarse for a short matrix product")
        else:
            break
    suffix = f"; {note}" if note else ""
    return summarise(rates, f"numpy sgemm {side}x{side}x{side}, BLAS threads{suffix}", device)


def summarise(rates: list[float], source: str, device: str | None = None) -> Measured:
    """Return the median of the rates with half the range between the quartiles.

    Args:
        rates: At least one positive number.
        source: How they were taken.
        device: Digest of the device profile.

    Raises:
        InputError: a rate is not finite.
    """
    quartiles = statistics.quantiles(rates, n=4) if len(rates) > 1 else [rates[0]] * 3
    return Measured(
        value=statistics.median(rates),
        source=source,
        n=len(rates),
        spread=(quartiles[2] - quartiles[0]) / 2,
        device=device,
    )
