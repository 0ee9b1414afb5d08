"""From labelled texts to a classifier and what can be shown of it. Pure: the same in, the same out.

Each task has a threshold of its own: of the texts that are taken for it, at most so many are of
another. The tests are those of :mod:`edgewise.route.calibrate.thresholds`, in which the group of a
case is the task that it is taken for. The model does not depend on the cases that are tested, so
that, given how many are taken for a task, whether each is right is an independent draw.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from edgewise.route.calibrate.bounds import upper_bound
from edgewise.route.calibrate.thresholds import Refusal, Scored, learn_threshold, shared_delta
from edgewise.route.classify.cases import TaskCase, distinct
from edgewise.route.classify.evidence import (
    ClassifierEvidence,
    ClassifierReport,
    LearnSettings,
    TaskShown,
)
from edgewise.route.classify.fitting import fit
from edgewise.route.classify.model import TaskModel, score_of
from edgewise.route.classify.texts import FORM, features

__all__ = ["learn_tasks"]

_FIT_MIN: Final = 20
_TASK_MIN: Final = 5
_FOLDS: Final = 3
# What is less likely than all other tasks together is never said, whatever could be shown of it:
# texts that are like none of the cases end up there first.
_SCORE_MIN: Final = 0.500001


class _Judged(NamedTuple):
    """A case with what a model that did not see it takes it for; nothing where it knows nothing."""

    task: str
    said: str
    risk: float


def learn_tasks(
    cases: Sequence[TaskCase],
    settings: LearnSettings,
    *,
    dataset_sha256: str,
    on_fit: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[ClassifierReport, TaskModel | None]:
    """Return what can be shown of a classifier of the cases, and the classifier.

    A no is in the report: every task has a threshold, or the reasons why it has none.

    Args:
        cases: At least one; no text has two tasks.
        settings: What is asked.
        dataset_sha256: Digest of where the cases come from.
        on_fit: Called with how many models are fitted, and of how many.
    """
    found = distinct(cases, settings.seed)
    cut = round(len(found.cases) * settings.fit_share)
    fitted, held = found.cases[:cut], found.cases[cut:]
    tasks = sorted({case.task for case in cases})
    refusal = _unfit(fitted, tasks)
    model, before, after = None, [], []
    if refusal is None:
        before = _crossed(fitted, tasks, on_fit)
        model = _model(fitted, tasks)
        on_fit(_FOLDS + 1, _FOLDS + 1)
        after = _judged(model, held)
    evidence = ClassifierEvidence(
        model_sha256="" if model is None else model.sha256,
        form=FORM,
        target_error=settings.target_error,
        confidence=settings.confidence,
        tasks=_shown(tasks, held, before, after, settings, refusal),
        right=sum(one.said == one.task for one in after),
        accuracy_low=_low(sum(one.said != one.task for one in after), len(after), settings),
        confusion=_confusion(after),
        dataset_sha256=dataset_sha256,
        n_fit=len(fitted),
        n_held=len(held),
        duplicates=found.duplicates,
        seed=settings.seed,
    )
    report = ClassifierReport(
        enabled=evidence.enabled,
        settings=settings,
        evidence=evidence,
        cases=len(cases),
        refusals=() if refusal is None else (refusal,),
    )
    return report, model


def _unfit(fitted: Sequence[TaskCase], tasks: Sequence[str]) -> Refusal | None:
    if len(tasks) == 1:
        message = f"all cases are of the task {tasks[0]}: there is nothing to tell apart"
        return Refusal(code="one-class", message=message)
    counts = Counter(case.task for case in fitted)
    rarest = min(tasks, key=lambda task: counts[task])
    if len(fitted) >= _FIT_MIN and counts[rarest] >= _TASK_MIN:
        return None
    message = (
        f"{len(fitted)} cases to fit on, {counts[rarest]} of them of the task {rarest}; a model "
        f"takes at least {_FIT_MIN}, and {_TASK_MIN} of each task"
    )
    return Refusal(code="too-few-cases", message=message)


def _model(cases: Sequence[TaskCase], tasks: Sequence[str]) -> TaskModel:
    return fit([(features(case.prompt), tasks.index(case.task)) for case in cases], tasks)


def _judged(model: TaskModel, cases: Sequence[TaskCase]) -> list[_Judged]:
    found = ((case.task, model.judge(case.prompt)) for case in cases)
    return [_Judged(task, *(said or ("", math.inf))) for task, said in found]


def _crossed(
    fitted: Sequence[TaskCase], tasks: Sequence[str], on_fit: Callable[[int, int], None]
) -> list[_Judged]:
    """Judge each case by a model of the others: what a model says of its own cases is no guide."""
    found = []
    for number in range(_FOLDS):
        rest = [case for at, case in enumerate(fitted) if at % _FOLDS != number]
        found += _judged(_model(rest, tasks), fitted[number::_FOLDS])
        on_fit(number + 1, _FOLDS + 1)
    return found


def _shown(
    tasks: Sequence[str],
    held: Sequence[TaskCase],
    before: Sequence[_Judged],
    after: Sequence[_Judged],
    settings: LearnSettings,
    refusal: Refusal | None,
) -> tuple[TaskShown, ...]:
    groups = {task: [one for one in after if one.said == task] for task in tasks}
    delta = shared_delta(
        {task: len(group) for task, group in groups.items()},
        target=settings.target_error,
        confidence=settings.confidence,
    )
    whole = Counter(case.task for case in held)
    each = (1 - settings.confidence) / len(tasks)
    return tuple(
        _one(
            TaskShown(
                task=task,
                cases=whole[task],
                said=len(group),
                right=sum(one.task == task for one in group),
                precision_low=1
                - upper_bound(sum(one.task != task for one in group), len(group), each),
                delta=delta,
                refusals=() if refusal is None else (refusal,),
            ),
            [one for one in before if one.said == task],
            group,
            settings,
        )
        for task, group in groups.items()
    )


def _one(
    plain: TaskShown, before: Sequence[_Judged], group: Sequence[_Judged], settings: LearnSettings
) -> TaskShown:
    """Return the threshold of one task, or why it has none."""
    if plain.refusals:
        return plain
    if not group:
        message = f"none of the cases is taken for {plain.task}"
        return _refused(plain, Refusal(code="never-said", message=message))
    found = learn_threshold(
        _scored(before), _scored(group), target=settings.target_error, delta=plain.delta
    )
    if found.chosen is None:
        return _refused(plain, found.refusal)
    step = found.chosen
    return msgspec.structs.replace(
        plain,
        threshold=max(score_of(step.threshold), _SCORE_MIN),
        kept=step.kept,
        kept_wrong=step.wrong,
    )


def _scored(judged: Sequence[_Judged]) -> Scored:
    risks = [one.risk if score_of(one.risk) >= _SCORE_MIN else math.inf for one in judged]
    return Scored(risks, [one.said != one.task for one in judged])


def _refused(plain: TaskShown, refusal: Refusal | None) -> TaskShown:
    return msgspec.structs.replace(plain, refusals=() if refusal is None else (refusal,))


def _confusion(judged: Sequence[_Judged]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (task, said), count in sorted(Counter((one.task, one.said) for one in judged).items()):
        if said and task != said:
            found.setdefault(task, {})[said] = count
    return found


def _low(wrong: int, trials: int, settings: LearnSettings) -> float:
    return 1 - upper_bound(wrong, trials, 1 - settings.confidence)
