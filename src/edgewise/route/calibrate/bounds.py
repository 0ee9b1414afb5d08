"""Exact binomial tails and the confidence bounds that follow from them, in plain Python.

Everything errs to the safe side by construction of the tests that use it, not by rounding here:
the relative error of a tail is below 1e-10 up to a million trials.
"""

from __future__ import annotations

import math
from typing import Final

from edgewise.errors import InputError

__all__ = ["least_cases", "lower_tail", "upper_bound"]

_NEGLIGIBLE: Final = 1e-17
_TOLERANCE: Final = 1e-12
_STEPS_MAX: Final = 200


def lower_tail(wrong: int, trials: int, rate: float) -> float:
    """Return P(X <= wrong) for X ~ Binomial(trials, rate).

    The sum starts at its largest term and goes on by ratios until nothing changes any more.

    Args:
        wrong: From 0 to ``trials``.
        trials: 0 or more.
        rate: From 0 to 1.

    Raises:
        InputError: an argument is out of its range.
    """
    _require(wrong, trials, rate)
    if wrong == trials or rate == 0:
        return 1.0
    if rate == 1:
        return 0.0
    if wrong < trials * rate:
        return min(1.0, _below(wrong, trials, rate))
    # P(X <= k) = 1 - P(X >= k + 1), and X >= k + 1 means that trials - X <= trials - k - 1.
    return max(0.0, 1.0 - _below(trials - wrong - 1, trials, 1 - rate))


def upper_bound(wrong: int, trials: int, delta: float) -> float:
    """Return an upper confidence bound of a rate (Clopper & Pearson 1934, one-sided).

    The rate is at most this with probability 1 - ``delta`` or more, over draws of the trials.

    Args:
        wrong: From 0 to ``trials``.
        trials: 0 or more; without any the bound is 1.
        delta: Between 0 and 1.

    Raises:
        InputError: an argument is out of its range.
    """
    _require(wrong, trials, 0.5)
    _require_share("delta", delta)
    if wrong == trials:
        return 1.0
    low, high = wrong / trials, 1.0
    rate = (low + high) / 2
    for _ in range(_STEPS_MAX):
        tail = lower_tail(wrong, trials, rate)
        if tail > delta:
            low = rate
        else:
            high = rate
        # Newton's step on the logarithm of the tail, which is close to straight.
        slope = (trials - wrong) / (1 - rate) * math.exp(_log_term(wrong, trials, rate))
        step = (math.log(tail) - math.log(delta)) * tail / slope if tail > 0 < slope else math.inf
        if abs(step) < _TOLERANCE:
            break
        rate = rate + step if low < rate + step < high else (low + high) / 2
    slack = _TOLERANCE
    while rate < 1 and lower_tail(wrong, trials, rate) > delta:  # to the safe side
        rate, slack = min(1.0, rate + slack), 2 * slack
    return rate


def least_cases(target: float, delta: float) -> int:
    """Return how many cases it takes to bound a rate by ``target`` when none of them is wrong.

    That is the least n with (1 - target)^n <= delta.

    Raises:
        InputError: an argument is not between 0 and 1.
    """
    _require_share("the target", target)
    _require_share("delta", delta)
    n = max(1, math.floor(math.log(delta) / math.log1p(-target)) - 1)
    while lower_tail(0, n, target) > delta:
        n += 1
    return n


def _below(k: int, n: int, p: float) -> float:
    """Return P(X <= k) where k is below the mean, so that terms fall from k downwards."""
    term, odds = 1.0, (1 - p) / p
    terms = [term]
    for j in range(k, 0, -1):
        term *= j / (n - j + 1) * odds
        terms.append(term)
        if term < _NEGLIGIBLE:
            break
    return math.exp(_log_term(k, n, p)) * math.fsum(terms)


def _log_term(k: int, n: int, p: float) -> float:
    """Return the logarithm of P(X = k)."""
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return ways + k * math.log(p) + (n - k) * math.log1p(-p)


def _require(wrong: int, trials: int, rate: float) -> None:
    if not (0 <= wrong <= trials and 0 <= rate <= 1):
        raise InputError(
            "calibration-invalid",
            f"{wrong} wrong of {trials} at a rate of {rate} is no binomial count",
            hint="0 <= wrong <= trials, and a rate is from 0 to 1",
        )


def _require_share(what: str, value: float) -> None:
    if not 0 < value < 1:
        raise InputError(
            "calibration-invalid",
            f"{what} is {value}",
            hint="a share is between 0 and 1, both excluded",
        )
