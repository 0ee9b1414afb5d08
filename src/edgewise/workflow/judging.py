"""Judge local answers as they are made: take signals where a calibration needs them, and compare.

Invariants: nothing is sent on the ground of a verdict; without a calibration that stands an answer
is unjudged and costs nothing more; what was made another way than the cases is unjudged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from edgewise.core.bundle import Bundle
from edgewise.core.outcome import Completed, Outcome
from edgewise.core.request import Request
from edgewise.core.signals import Escalation
from edgewise.route.policy import AUTO, Policy
from edgewise.workflow.calibrating import ActiveCalibration, active_calibration
from edgewise.workflow.context import Context

__all__ = ["Judge"]

# Specified: how old what the files of evidence say may be, as for the rest of a route.
_CALIBRATION_AGE_S: Final = 5.0
_TASK: Final = "task"  # the one slice of a request that is known here
_RAW: Final = Escalation(
    judged=False,
    suggested=False,
    reasons=("a raw prompt has no template, and the cases of a calibration had one",),
)


class Judge:
    """Says of each answer of one deployment whether its policy's calibration keeps it.

    Callable from any thread.
    """

    def __init__(self, context: Context, bundle: Bundle | None, policy: Policy) -> None:
        self._context = context
        self._bundle = bundle
        self._policy = policy
        self._read: tuple[float, ActiveCalibration] | None = None

    def judges(self, request: Request) -> bool:
        """Return whether the policy escalates the task, so that its answers have a verdict.

        Where a classifier is yet to say the task, whether it escalates any.
        """
        tasks = self._policy.by_task
        if request.task == AUTO and AUTO not in tasks:
            return self._bundle is not None and any(task.escalate for task in tasks.values())
        return self._bundle is not None and self._escalates(request.task)

    def _escalates(self, name: str) -> bool:
        task = self._policy.by_task.get(name)
        return task is not None and task.escalate

    def __call__(self, request: Request, ask: Callable[[Request], Outcome]) -> Outcome:
        """Return what ``ask`` makes of a request; a completed answer with its verdict."""
        if self._bundle is None or not self.judges(request):
            return ask(request)
        if request.prompt is not None:
            return _with(ask(request), lambda _: _RAW)
        active = self._active(self._bundle)
        if active.standing.stands:
            request = msgspec.structs.replace(request, signals=True)

        def verdict(done: Completed) -> Escalation:
            open_task = request.task == AUTO and AUTO not in self._policy.by_task
            found = done.provenance.route.task if open_task else request.task
            if not self._escalates(found):
                return _other(found)
            by_task = active.evidence is not None and active.evidence.slice_by == _TASK
            return active.judge(done.signals, found if by_task else None)

        return _with(ask(request), verdict)

    def _active(self, bundle: Bundle) -> ActiveCalibration:
        now, read = time.monotonic(), self._read
        if read is None or now - read[0] > _CALIBRATION_AGE_S:
            read = (now, active_calibration(self._context, bundle.deployment))
            self._read = read
        return read[1]


def _other(task: str) -> Escalation:
    why = f"it was taken for a {task} request, which the policy does not escalate"
    return Escalation(judged=False, suggested=False, reasons=(why,))


def _with(outcome: Outcome, verdict: Callable[[Completed], Escalation]) -> Outcome:
    if not isinstance(outcome, Completed):
        return outcome
    return msgspec.structs.replace(outcome, escalation=verdict(outcome))
