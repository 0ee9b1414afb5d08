"""The fit finds the one optimum, and gives the same digits each time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgewise.errors import InputError
from edgewise.route.calibrate import ScoreDefinition, Term
from edgewise.route.calibrate.logistic import fit_logistic, fit_with_penalty, usable_signals

NAMES = ["a", "b", "c"]


def data(n: int = 600):
    random = np.random.default_rng(4)
    values = random.normal(size=(n, 3)) * [1, 10, 0.1] + [0, 5, -1]
    logits = 1.5 * values[:, 0] - 0.1 * (values[:, 1] - 5) - 0.5
    wrong = (random.random(n) < 1 / (1 + np.exp(-logits))).astype(float)
    return values, wrong


def test_the_gradient_is_zero_at_the_solution() -> None:
    values, wrong = data()
    for penalty in (0.3, 10.0, 100.0):
        score = fit_with_penalty(NAMES, values, wrong, penalty)
        weights = np.array([term.weight for term in score.terms])
        means = np.array([term.mean for term in score.terms])
        scales = np.array([term.scale for term in score.terms])
        standard = np.clip((values - means) / scales, -5, 5)
        rates = 1 / (1 + np.exp(-(score.intercept + standard @ weights)))
        gradient = standard.T @ (rates - wrong) + penalty * weights
        assert np.abs(gradient).max() < 1e-5
        assert abs((rates - wrong).sum() + 1e-3 * score.intercept) < 1e-5


def test_it_finds_what_was_put_in() -> None:
    values, wrong = data(4000)
    a, b, c = fit_logistic(NAMES, values, wrong).terms
    assert a.weight == pytest.approx(1.5, abs=0.2)
    assert b.weight == pytest.approx(-1.0, abs=0.2)
    assert abs(c.weight) < 0.15


def test_separable_and_one_sided_cases_have_a_finite_fit() -> None:
    values = np.arange(40.0).reshape(-1, 1)
    score = fit_logistic(["a"], values, (values[:, 0] > 19).astype(float))
    assert score.risk({"a": 0.0}) < 0.5 < score.risk({"a": 39.0})
    some = np.zeros(40)
    some[:5] = 1  # folds without a wrong one
    assert math.isfinite(fit_logistic(["a"], values, some).intercept)


def test_the_score_on_the_device_is_that_of_the_fit() -> None:
    values, wrong = data()
    score = fit_logistic(NAMES, values, wrong)
    again = fit_logistic(NAMES, values.copy(), wrong.copy())
    assert score == again
    rows = [dict(zip(NAMES, row, strict=True)) for row in values.tolist()]
    risks = [risk for row in rows if (risk := score.risk(row)) is not None]
    assert len(risks) == len(rows)
    assert all(0 <= risk <= 1 for risk in risks)
    assert np.mean(risks) == pytest.approx(wrong.mean(), abs=0.01)  # calibrated in the large


def test_constant_signals_are_not_usable() -> None:
    values = np.array([[1.0, 2.0, 0.1 + 0.2], [1.0, 3.0, 0.3]])
    assert usable_signals(NAMES, values) == ["b"]


SCORE = ScoreDefinition(
    intercept=0.0, terms=(Term(signal="a", mean=1.0, scale=2.0, weight=1.0),), penalty=1.0
)


@pytest.mark.parametrize(
    ("signals", "risk"),
    [
        ({"a": 1.0}, 0.5),
        ({"a": 1e300}, 1 / (1 + math.exp(-5))),  # as far out as a score knows anything
        ({"a": -1e300, "other": 3.0}, 1 / (1 + math.exp(5))),
        ({}, None),
        ({"a": math.nan}, None),
        ({"a": math.inf}, None),
        ({"a": 1.0, "cut": 1.0}, None),
        ({"a": 1.0, "invalid": 1.0}, None),
        ({"a": 1.0, "cut": 0.0, "invalid": 0.0}, 0.5),
    ],
)
def test_risk(signals, risk) -> None:
    assert SCORE.risk(signals) == (pytest.approx(risk) if risk is not None else None)


@pytest.mark.parametrize("field", [{"scale": 0.0}, {"weight": math.nan}, {"mean": math.inf}])
def test_a_term_without_numbers_is_refused(field) -> None:
    with pytest.raises(InputError):
        Term(**{"signal": "a", "mean": 0.0, "scale": 1.0, "weight": 1.0, **field})
