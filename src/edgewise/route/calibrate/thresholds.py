"""Learning a threshold such that kept answers are wrong at most so often, and proving it.

Method: Learn then Test (Angelopoulos et al. 2021) with fixed-sequence testing, on the selective
risk of Geifman & El-Yaniv (2017). For a threshold t that does not depend on the calibration cases,
the number of wrong ones among the K kept is, given K, Binomial(K, R(t)) with R(t) the error rate
of all answers with a score of at most t. So the exact binomial tail at the target is a p-value of
"R(t) is above the target" (Clopper & Pearson 1934 inverted). Candidates and their order come from
the cases that were fitted on; they are tested in that order, each at the full level, until the
first that fails. The last that passed is taken: the chance that any of the passed ones is above
the target is at most delta.

Ties cannot break it: all answers with a score at the threshold are kept, in the count as on the
device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from edgewise.route.calibrate.bounds import least_cases, lower_tail, upper_bound

__all__ = ["Refusal", "Scored", "Step", "ThresholdFound", "learn_threshold", "shared_delta"]

_CANDIDATES: Final = 50


class Refusal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why nothing is enabled.

    Attributes:
        code: ``too-few-cases``, ``one-class``, ``no-better-than-chance``, ``bound-not-reached``,
            ``slice-missing``, ``no-signals`` or ``never-said``.
        message: In words, with figures.
    """

    code: str
    message: str


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One threshold that was tested.

    Attributes:
        threshold: Largest score that is kept.
        kept: Calibration cases that it keeps.
        wrong: Those of them that are wrong.
        bound: Upper confidence bound of the error rate at this threshold by itself.
        passed: Whether that is within the target.
    """

    threshold: float
    kept: int
    wrong: int
    bound: float
    passed: bool


class ThresholdFound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the tests came to: a step that stands, or why there is none.

    Attributes:
        chosen: The last step that passed.
        steps: All that were tested, in order.
        refusal: Why none passed.
    """

    chosen: Step | None
    steps: tuple[Step, ...]
    refusal: Refusal | None = None


class Scored:
    """Scores of cases and whether each is wrong, sorted, so that counting is quick."""

    def __init__(self, risks: Sequence[float], wrong: Sequence[bool]) -> None:
        """Take equally many of both."""
        pairs = sorted(zip(risks, wrong, strict=True))
        self.risks = [risk for risk, _ in pairs]
        self._wrong_up_to = [0, *accumulate(int(bad) for _, bad in pairs)]

    def __len__(self) -> int:
        return len(self.risks)

    @property
    def wrong(self) -> int:
        """Return how many are wrong."""
        return self._wrong_up_to[-1]

    def kept(self, threshold: float) -> tuple[int, int]:
        """Return how many have at most this score, and how many of them are wrong."""
        kept = bisect_right(self.risks, threshold)
        return kept, self._wrong_up_to[kept]


def learn_threshold(
    fit: Scored, calibrate: Scored, *, target: float, delta: float
) -> ThresholdFound:
    """Return the threshold that keeps most while the error rate of the kept is bounded.

    With probability 1 - ``delta`` or more over draws of the calibration cases, answers that come
    from where those came from and have a score of at most the threshold are wrong at a rate of at
    most ``target``; or there is no threshold.

    Args:
        fit: Cases that the candidates come from; none of them may be in ``calibrate``.
        calibrate: Cases that are drawn independently of them.
        target: Error rate, between 0 and 1.
        delta: Between 0 and 1.

    Raises:
        InputError: ``target`` or ``delta`` is out of its range.
    """
    least = least_cases(target, delta)
    if len(calibrate) < least:
        return ThresholdFound(
            chosen=None,
            steps=(),
            refusal=Refusal(
                code="too-few-cases",
                message=f"{len(calibrate)} cases to calibrate on; an error rate of {target:.1%} "
                f"takes {least} without a single wrong one",
            ),
        )
    steps: list[Step] = []
    for threshold in _candidates(fit, calibrate, target, least):
        kept, wrong = calibrate.kept(threshold)
        passed = lower_tail(wrong, kept, target) <= delta
        bound = upper_bound(wrong, kept, delta)
        steps.append(Step(threshold=threshold, kept=kept, wrong=wrong, bound=bound, passed=passed))
        if not passed:
            break
    chosen = next((step for step in reversed(steps) if step.passed), None)
    refusal = None if chosen is not None else _not_reached(steps[0], calibrate, target)
    return ThresholdFound(chosen=chosen, steps=tuple(steps), refusal=refusal)


def shared_delta(sizes: Mapping[str, int], *, target: float, confidence: float) -> float:
    """Return each group's share of the chance to be wrong (Bonferroni).

    Only named groups that are large enough to be tested take part; that depends on their sizes,
    not on what is right in them.
    """
    whole = 1 - confidence

    def enough(tested: int) -> int:
        least = least_cases(target, whole / tested)
        return sum(size >= least for name, size in sizes.items() if name)

    tested = max(1, sum(bool(name) for name in sizes))
    while tested > 1 and enough(tested) < tested:
        tested -= 1
    if enough(tested) > tested:  # one more would do at this level, and not at the next: the next
        tested += 1
    return whole / tested


def _candidates(fit: Scored, calibrate: Scored, target: float, least: int) -> list[float]:
    """Return the thresholds to test, strictest first; of the calibration cases only n is used.

    The first is where the fitted cases promise the strongest evidence at the size of the
    calibration set: at a stricter one too few would be kept to prove anything.
    """
    n = len(fit)
    places = sorted({round(i * (n - 1) / _CANDIDATES) for i in range(_CANDIDATES + 1)})
    quantiles = [fit.risks[place] for place in places] if n else []
    grid = [*dict.fromkeys(t for t in quantiles if t < 1), 1.0]  # infinite: is never kept
    factor = len(calibrate) / max(n, 1)

    def expected(threshold: float) -> float:
        kept, wrong = fit.kept(threshold)
        trials = round(kept * factor)
        # Half a wrong case more: a fit is never as good on other cases.
        return lower_tail(min(round((wrong + 0.5) * factor), trials), trials, target)

    enough = [t for t in grid if fit.kept(t)[0] * factor >= least] or grid[-1:]
    first = min(enough, key=lambda t: (expected(t), t))
    return [t for t in grid if t >= first]


def _not_reached(step: Step, calibrate: Scored, target: float) -> Refusal:
    return Refusal(
        code="bound-not-reached",
        message=f"of the {step.kept} most certain of {len(calibrate)} cases {step.wrong} are "
        f"wrong, so that the error rate may be up to {step.bound:.1%}; the target is "
        f"{target:.1%}",
    )
