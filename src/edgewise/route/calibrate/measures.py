"""How much a score and each of its signals tell, on cases that nothing was fitted on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from edgewise.route.calibrate.cases import Case
from edgewise.route.calibrate.curves import aurc, auroc, bootstrap, curve, oracle_aurc, random_aurc
from edgewise.route.calibrate.logistic import fit_with_penalty
from edgewise.route.calibrate.report import CalibrateSettings, CurveReport, SignalReport
from edgewise.route.calibrate.score import ScoreDefinition, never_kept

__all__ = ["COMBINED", "ENTROPY", "SELF_ASSESSMENT", "curve_reports", "signal_reports"]

Vector = np.ndarray[Any, np.dtype[np.float64]]

COMBINED: Final = "combined"
# Baselines: name of the curve, signal, and whether a larger value means less certain.
ENTROPY: Final = ("entropy-only", "entropy_mean", True)
SELF_ASSESSMENT: Final = ("self-assessment", "self_yes", False)
_POINTS_MAX: Final = 200
_COVERAGES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def curve_reports(
    score: ScoreDefinition, cases: Sequence[Case], settings: CalibrateSettings
) -> tuple[CurveReport, ...]:
    """Return the curves of the score, of both baselines where recorded, of chance and the best."""
    wrong = wrong_of(cases)
    if not len(wrong):
        return ()
    scores = {COMBINED: risks_of(score, cases)}
    for name, signal, rising in (ENTROPY, SELF_ASSESSMENT):
        if all(signal in case.signals for case in cases):
            scores[name] = _single(signal, cases, sign=1.0 if rising else -1.0)
    intervals: dict[str, dict[str, tuple[float, float]]] = {}
    if settings.bootstrap_rounds and len(wrong) > 1:
        intervals = bootstrap(
            scores,
            wrong,
            reference=COMBINED,
            rounds=settings.bootstrap_rounds,
            seed=settings.seed,
        )
    best = oracle_aurc(wrong)
    scores |= {"random": np.zeros(len(wrong)), "oracle": wrong}
    found = []
    for name, risks in scores.items():
        area = random_aurc(wrong) if name == "random" else aurc(risks, wrong)
        mine = intervals.get(name, {})
        line = curve(risks, wrong)
        found.append(
            CurveReport(
                name=name,
                aurc=area,
                aurc_interval=mine.get("aurc"),
                e_aurc=area - best,
                excess_interval=mine.get("excess") if name != COMBINED else None,
                risk_at={f"{share:g}": _risk_at(line, share) for share in _COVERAGES},
                points=_points(line),
            )
        )
    return tuple(found)


def signal_reports(
    score: ScoreDefinition, fit: Sequence[Case], rest: Sequence[Case]
) -> tuple[SignalReport, ...]:
    """Return what each of a score's signals tells, the most telling first."""
    wrong = wrong_of(rest)
    if not 0 < wrong.sum() < len(wrong):
        return ()
    whole = aurc(risks_of(score, rest), wrong)
    found = []
    for term in score.terms:
        sign = _direction(term.signal, fit)
        area, low, high, _ = auroc(_single(term.signal, rest, sign=sign), wrong)
        left = aurc(risks_of(_without(score, term.signal, fit), rest), wrong)
        found.append(
            SignalReport(
                signal=term.signal,
                auroc=area,
                low=low,
                high=high,
                above_chance=low > 0.5,
                weight=term.weight,
                aurc_without=left - whole,
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.auroc, one.signal)))


def risks_of(score: ScoreDefinition, cases: Sequence[Case]) -> Vector:
    """Return the scores of cases; infinite for one that is never kept."""
    risks = [score.risk({k: float(v) for k, v in case.signals.items()}) for case in cases]
    return np.array([math.inf if risk is None else risk for risk in risks], dtype=np.float64)


def wrong_of(cases: Sequence[Case]) -> Vector:
    """Return 1 for each wrong case and 0 for each right one."""
    return np.array([float(not case.correct) for case in cases], dtype=np.float64)


def _single(signal: str, cases: Sequence[Case], *, sign: float) -> Vector:
    """Return one signal as a score; answers that are never kept come last here as well."""
    values = [
        math.inf
        if never_kept({k: float(v) for k, v in case.signals.items()}) is not None
        else sign * float(case.signals[signal])
        for case in cases
    ]
    return np.array(values, dtype=np.float64)


def _direction(signal: str, fit: Sequence[Case]) -> float:
    area, *_ = auroc(_single(signal, fit, sign=1.0), wrong_of(fit))
    return 1.0 if area >= 0.5 else -1.0


def _without(score: ScoreDefinition, signal: str, fit: Sequence[Case]) -> ScoreDefinition:
    names = [term.signal for term in score.terms if term.signal != signal]
    values = np.array([[float(case.signals[name]) for name in names] for case in fit])
    return fit_with_penalty(
        names, values.reshape(len(fit), len(names)), wrong_of(fit), score.penalty
    )


def _risk_at(line: Vector, share: float) -> float:
    return float(line[max(1, math.ceil(share * len(line) - 1e-9)) - 1])


def _points(line: Vector) -> tuple[tuple[float, float], ...]:
    n = len(line)
    places = np.unique(np.linspace(0, n - 1, min(n, _POINTS_MAX)).round().astype(int))
    return tuple(((int(i) + 1) / n, float(line[i])) for i in places)
