"""Which task a request is of: what its caller says, or what a trusted classifier found. Pure.

A classifier only ever says a task. Whether what it said lets anything leave is a rule of its own,
which denies unless the policy names the task; the data class is never touched.
"""

from __future__ import annotations

from typing import NamedTuple

from edgewise.core.outcome import RuleResult
from edgewise.core.request import Request
from edgewise.route.facts import ClassifiedTask, RouteEvidence
from edgewise.route.local_rules import idle, rule
from edgewise.route.policy import AUTO, ClassifierRule, Policy, TaskRule

__all__ = ["TaskFound", "counts", "leave_rule", "task_of"]

_CLASSIFIED = "task-classified"
_LEAVES = "task-may-leave"
# Made once: most requests say their task.
_SAID = idle(_CLASSIFIED, "the caller says the task")
_ITS_OWN = idle(_LEAVES, "the caller says the task")


class TaskFound(NamedTuple):
    """The task of a request.

    Attributes:
        name: Its name; empty where none was found.
        declared: Whether the caller said it.
        may_leave: Whether such a request may leave at all, as far as that depends on who said it.
        rule: What came of looking for it.
    """

    name: str
    declared: bool
    may_leave: bool
    rule: RuleResult

    def of(self, policy: Policy) -> TaskRule | None:
        """Return the policy's rule for it."""
        return policy.by_task.get(self.name)


def task_of(request: Request, policy: Policy, evidence: RouteEvidence) -> TaskFound:
    """Return the task of a request, with what its classifier said where the caller leaves it."""
    if request.task != AUTO or AUTO in policy.by_task:
        return TaskFound(request.task, True, True, _SAID)
    trusted = policy.classifier
    if trusted is None:
        return _lost("the task is to be found out, and the policy trusts no classifier")
    said, why_not = evidence.classified, _why_not(evidence.classified, trusted)
    if said is None or why_not:
        return _otherwise(trusted, why_not)
    told = f"the classifier takes it for a {said.task} request ({said.score:g}, and "
    told += f"{said.threshold:g} is needed){_more(said.reason)}"
    found = rule(_CLASSIFIED, True, told, "")
    return TaskFound(said.task, False, said.task in trusted.may_leave, found)


def leave_rule(task: TaskFound) -> RuleResult:
    """Return whether a request may leave by who said its task."""
    if task.declared:
        return _ITS_OWN
    return rule(
        _LEAVES,
        task.may_leave,
        f"the policy lets requests leave that a classifier takes for {task.name}",
        "the caller did not say the task, and the policy lets nothing leave on a guess",
    )


def counts(said: ClassifiedTask | None, trusted: ClassifierRule) -> bool:
    """Return whether what a classifier says is a policy's word for the task."""
    return not _why_not(said, trusted)


def _why_not(said: ClassifiedTask | None, trusted: ClassifierRule) -> str:
    """Return why what was said counts for nothing; empty where it counts."""
    if said is None:
        return "no classifier was asked"
    if said.evidence != trusted.evidence:
        return "another classifier was asked than the one that the policy trusts"
    if not said.stands:
        return f"the classifier does not stand{_more(said.reason)}"
    if not said.task or said.score is None:
        return f"the classifier sees no task{_more(said.reason)}"
    if said.threshold is None:
        return f"the likeliest task is {said.task}, for which nothing was shown{_more(said.reason)}"
    if not said.score >= said.threshold:
        return (
            f"the likeliest task is {said.task} ({said.score:g}, and {said.threshold:g} is "
            f"needed){_more(said.reason)}"
        )
    return ""


def _otherwise(trusted: ClassifierRule, why: str) -> TaskFound:
    told = f"the task was not found out: {why}"
    if not trusted.otherwise:
        return _lost(told)
    told += f"; it is taken for a {trusted.otherwise} request, and stays on this device"
    return TaskFound(trusted.otherwise, False, False, rule(_CLASSIFIED, True, told, ""))


def _lost(why: str) -> TaskFound:
    return TaskFound("", False, False, rule(_CLASSIFIED, False, "", why))


def _more(reason: str) -> str:
    return f": {reason}" if reason else ""
