"""Learn a classifier of tasks, keep it with its evidence, and open the one that a policy trusts.

Evidence and reports hold no content. The model holds hashed words that stand in at least three
cases; see the documentation on what can be told from it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from edgewise.core.evidence import Evidence
from edgewise.errors import EdgewiseError, InputError, IntegrityError
from edgewise.route.classify import (
    CASE_HINT,
    CLASSIFIER_KIND,
    MODEL_BYTES_MAX,
    ClassifierEvidence,
    ClassifierReport,
    LearnSettings,
    TaskClassifier,
    TaskModel,
    learn_tasks,
    parse_task_cases,
    read_classifier,
)
from edgewise.route.policy import ClassifierRule
from edgewise.store.regular import read_regular
from edgewise.workflow.calibrating import load_cases
from edgewise.workflow.context import Context, Step

__all__ = [
    "ClassifierFound",
    "find_classifier",
    "learn_classifier",
    "load_model",
    "model_path",
    "open_classifier",
]


class ClassifierFound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A classifier of this home by its evidence.

    Attributes:
        digest: Of the evidence: what a policy names.
        created: Its date.
        evidence: What was shown.
    """

    digest: str
    created: str
    evidence: ClassifierEvidence


def learn_classifier(
    context: Context, cases: Path, settings: LearnSettings
) -> tuple[ClassifierReport, str]:
    """Return what can be shown of a classifier of the cases, and the digest of its evidence.

    The model is kept in the home where any task has a threshold.

    Raises:
        InputError: the file cannot be read, a line of it is no case, or the same text has two
            tasks.
        ResourceError: the home cannot be written.
    """
    lines = load_cases(cases, hint=CASE_HINT)
    found = parse_task_cases(lines)
    context.report(Step(stage="classify", status="start", message=f"{len(found)} cases"))
    report, model = learn_tasks(
        found,
        settings,
        dataset_sha256=lines.sha256,
        on_fit=lambda done, total: context.report(
            Step(stage="classify", status="progress", done=done, total=total)
        ),
    )
    if model is not None and report.enabled:
        path = model_path(context, report.evidence.model_sha256)
        context.home.write(path, model.to_bytes())
    about = report.evidence.model_sha256 or report.evidence.dataset_sha256
    digest = context.record(CLASSIFIER_KIND, about, report.evidence)
    return report, digest


def model_path(context: Context, sha256: str) -> Path:
    """Return where the model with this digest lies, or would."""
    return context.home.root / "classifiers" / f"{sha256}.json"


def find_classifier(context: Context, prefix: str | None = None) -> ClassifierFound:
    """Return a classifier by the beginning of its evidence's digest; the newest without.

    Raises:
        InputError: there is none, or the evidence is of something else.
        IntegrityError: the evidence is damaged.
    """
    if prefix is not None:
        digest, piece = context.evidence.get(prefix)
    else:
        pieces = context.evidence.find(kind=CLASSIFIER_KIND)
        if not pieces:
            raise InputError(
                "classifier-missing",
                "this home has no classifier of tasks",
                hint="learn one: edgewise classify learn CASES",
            )
        digest, piece = pieces[-1]
    return ClassifierFound(digest=digest, created=piece.created, evidence=_shown(digest, piece))


def load_model(context: Context, sha256: str) -> TaskModel:
    """Return a model by its digest, which is checked before a byte of it is decoded.

    Raises:
        IntegrityError: its file is missing, too large, or not what it was.
    """
    path = model_path(context, sha256)
    try:
        data = read_regular(path, limit_bytes=MODEL_BYTES_MAX)
    except OSError as error:
        raise IntegrityError(
            "task-model-missing",
            f"the classifier's file cannot be read: {error.strerror}",
            context={"path": str(path)},
            hint="learn it again, or copy it into the home beside its evidence",
        ) from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise IntegrityError(
            "task-model-invalid",
            "the classifier's file has changed since it was written",
            context={"path": str(path)},
            hint="learn it again, or copy it into the home beside its evidence",
        )
    return TaskModel.from_bytes(data)


def open_classifier(context: Context, rule: ClassifierRule) -> TaskClassifier:
    """Return the classifier that a policy trusts; one that cannot be read says why."""
    evidence, model, created = None, None, ""
    try:
        found = find_classifier(context, rule.evidence)
        evidence, created = found.evidence, found.created
        model = load_model(context, evidence.model_sha256) if evidence.enabled else None
    except EdgewiseError as error:
        return TaskClassifier(rule, evidence=None, model=None, faults=(error.message,))
    strange = model is not None and {one.task for one in evidence.tasks} != set(model.tasks)
    faults = ("its evidence is about other tasks than its model",) if strange else ()
    return TaskClassifier(rule, evidence=evidence, created=created, model=model, faults=faults)


def _shown(digest: str, piece: Evidence) -> ClassifierEvidence:
    found = read_classifier(piece)
    if found is None:
        raise InputError(
            "classifier-missing",
            f"evidence {digest[:12]} is of the kind {piece.kind!r}, and holds no classifier that "
            "this version reads",
            hint="edgewise evidence list --kind task-classifier",
        )
    return found
