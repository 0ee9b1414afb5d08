"""The bound holds where it is promised, and nothing is promised where it could not hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.unit.route.calibrate.made import SLOPE, true_rate

from edgewise.route.calibrate.bounds import lower_tail
from edgewise.route.calibrate.thresholds import Scored, learn_threshold

TARGET, DELTA = 0.1, 0.05


def drawn(random: np.random.Generator, n: int, grid: int = 0) -> Scored:
    u = random.random(n)
    if grid:
        u = np.round(u * grid) / grid
    return Scored(u.tolist(), (random.random(n) < SLOPE * u * u).tolist())


def rate_on_grid(threshold: float, grid: int) -> float:
    """Return the error rate of what is kept where u is rounded to a grid."""
    places = np.arange(grid + 1)
    weights = np.where((places == 0) | (places == grid), 0.5, 1.0) / grid
    kept = places / grid <= threshold
    return float((weights * SLOPE * (places / grid) ** 2)[kept].sum() / weights[kept].sum())


@pytest.mark.parametrize("n", [100, 400, 1500])
def test_the_bound_holds_on_synthetic_cases(n: int) -> None:
    """The true error rate of what is kept is known, so nothing here is itself a sample."""
    random = np.random.default_rng(n)
    trials, broken, kept = 400, 0, []
    for _ in range(trials):
        found = learn_threshold(drawn(random, n // 2), drawn(random, n), target=TARGET, delta=DELTA)
        if found.chosen is not None:
            broken += true_rate(found.chosen.threshold) > TARGET
            kept.append(min(found.chosen.threshold, 1.0))
    assert broken <= DELTA * trials  # valid by construction; far fewer in fact
    assert len(kept) >= {100: 0.1, 400: 0.8, 1500: 0.99}[n] * trials  # and not by refusing all
    if n == 1500:
        assert np.mean(kept) > 0.75 * math.sqrt(3 * TARGET / SLOPE)


def test_the_bound_holds_with_ties() -> None:
    random = np.random.default_rng(5)
    broken, enabled = 0, 0
    for _ in range(200):
        found = learn_threshold(
            drawn(random, 200, grid=6), drawn(random, 400, grid=6), target=TARGET, delta=DELTA
        )
        if found.chosen is not None:
            enabled += 1
            broken += rate_on_grid(found.chosen.threshold, 6) > TARGET
    assert enabled > 100
    assert broken <= 0.05 * 200


def test_a_naive_threshold_would_break_it() -> None:
    """What the tests are for: the empirical rate alone is above the target half of the time."""
    random = np.random.default_rng(6)
    broken = 0
    for _ in range(200):
        calibrate = drawn(random, 400)
        best = max(
            (t for t in calibrate.risks if (kw := calibrate.kept(t))[1] <= TARGET * kw[0]),
            default=0.0,
        )
        broken += true_rate(best) > TARGET
    assert broken > 40


def test_the_chosen_step_is_the_last_that_passed() -> None:
    random = np.random.default_rng(7)
    found = learn_threshold(drawn(random, 300), drawn(random, 900), target=TARGET, delta=DELTA)
    assert found.chosen is not None
    assert [step.passed for step in found.steps] == [True] * (len(found.steps) - 1) + [False]
    assert found.chosen == found.steps[-2]
    for step in found.steps:
        assert step.passed == (lower_tail(step.wrong, step.kept, TARGET) <= DELTA)
        assert step.passed == (step.bound <= TARGET)
    assert [s.threshold for s in found.steps] == sorted({s.threshold for s in found.steps})


def test_the_candidates_do_not_depend_on_what_is_right_in_calibration() -> None:
    random = np.random.default_rng(8)
    fit = drawn(random, 200)
    risks = random.random(400).tolist()
    all_right = learn_threshold(fit, Scored(risks, [False] * 400), target=TARGET, delta=DELTA)
    mixed = learn_threshold(
        fit, Scored(risks, (random.random(400) < 0.05).tolist()), target=TARGET, delta=DELTA
    )
    tested = [step.threshold for step in mixed.steps]
    assert tested == [step.threshold for step in all_right.steps][: len(tested)]


def test_all_right_keeps_everything() -> None:
    scored = Scored([i / 100 for i in range(100)], [False] * 100)
    found = learn_threshold(scored, scored, target=TARGET, delta=DELTA)
    assert found.chosen is not None
    assert (found.chosen.threshold, found.chosen.kept) == (1.0, 100)


def test_too_few_cases() -> None:
    fit = Scored([0.1, 0.2], [False, True])
    found = learn_threshold(fit, Scored([0.1] * 28, [False] * 28), target=TARGET, delta=DELTA)
    assert found.chosen is None
    assert found.refusal.code == "too-few-cases"
    assert "29" in found.refusal.message
    enough = learn_threshold(fit, Scored([0.1] * 29, [False] * 29), target=TARGET, delta=DELTA)
    assert enough.chosen is not None


def test_a_bound_that_is_not_reached() -> None:
    random = np.random.default_rng(9)
    u = random.random(300)
    bad = Scored(u.tolist(), (random.random(300) < 0.5).tolist())
    found = learn_threshold(bad, bad, target=TARGET, delta=DELTA)
    assert found.chosen is None
    assert found.refusal.code == "bound-not-reached"
    assert len(found.steps) == 1


def test_an_answer_that_is_never_kept_is_not_kept() -> None:
    risks = [0.1] * 100 + [math.inf] * 50
    scored = Scored(risks, [False] * 100 + [True] * 50)
    found = learn_threshold(scored, scored, target=TARGET, delta=DELTA)
    assert found.chosen is not None
    assert found.chosen.kept == 100
    assert math.isfinite(found.chosen.threshold)


def test_nothing_to_fit_on() -> None:
    calibrate = Scored([0.5] * 60, [False] * 60)
    found = learn_threshold(Scored([], []), calibrate, target=TARGET, delta=DELTA)
    assert found.chosen is not None  # everything is kept, and that is proved
    assert found.chosen.kept == 60
