"""From cases to a score, thresholds with a bound, and a report. Pure: the same in, the same out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from edgewise.route.calibrate.cases import Case, slice_of, split
from edgewise.route.calibrate.curves import auroc
from edgewise.route.calibrate.enough import CLASS_MIN, FIT_MIN
from edgewise.route.calibrate.evidence import EscalationEvidence, SliceThreshold
from edgewise.route.calibrate.logistic import fit_logistic, usable_signals
from edgewise.route.calibrate.measures import (
    curve_reports,
    risks_of,
    signal_reports,
    wrong_of,
)
from edgewise.route.calibrate.report import CalibrateSettings, CalibrationReport
from edgewise.route.calibrate.score import ScoreDefinition
from edgewise.route.calibrate.thresholds import (
    Refusal,
    Scored,
    Step,
    learn_threshold,
    shared_delta,
)

__all__ = ["learn"]

Vector = np.ndarray[Any, np.dtype[np.float64]]

_SLICE_FIT_MIN: Final = 30
_SELF: Final = "self_"
_EITHER: Final = {True: "wrong", False: "right"}


def learn(
    cases: Sequence[Case],
    settings: CalibrateSettings,
    *,
    dataset_sha256: str,
    sections: Mapping[str, str] | None = None,
    measured: bool = True,
) -> CalibrationReport:
    """Return what the cases prove about answers that are kept.

    Args:
        cases: At least one, each with an id of its own.
        settings: What is asked.
        dataset_sha256: Digest of where the cases come from.
        sections: Digest of each section of the deployment that answered.
        measured: Whether curves and what each signal tells are wanted too.

    Raises:
        InputError: a setting has no value that can be used.
    """
    fit, rest = split(
        tuple(cases), fit_share=settings.fit_share, seed=settings.seed, key=settings.slice_by
    )
    names, notes = _chosen(cases, settings)
    score, refusal = _fitted(fit, names)
    groups = _groups(cases, rest, settings.slice_by)
    thresholds, steps = _thresholds(fit, groups, len(cases), score, refusal, settings)
    evidence = EscalationEvidence(
        target_error=settings.target_error,
        confidence=settings.confidence,
        slice_by=settings.slice_by,
        score=score,
        thresholds=thresholds,
        dataset_sha256=dataset_sha256,
        n_fit=len(fit),
        n_calibrate=len(rest),
        seed=settings.seed,
        prompt_sha256=cases[0].prompt_sha256,
        sections=dict(sections or {}),
    )
    return CalibrationReport(
        enabled=evidence.enabled,
        settings=settings,
        evidence=evidence,
        cases=len(cases),
        wrong=sum(not case.correct for case in cases),
        refusals=() if refusal is None else (refusal,),
        signals=signal_reports(score, fit, rest) if score is not None and measured else (),
        curves=curve_reports(score, rest, settings) if score is not None and measured else (),
        steps=steps,
        notes=(*notes, *_mixture(cases, settings)),
    )


def _chosen(cases: Sequence[Case], settings: CalibrateSettings) -> tuple[list[str], list[str]]:
    """Return the signals that every case has and that may be used, and what to say about others."""
    seen: dict[str, int] = {}
    for case in cases:
        for name in case.signals:
            seen[name] = seen.get(name, 0) + 1
    asked = settings.signals or tuple(name for name in sorted(seen) if not name.startswith(_SELF))
    notes = [
        f"the signal {name} is left out: {len(cases) - seen.get(name, 0)} of {len(cases)} cases "
        "do not have it"
        for name in asked
        if seen.get(name, 0) < len(cases)
    ]
    return [name for name in asked if seen.get(name, 0) == len(cases)], notes


def _fitted(
    fit: Sequence[Case], names: Sequence[str]
) -> tuple[ScoreDefinition | None, Refusal | None]:
    """Return the score, or why there is none."""
    refusal = _unfit(fit)
    if refusal is not None:
        return None, refusal
    values = np.array([[float(case.signals[name]) for name in names] for case in fit])
    values = values.reshape(len(fit), len(names))
    varying = usable_signals(names, values)
    if not varying:
        message = "no signal that all cases have differs between them"
        return None, Refusal(code="no-signals", message=message)
    columns = [names.index(name) for name in varying]
    wrong = np.array([float(not case.correct) for case in fit])
    return fit_logistic(varying, values[:, columns], wrong), None


def _unfit(fit: Sequence[Case]) -> Refusal | None:
    wrong = sum(not case.correct for case in fit)
    rarer = min(wrong, len(fit) - wrong)
    if len(fit) >= FIT_MIN and rarer == 0:
        kind = _EITHER[wrong > 0]
        message = f"all {len(fit)} cases to fit on are {kind}: there is nothing to tell apart"
        return Refusal(code="one-class", message=message)
    if len(fit) < FIT_MIN or rarer < CLASS_MIN:
        message = (
            f"{len(fit)} cases to fit on, {wrong} of them wrong; a score takes at least "
            f"{FIT_MIN}, of which {CLASS_MIN} are right and {CLASS_MIN} wrong"
        )
        return Refusal(code="too-few-cases", message=message)
    return None


def _groups(
    cases: Sequence[Case], rest: Sequence[Case], key: str | None
) -> dict[str, tuple[int, list[Case]]]:
    """Return for each slice how many cases it has in all, and those to calibrate on."""
    groups: dict[str, tuple[int, list[Case]]] = {}
    for name in sorted({slice_of(case, key) or "" for case in cases}):
        count = sum((slice_of(case, key) or "") == name for case in cases)
        groups[name] = (count, [case for case in rest if (slice_of(case, key) or "") == name])
    return groups


def _thresholds(
    fit: Sequence[Case],
    groups: dict[str, tuple[int, list[Case]]],
    total: int,
    score: ScoreDefinition | None,
    refusal: Refusal | None,
    settings: CalibrateSettings,
) -> tuple[tuple[SliceThreshold, ...], dict[str, tuple[Step, ...]]]:
    delta = shared_delta(
        {name: len(group) for name, (_, group) in groups.items()},
        target=settings.target_error,
        confidence=settings.confidence,
    )
    found: list[SliceThreshold] = []
    steps: dict[str, tuple[Step, ...]] = {}
    for name, (count, group) in groups.items():
        plain = SliceThreshold(
            slice=name,
            cases=len(group),
            wrong=sum(not case.correct for case in group),
            share=count / total,
            delta=delta,
        )
        if score is None:
            made = _refused(plain, refusal)
        elif not name:
            made = _refused(plain, _missing(count, settings))
        else:
            made, steps[name] = _one(plain, score, fit, group, settings)
        found.append(made)
    return tuple(found), steps


def _one(
    plain: SliceThreshold,
    score: ScoreDefinition,
    fit: Sequence[Case],
    group: Sequence[Case],
    settings: CalibrateSettings,
) -> tuple[SliceThreshold, tuple[Step, ...]]:
    """Return the threshold of one slice, with the steps that led to it."""
    own = [case for case in fit if (slice_of(case, settings.slice_by) or "") == plain.slice]
    fitted = own if len(own) >= _SLICE_FIT_MIN else fit
    risks, wrong = risks_of(score, group), wrong_of(group)
    found = learn_threshold(
        _scored(risks_of(score, fitted), wrong_of(fitted)),
        _scored(risks, wrong),
        target=settings.target_error,
        delta=plain.delta,
    )
    if not found.steps:  # too few cases to say anything
        return _refused(plain, found.refusal), ()
    chance = _chance(risks, wrong)
    if chance is not None or found.chosen is None:
        return _refused(plain, found.refusal, chance), found.steps
    step = found.chosen
    proved = msgspec.structs.replace(
        plain, threshold=step.threshold, kept=step.kept, kept_wrong=step.wrong
    )
    return proved, found.steps


def _scored(risks: Vector, wrong: Vector) -> Scored:
    return Scored(risks.tolist(), [bool(one) for one in wrong])


def _chance(risks: Vector, wrong: Vector) -> Refusal | None:
    """Return why a score tells nothing here. It only ever refuses, so no bound depends on it."""
    if not 0 < wrong.sum() < len(wrong):
        kind = _EITHER[bool(wrong.sum())]
        message = f"all {len(wrong)} cases to calibrate on are {kind}: no score can be judged"
        return Refusal(code="one-class", message=message)
    area, _, _, least = auroc(risks, wrong)
    if least > 0.5:
        return None
    message = (
        f"the score tells wrong from right answers with an AUROC of {area:.3f}, which is not "
        "above chance at 95% confidence"
    )
    return Refusal(code="no-better-than-chance", message=message)


def _missing(count: int, settings: CalibrateSettings) -> Refusal:
    message = f"{count} cases do not say their {settings.slice_by!r}"
    return Refusal(code="slice-missing", message=message)


def _refused(plain: SliceThreshold, *refusals: Refusal | None) -> SliceThreshold:
    why = tuple(refusal for refusal in refusals if refusal is not None)
    return msgspec.structs.replace(plain, refusals=why)


def _mixture(cases: Sequence[Case], settings: CalibrateSettings) -> list[str]:
    keys = sorted({key for case in cases for key in case.slices})
    if settings.slice_by is not None or not keys:
        return []
    note = (
        f"the cases have slices by {', '.join(keys)}; the one bound is of their mixture as it is "
        "here, and a single slice may be wrong more often: calibrate with --slice-by"
    )
    return [note]
