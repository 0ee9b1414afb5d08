"""A small regularised logistic model, fitted to the same digits every time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from edgewise.route.calibrate.score import STANDARD_MAX, ScoreDefinition, Term

__all__ = ["fit_logistic", "fit_with_penalty", "usable_signals"]

Matrix = np.ndarray[Any, np.dtype[np.float64]]

_PENALTIES: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_FOLDS: Final = 5
_STEPS_MAX: Final = 60
_TOLERANCE: Final = 1e-10
# What is stored is what is used; the last digits of a solver differ between libraries.
_DIGITS: Final = 10


def usable_signals(names: Sequence[str], values: Matrix) -> list[str]:
    """Return the names of columns that vary at all."""
    spread = values.std(axis=0) > 1e-9 * (1 + np.abs(values).max(axis=0))
    return [name for name, varies in zip(names, spread, strict=True) if varies]


def fit_logistic(names: Sequence[str], values: Matrix, wrong: Matrix) -> ScoreDefinition:
    """Return a score fitted by penalised maximum likelihood.

    The ridge penalty on standardised signals is the one with the least log loss in 5-fold
    cross-validation; among equals the strongest. Folds go by place, so the caller's order counts.

    Args:
        names: Of the signals, each of which varies.
        values: Shape ``(cases, signals)``.
        wrong: Shape ``(cases,)``, 1 for a wrong answer and 0 for a right one; both occur.
    """
    standard, _, _ = _standardised(values)
    losses = [(_cross_validated(standard, wrong, penalty), -penalty) for penalty in _PENALTIES]
    return fit_with_penalty(names, values, wrong, -min(losses)[1])


def fit_with_penalty(
    names: Sequence[str], values: Matrix, wrong: Matrix, penalty: float
) -> ScoreDefinition:
    """Return a score fitted under a given penalty; arguments as :func:`fit_logistic`'s."""
    standard, means, scales = _standardised(values)
    solved = _solve(standard, wrong, penalty)
    return ScoreDefinition(
        intercept=_rounded(solved[0]),
        terms=tuple(
            Term(signal=name, mean=float(mean), scale=float(scale), weight=_rounded(weight))
            for name, mean, scale, weight in zip(names, means, scales, solved[1:], strict=True)
        ),
        penalty=penalty,
    )


def _standardised(values: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    means = np.array([_rounded(m) for m in values.mean(axis=0)])
    scales = np.array([_rounded(s) for s in values.std(axis=0)])
    standard = np.clip((values - means) / scales, -STANDARD_MAX, STANDARD_MAX)
    return standard, means, scales


def _cross_validated(standard: Matrix, wrong: Matrix, penalty: float) -> float:
    """Return the log loss on cases that were left out, rounded so that ties are ties."""
    fold = np.arange(len(wrong)) % _FOLDS
    total = 0.0
    for number in range(_FOLDS):
        held = fold == number
        solved = _solve(standard[~held], wrong[~held], penalty)
        total += _loss(standard[held], wrong[held], solved)
    return round(total / len(wrong), 6)


def _loss(standard: Matrix, wrong: Matrix, solved: Matrix) -> float:
    logits = solved[0] + standard @ solved[1:]
    return float(np.logaddexp(0.0, np.where(wrong > 0, -logits, logits)).sum())


def _solve(standard: Matrix, wrong: Matrix, penalty: float) -> Matrix:
    """Return intercept and weights, by Newton's method with halved steps. Convex: one solution."""
    design = np.column_stack([np.ones(len(standard)), standard])
    ridge = np.full(design.shape[1], penalty)
    ridge[0] = 1e-3  # keeps the intercept finite where a fold has one class only
    solved = np.zeros(design.shape[1])

    def objective(at: Matrix) -> float:
        return _loss(standard, wrong, at) + 0.5 * float((ridge * at**2).sum())

    now = objective(solved)
    for _ in range(_STEPS_MAX):
        rates = 1 / (1 + np.exp(-np.clip(design @ solved, -500, 500)))
        gradient = design.T @ (rates - wrong) + ridge * solved
        weights = rates * (1 - rates)
        hessian = (design.T * weights) @ design + np.diag(ridge)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while objective(solved - size * step) > now and size > 1e-6:
            size /= 2
        solved = solved - size * step
        before, now = now, objective(solved)
        if before - now < _TOLERANCE * (1 + abs(now)):
            break
    return solved


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
