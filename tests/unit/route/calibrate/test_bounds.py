"""Binomial tails and bounds against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.errors import InputError
from edgewise.route.calibrate.bounds import least_cases, lower_tail, upper_bound


def exact_tail(wrong: int, trials: int, rate: Fraction) -> Fraction:
    """Return P(X <= wrong) without any rounding."""
    a, b = rate.numerator, rate.denominator
    total = sum(math.comb(trials, j) * a**j * (b - a) ** (trials - j) for j in range(wrong + 1))
    return Fraction(total, b**trials)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), trials=st.integers(0, 400), rate=st.fractions(0, 1, max_denominator=1000))
def test_tails_are_those_of_rational_arithmetic(
    data: st.DataObject, trials: int, rate: Fraction
) -> None:
    wrong = data.draw(st.integers(0, trials))
    wanted = float(exact_tail(wrong, trials, rate))
    found = lower_tail(wrong, trials, float(rate))
    # Relative where the tail is small, which is where decisions are made.
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-300) or wanted > 0.5
    assert found == pytest.approx(wanted, abs=1e-11)


@pytest.mark.parametrize(("wrong", "trials"), [(150, 2000), (200, 2000), (0, 2000), (1999, 2000)])
def test_long_tails(wrong: int, trials: int) -> None:
    wanted = float(exact_tail(wrong, trials, Fraction(1, 10)))
    assert lower_tail(wrong, trials, 0.1) == pytest.approx(wanted, rel=1e-9)


def test_a_million_trials_take_no_time_and_stay_a_probability() -> None:
    assert lower_tail(100_000, 1_000_000, 0.1) == pytest.approx(0.5, abs=2e-3)
    assert 0 < lower_tail(99_000, 1_000_000, 0.1) < 1e-3 < lower_tail(99_900, 1_000_000, 0.1)


@pytest.mark.parametrize("trials", [1, 2, 29, 59, 200])
@pytest.mark.parametrize("delta", [0.05, 0.01, 0.2])
def test_none_wrong_has_its_closed_form(trials: int, delta: float) -> None:
    # (1 - u)^n = delta
    assert upper_bound(0, trials, delta) == pytest.approx(1 - delta ** (1 / trials), abs=1e-10)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), trials=st.integers(1, 150), delta=st.sampled_from([0.2, 0.05, 0.01]))
def test_the_bound_is_where_the_exact_tail_is_delta(
    data: st.DataObject, trials: int, delta: float
) -> None:
    wrong = data.draw(st.integers(0, trials - 1))
    bound = upper_bound(wrong, trials, delta)
    nearly = Fraction(1, 10**9)
    assert exact_tail(wrong, trials, min(Fraction(bound) + nearly, Fraction(1))) <= Fraction(delta)
    assert exact_tail(wrong, trials, Fraction(bound) - nearly) >= Fraction(delta)


def test_the_ends() -> None:
    assert upper_bound(0, 0, 0.05) == upper_bound(7, 7, 0.05) == 1.0
    assert lower_tail(0, 0, 0.3) == 1.0
    assert lower_tail(3, 10, 0.0) == 1.0
    assert lower_tail(3, 10, 1.0) == 0.0


@pytest.mark.parametrize(
    ("target", "delta", "least"),
    [(0.1, 0.05, 29), (0.05, 0.05, 59), (0.01, 0.05, 299), (0.5, 0.5, 1)],
)
def test_least_cases(target: float, delta: float, least: int) -> None:
    assert least_cases(target, delta) == least
    assert (1 - Fraction(target)) ** least <= Fraction(delta) or target == 0.5
    assert least == 1 or (1 - Fraction(target)) ** (least - 1) > Fraction(delta)


@pytest.mark.parametrize(
    "call",
    [
        lambda: lower_tail(3, 2, 0.1),
        lambda: lower_tail(-1, 2, 0.1),
        lambda: lower_tail(1, 2, 1.5),
        lambda: upper_bound(1, 2, 0),
        lambda: upper_bound(1, 2, 1),
        lambda: least_cases(0, 0.05),
        lambda: least_cases(math.nan, 0.05),
    ],
)
def test_what_is_no_count_is_refused(call) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.code == "calibration-invalid"
