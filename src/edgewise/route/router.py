"""The router: a pure, total function from request, data class, state, policy and evidence.

It performs no I/O and raises nothing. What it cannot establish allows nothing: a signal that
nobody read is said to be so (``not-applicable``), an unknown data class stays on the device, and
what is not known about a destination denies it. It decides before anything runs, so it never sees
an answer: a cloud attempt after a local failure is another request, with a decision of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from edgewise.core.outcome import ConsentNeeded, Route, RouteDecision, RuleResult
from edgewise.core.request import Request
from edgewise.core.state import DeviceState
from edgewise.route.cloud_rules import CONSENT, characters, cloud_rules, scope_of
from edgewise.route.facts import ConsentVerdict, RouteEvidence
from edgewise.route.local_rules import idle, local_rules, rule
from edgewise.route.policy import CloudUse, Policy, TaskRule
from edgewise.route.tasks import TaskFound, leave_rule, task_of

__all__ = ["RouteEvidence", "decide"]


class _Way(msgspec.Struct, frozen=True):
    """A destination with what its rules said."""

    name: str
    rules: tuple[RuleResult, ...]
    scope: ConsentNeeded | None

    @property
    def open(self) -> bool:
        return all(found.verdict != "denies" for found in self.rules)

    @property
    def lacks_consent_only(self) -> bool:
        return [found.rule for found in self.rules if found.verdict == "denies"] == [
            f"{CONSENT}@{self.name}"
        ]


def decide(
    request: Request,
    data_class: str,
    device_state: DeviceState,
    policy: Policy,
    evidence: RouteEvidence,
) -> RouteDecision:
    """Return where the request runs, with every rule that was tried.

    A request whose task is open (``auto``) is of the task that ``evidence.classified`` says, where
    the policy trusts its classifier and that is sure enough.

    The rules of the request come first, then those of this device, then those of each destination
    that the task names, each with the destination behind an ``@``.
    """
    found = task_of(request, policy, evidence)
    task = found.of(policy)
    basic = (found.rule, *_request_rules(request, data_class, policy, found, task))
    local = tuple(local_rules(request, device_state, policy, evidence, task))
    doubt = _doubt_rule(task, evidence)
    use = _use_rule(task)
    ways = tuple(_ways(request, data_class, device_state, policy, evidence, found, task))
    rules = (*basic, *local, doubt, use, *(one for way in ways for one in way.rules))

    def decided(route: Route, *reasons: str, way: _Way | None = None) -> RouteDecision:
        return RouteDecision(
            route=route,
            reasons=reasons
            if found.declared
            else tuple(dict.fromkeys((*reasons, found.rule.reason))),
            rules=rules,
            policy_version=policy.version,
            destination=way.name if way is not None and route is Route.CLOUD else "",
            consent=None if way is None else way.scope,
            task=found.name,
        )

    refused = _denials(basic)
    if refused:
        return decided(Route.DECLINE, *refused)
    unable = _denials(local)
    unsure = doubt.verdict == "denies"
    preferred = task is not None and task.cloud is CloudUse.PREFERRED
    way = next((way for way in ways if way.open), None)
    if way is not None and (preferred or unable or unsure):
        why = unable or ((doubt.reason,) if unsure else ("the policy prefers a destination",))
        return decided(Route.CLOUD, *why, f"{data_class} data may go to {way.name}", way=way)
    asking = next((way for way in ways if way.lacks_consent_only and _askable(way, evidence)), None)
    if not unable:
        reasons = _local_reasons(data_class, doubt, ways, preferred=preferred)
        return decided(Route.LOCAL, *reasons, way=asking if preferred or unsure else None)
    closed = tuple(reason for way in ways for reason in _denials(way.rules))
    return decided(Route.DECLINE, *unable, *closed, way=asking)


def _local_reasons(
    data_class: str, doubt: RuleResult, ways: tuple[_Way, ...], *, preferred: bool
) -> tuple[str, ...]:
    reasons = [f"this device can answer, and {data_class} data may be processed on it"]
    if doubt.verdict == "denies":
        reasons.append(f"the answer is not verified: {doubt.reason}")
    if preferred or doubt.verdict == "denies":
        reasons += [reason for way in ways for reason in _denials(way.rules)]
    return tuple(reasons)


def _askable(way: _Way, evidence: RouteEvidence) -> bool:
    """Whether asking could help: nobody who said no is asked again, nor is a broken ledger."""
    verdicts = [fact.verdict for fact in evidence.consents if fact.destination == way.name]
    return all(verdict is ConsentVerdict.ABSENT for verdict in verdicts)


def _request_rules(
    request: Request, data_class: str, policy: Policy, found: TaskFound, task: TaskRule | None
) -> Iterator[RuleResult]:
    yield (
        idle("task-allowed", "no task is known")
        if not (found.name or found.declared)
        else rule(
            "task-allowed",
            task is not None,
            f"the policy answers {found.name} requests",
            f"the policy does not answer {found.name!r} requests",
        )
    )
    known = data_class in policy.classes
    taken = task is None or not task.data_classes or data_class in task.data_classes
    yield rule(
        "data-class-allowed",
        known and taken,
        f"the policy takes {data_class} data",
        f"the policy does not {'take' if known else 'know'} {data_class!r} data",
    )
    limits = policy.limits
    sampling = request.sampling.temperature
    yield (
        idle("sampling", "the policy sets no limit")
        if limits.temperature is None
        else rule(
            "sampling",
            sampling <= limits.temperature,
            f"a temperature of {sampling:g} is allowed",
            f"the temperature is {sampling:g}, and {limits.temperature:g} is allowed",
        )
    )
    yield _length_rule(request, policy)


def _length_rule(request: Request, policy: Policy) -> RuleResult:
    limits = policy.limits
    if limits.characters is not None:
        length = characters(request)
        if length > limits.characters:
            told = f"the conversation has {length} characters, and {limits.characters} are allowed"
            return rule("length", False, "", told)
    if limits.max_tokens is not None and (request.max_tokens or 0) > limits.max_tokens:
        told = f"{request.max_tokens} tokens are asked for, and {limits.max_tokens} are allowed"
        return rule("length", False, "", told)
    if limits.characters is None and limits.max_tokens is None:
        return idle("length", "the policy sets no limit")
    return rule("length", True, "the request is within the policy's limits", "")


def _doubt_rule(task: TaskRule | None, evidence: RouteEvidence) -> RuleResult:
    """Return whether a calibrated doubt speaks against a local answer.

    An uncalibrated one says nothing, whatever its score.
    """
    doubt = evidence.doubt
    if task is None or not task.escalate:
        return idle("doubt", "the policy does not escalate this task on doubt")
    if doubt is None:
        return idle("doubt", "no signal of the local model is known")
    if not doubt.calibrated:
        return idle("doubt", f"not calibrated for this deployment: {doubt.reason}")
    return rule("doubt", not doubt.unsure, doubt.reason, doubt.reason)


def _use_rule(task: TaskRule | None) -> RuleResult:
    use = CloudUse.NEVER if task is None else task.cloud
    places = () if task is None else task.destinations
    if use is CloudUse.NEVER or not places:
        return rule("cloud-permitted", False, "", "the policy lets nothing of this task leave")
    return rule("cloud-permitted", True, f"it may leave: {use}", "")


def _ways(
    request: Request,
    data_class: str,
    state: DeviceState,
    policy: Policy,
    evidence: RouteEvidence,
    found: TaskFound,
    task: TaskRule | None,
) -> Iterator[_Way]:
    if task is None or task.cloud is CloudUse.NEVER:
        return
    leaves = leave_rule(found)
    for name in task.destinations:
        place = policy.places[name]
        tried = cloud_rules(request, data_class, state, policy, evidence, place)
        yield _Way(
            name=name,
            rules=tuple(
                RuleResult(rule=f"{one.rule}@{name}", verdict=one.verdict, reason=one.reason)
                for one in (leaves, *tried)
            ),
            scope=scope_of(policy, data_class, place),
        )


def _denials(rules: tuple[RuleResult, ...]) -> tuple[str, ...]:
    return tuple(found.reason for found in rules if found.verdict == "denies")
