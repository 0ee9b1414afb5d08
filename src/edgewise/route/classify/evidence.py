"""What was shown of a classifier of tasks, and whether that stands under a policy.

It holds names of tasks, counts, bounds and digests; nothing of any text. It is about the model's
file, not about a deployment: a classifier reads the request before anybody answers it, and says
the same on every device.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

import msgspec

from edgewise.core.canonical import is_digest
from edgewise.core.evidence import Evidence
from edgewise.errors import InputError
from edgewise.route.calibrate.evidence import age_reasons
from edgewise.route.calibrate.thresholds import Refusal
from edgewise.route.policy import ClassifierRule

__all__ = [
    "CLASSIFIER_KIND",
    "ClassifierEvidence",
    "ClassifierReport",
    "LearnSettings",
    "TaskShown",
    "classifier_reasons",
    "read_classifier",
]

CLASSIFIER_KIND: Final = "task-classifier"


class LearnSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to learn.

    Attributes:
        target_error: Largest error rate of what is taken for a task, between 0 and 1.
        confidence: How sure that is to be for all tasks together, from 0.5 to below 1.
        fit_share: Share of the cases that the model is fitted on, between 0.1 and 0.9.
        seed: Of the split.
    """

    target_error: float = 0.1
    confidence: float = 0.95
    fit_share: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        for name, ok, allowed in (
            ("target_error", 0 < self.target_error < 1, "between 0 and 1"),
            ("confidence", 0.5 <= self.confidence < 1, "0.5 to below 1"),
            ("fit_share", 0.1 <= self.fit_share <= 0.9, "0.1 to 0.9"),
            ("seed", 0 <= self.seed < 2**53, "0 to 2^53 - 1"),
        ):
            if not ok:
                raise InputError(
                    "classifier-invalid",
                    f"{name} is {getattr(self, name)!r}; allowed is {allowed}",
                    context={"field": name},
                    hint=f"set {name} within that range, or leave it out",
                )


class TaskShown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was shown of one task, on cases that nothing was fitted on.

    Attributes:
        task: Its name.
        cases: How many of the cases are of it.
        said: How many were taken for it, however unsure.
        right: Those of them that are of it.
        precision_low: Lower confidence bound of the share of these; all tasks' hold together.
        threshold: Least score with which a text is taken for it; ``None``: it never is.
        kept: Cases with at least this score.
        kept_wrong: Those of them that are of another task.
        delta: Chance that the bound on those does not hold for this task.
        refusals: Why there is no threshold.
    """

    task: str
    cases: int
    said: int
    right: int
    precision_low: float
    threshold: float | None = None
    kept: int = 0
    kept_wrong: int = 0
    delta: float
    refusals: tuple[Refusal, ...] = ()


class ClassifierEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was shown of a classifier.

    Attributes:
        model_sha256: Digest of its file; empty where no model was fitted.
        form: How a text becomes features.
        target_error: Bound on the error rate of what is taken for a task, for each task that has a
            threshold.
        confidence: That all of these bounds hold together, at least (Bonferroni).
        tasks: What was shown of each.
        right: Cases that are of the likeliest task, however unsure; of ``n_held``.
        accuracy_low: Lower confidence bound of their share.
        confusion: How many cases of a task (first name) were taken for another (second name).
        method: How the thresholds were learned.
        dataset_sha256: Digest of the cases.
        n_fit: Cases that the model was fitted on.
        n_held: Cases that all figures are of.
        duplicates: Cases that were left out, since others are the same to the classifier.
        seed: Of the split.
    """

    schema_version: int = 1
    model_sha256: str
    form: str
    target_error: float
    confidence: float
    tasks: tuple[TaskShown, ...]
    right: int
    accuracy_low: float
    confusion: dict[str, dict[str, int]]
    method: str = "learn-then-test, fixed sequence, exact binomial tails, Bonferroni over tasks"
    dataset_sha256: str
    n_fit: int
    n_held: int
    duplicates: int
    seed: int

    @property
    def enabled(self) -> bool:
        """Return whether any task has a threshold."""
        return any(one.threshold is not None for one in self.tasks)

    @property
    def kept(self) -> int:
        """Return how many cases were taken for a task for sure."""
        return sum(one.kept for one in self.tasks)

    @property
    def kept_wrong(self) -> int:
        """Return how many of these are of another task."""
        return sum(one.kept_wrong for one in self.tasks)

    def threshold(self, task: str) -> float | None:
        """Return the score that a task takes; ``None`` where nothing was shown for it."""
        return next((one.threshold for one in self.tasks if one.task == task), None)


class ClassifierReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What learning came to.

    Attributes:
        enabled: Whether any task has a threshold.
        settings: What was asked.
        evidence: What was shown; this is what is stored.
        cases: How many there were, with those that are the same.
        refusals: Why nothing at all is enabled, where the reason is not a task's.
    """

    schema_version: int = 1
    enabled: bool
    settings: LearnSettings
    evidence: ClassifierEvidence
    cases: int
    refusals: tuple[Refusal, ...] = ()


def read_classifier(piece: Evidence) -> ClassifierEvidence | None:
    """Return what a piece of evidence shows of a classifier; ``None`` where it is of none."""
    if piece.kind != CLASSIFIER_KIND:
        return None
    try:
        found = msgspec.convert(piece.figures, ClassifierEvidence)
    except msgspec.ValidationError:
        return None
    sound = is_digest(found.model_sha256) or not found.enabled
    return found if sound and found.schema_version == 1 else None


def classifier_reasons(
    found: ClassifierEvidence, created: str, rule: ClassifierRule, *, now: dt.datetime
) -> tuple[str, ...]:
    """Return why a classifier does not stand under a policy now; none where it stands.

    Args:
        found: What was shown of it.
        created: Date of the evidence.
        rule: What the policy asks of it.
        now: With its time zone.
    """
    reasons = age_reasons(created, now, rule.max_age_days)
    if not found.enabled:
        reasons.append("no task has a threshold")
    shown = 1 - found.target_error
    if shown < rule.minimum_accuracy - 1e-12:  # 1 - 0.1 is not 0.9 in every last digit
        reasons.append(
            f"an accuracy of {shown:.1%} was shown, and the policy asks for "
            f"{rule.minimum_accuracy:.1%}"
        )
    if found.confidence < rule.minimum_confidence:
        reasons.append(
            f"that was shown at {found.confidence:.1%} confidence, and the policy asks for "
            f"{rule.minimum_confidence:.1%}"
        )
    return tuple(reasons)
