"""Curves and areas against their definitions."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.route.calibrate.curves import aurc, auroc, bootstrap, curve, oracle_aurc, random_aurc


def vectors(risks, wrong):
    return np.array(risks, dtype=float), np.array(wrong, dtype=float)


def test_a_curve_without_ties() -> None:
    risks, wrong = vectors([0.3, 0.1, 0.2, 0.4], [1, 0, 0, 1])
    assert curve(risks, wrong).tolist() == [0, 0, 1 / 3, 1 / 2]
    assert aurc(risks, wrong) == pytest.approx((1 / 3 + 1 / 2) / 4)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_ties_count_as_the_mean_over_all_orders(pairs) -> None:
    risks, wrong = vectors([r for r, _ in pairs], [w for _, w in pairs])
    every = []
    for order in itertools.permutations(range(len(pairs))):
        ordered = sorted(order, key=lambda place: pairs[place][0])  # stable: ties stay as drawn
        bad = list(itertools.accumulate(int(pairs[place][1]) for place in ordered))
        every.append(statistics.mean(b / (i + 1) for i, b in enumerate(bad)))
    assert aurc(risks, wrong) == pytest.approx(statistics.mean(every))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0, math.inf]), st.booleans()),
        min_size=2,
        max_size=30,
    )
)
def test_the_area_is_the_chance_of_the_right_order(pairs) -> None:
    bad = [r for r, w in pairs if w]
    good = [r for r, w in pairs if not w]
    if not bad or not good:
        return
    risks, wrong = vectors([r for r, _ in pairs], [w for _, w in pairs])
    wanted = statistics.mean((b > g) + 0.5 * (b == g) for b in bad for g in good)
    area, low, high, least = auroc(risks, wrong)
    assert area == pytest.approx(wanted)
    assert 0 <= low <= area <= high <= 1
    assert low - 1e-12 <= max(least, 0)


def test_the_interval_covers() -> None:
    """Normal scores a distance apart have a known area: Phi(distance / sqrt 2)."""
    random = np.random.default_rng(0)
    area = statistics.NormalDist().cdf(1 / math.sqrt(2))
    wrong = np.repeat([1.0, 0.0], 80)
    held = 0
    for _ in range(300):
        _, low, high, _ = auroc(np.r_[random.normal(1, 1, 80), random.normal(0, 1, 80)], wrong)
        held += low <= area <= high
    assert 0.91 <= held / 300 <= 0.99


def test_the_best_order_and_none() -> None:
    wrong = np.array([0.0, 1, 0, 0, 1])
    assert oracle_aurc(wrong) == pytest.approx((1 / 4 + 2 / 5) / 5)
    assert random_aurc(wrong) == pytest.approx(2 / 5)
    assert aurc(np.zeros(5), wrong) == pytest.approx(2 / 5)


def test_the_bootstrap_compares_the_same_cases() -> None:
    random = np.random.default_rng(1)
    u = random.random(300)
    wrong = (random.random(300) < u * u).astype(float)
    scores = {"good": u, "same": 2 * u, "bad": random.random(300)}
    found = bootstrap(scores, wrong, reference="good", rounds=400, seed=3)
    assert found["same"]["excess"] == (0, 0)
    assert found["bad"]["excess"][0] > 0
    assert found["good"]["aurc"][0] < aurc(u, wrong) < found["good"]["aurc"][1]
    assert found == bootstrap(scores, wrong, reference="good", rounds=400, seed=3)
