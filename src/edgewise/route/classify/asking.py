"""A classifier under a policy: what it says of a request, as a fact for the router.

Invariants: it answers every request and raises nothing; what does not stand says nothing, and why;
what it says is a task, a score and words of its own, and nothing of the request.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable

from edgewise.core.request import Request
from edgewise.route.classify.evidence import ClassifierEvidence, classifier_reasons
from edgewise.route.classify.model import TaskModel, score_of
from edgewise.route.classify.texts import READ_CHARACTERS, features
from edgewise.route.facts import ClassifiedTask
from edgewise.route.policy import ClassifierRule

__all__ = ["TaskClassifier", "classified", "text_of"]


class TaskClassifier:
    """A loaded classifier, or why it could not be loaded. Callable from any thread.

    Args:
        rule: What the policy asks of it.
        evidence: What was shown of it; ``None`` where that could not be read.
        created: Date of the evidence.
        model: The model; ``None`` where it could not be read.
        faults: Why it does not stand, whatever the time.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        rule: ClassifierRule,
        *,
        evidence: ClassifierEvidence | None,
        created: str = "",
        model: TaskModel | None,
        faults: tuple[str, ...] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._rule = rule
        self._evidence = evidence
        self._created = created
        self._model = model
        self._faults = faults
        self._clock = clock

    def reasons(self) -> tuple[str, ...]:
        """Return why it does not stand now; none where it stands."""
        if self._evidence is None:
            return self._faults or ("its evidence could not be read",)
        now = dt.datetime.fromtimestamp(self._clock(), dt.UTC)
        found = classifier_reasons(self._evidence, self._created, self._rule, now=now)
        missing = ("its model could not be read",) if self._model is None and not found else ()
        return (*self._faults, *found, *missing)

    def say(self, request: Request) -> ClassifiedTask:
        """Return what it says of a request's task."""
        reasons = self.reasons()
        if reasons or self._evidence is None or self._model is None:
            return ClassifiedTask(
                stands=False, evidence=self._rule.evidence, reason="; ".join(reasons)
            )
        text = text_of(request)
        if text is None:
            return ClassifiedTask(
                stands=True,
                evidence=self._rule.evidence,
                reason="the request holds no text of a user",
            )
        return classified(self._model, self._evidence, self._rule.evidence, text)


def classified(
    model: TaskModel, evidence: ClassifierEvidence, digest: str, text: str
) -> ClassifiedTask:
    """Return what a classifier that stands says of a text."""
    said = model.judge(text)
    if said is None:
        why = (
            "nothing in the text is known" if features(text) else "the text has nothing to be seen"
        )
        return ClassifiedTask(stands=True, evidence=digest, reason=why)
    task, risk = said
    part = f"of {len(text)} characters the first and last {READ_CHARACTERS // 2} were read"
    return ClassifiedTask(
        stands=True,
        task=task,
        score=score_of(risk),
        threshold=evidence.threshold(task),
        evidence=digest,
        reason=part if len(text) > READ_CHARACTERS else "",
    )


def text_of(request: Request) -> str | None:
    """Return the text that a classifier reads: the user's last turn, or a prompt that is text."""
    if request.prompt is not None:
        return request.prompt if isinstance(request.prompt, str) else None
    return next((one.content for one in reversed(request.messages) if one.role == "user"), None)
