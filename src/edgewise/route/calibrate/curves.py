"""Risk-coverage curves and what is read off them, with ties treated as ties.

A score orders answers from most to least certain. Its curve tells, for each share of answers that
is kept, how many of the kept are wrong. AURC is the mean of that over all shares, E-AURC what of
it is above the best possible order's (Geifman, Uziel & El-Yaniv 2019). Answers with equal scores
come in an order that nobody knows, so that each counts as the mean of its group.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

__all__ = ["aurc", "auroc", "bootstrap", "curve", "oracle_aurc", "random_aurc"]

Vector = np.ndarray[Any, np.dtype[np.float64]]

_Z95: Final = 1.959963984540054
_Z95_ONE_SIDED: Final = 1.6448536269514722


def curve(risks: Vector, wrong: Vector) -> Vector:
    """Return the error rate among the i most certain answers, for i from 1 to n.

    Args:
        risks: Shape ``(n,)``; larger is less certain; infinity is allowed.
        wrong: Shape ``(n,)``, 1 for a wrong answer and 0 for a right one.

    Returns:
        Shape ``(n,)``.
    """
    order = np.argsort(risks, kind="stable")
    sorted_risks, sorted_wrong = risks[order], wrong[order].astype(np.float64)
    starts = np.flatnonzero(np.r_[True, sorted_risks[1:] != sorted_risks[:-1]])
    sizes = np.diff(np.r_[starts, len(risks)])
    means = np.add.reduceat(sorted_wrong, starts) / sizes
    return np.cumsum(np.repeat(means, sizes)) / np.arange(1, len(risks) + 1)


def aurc(risks: Vector, wrong: Vector) -> float:
    """Return the area under the risk-coverage curve; see :func:`curve`."""
    return float(curve(risks, wrong).mean())


def oracle_aurc(wrong: Vector) -> float:
    """Return the area of the best possible order: every right answer before every wrong one."""
    return aurc(np.asarray(wrong, dtype=np.float64), wrong)


def random_aurc(wrong: Vector) -> float:
    """Return the expected area of an order that tells nothing: the error rate."""
    return float(np.mean(wrong))


def auroc(risks: Vector, wrong: Vector) -> tuple[float, float, float, float]:
    """Return how well a score tells wrong from right answers, with limits.

    The chance that a wrong answer has the larger score, ties counting half; its variance after
    DeLong, DeLong & Clarke-Pearson (1988).

    Args:
        risks: Shape ``(n,)``.
        wrong: Shape ``(n,)``; both classes occur.

    Returns:
        The area, the limits of its 95% interval, and the lower limit that it is above with 95%
        confidence (one-sided).
    """
    bad, good = np.sort(risks[wrong > 0]), np.sort(risks[wrong == 0])
    of_bad = _share_below(bad, good)
    of_good = 1 - _share_below(good, bad)
    area = float(of_bad.mean())
    variance = _variance(of_bad) / len(bad) + _variance(of_good) / len(good)
    error = math.sqrt(variance)
    low, high = max(0.0, area - _Z95 * error), min(1.0, area + _Z95 * error)
    return area, low, high, area - _Z95_ONE_SIDED * error


def bootstrap(
    scores: dict[str, Vector], wrong: Vector, *, reference: str, rounds: int, seed: int
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return 95% intervals of every score's AURC and of its excess over a reference score's.

    Cases are drawn with replacement, the same ones for every score (percentile method).

    Returns:
        For each name ``aurc`` and ``excess``, each as lower and upper limit.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    n = len(wrong)
    areas: dict[str, list[float]] = {name: [] for name in scores}
    for _ in range(rounds):
        drawn = random.integers(0, n, n)
        for name, risks in scores.items():
            areas[name].append(aurc(risks[drawn], wrong[drawn]))
    found = {name: np.array(values) for name, values in areas.items()}
    return {
        name: {"aurc": _limits(values), "excess": _limits(values - found[reference])}
        for name, values in found.items()
    }


def _share_below(of: Vector, among: Vector) -> Vector:
    """Return for each value how large a share of the others is below it, equal ones by half."""
    below = np.searchsorted(among, of, side="left")
    up_to = np.searchsorted(among, of, side="right")
    shares: Vector = (below + up_to) / (2 * len(among))
    return shares


def _variance(values: Vector) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.25


def _limits(values: Vector) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
