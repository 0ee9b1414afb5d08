"""What is wrong with a policy that can be read: rules without effect, contradictions, gaps."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from edgewise.core.evidence import DEPLOYMENT_KINDS
from edgewise.core.request import DataClass
from edgewise.route.cloud_rules import scope_of
from edgewise.route.destinations import Basis
from edgewise.route.policy import CloudUse, ConsentRule, MinimiseRule, Policy, TaskRule
from edgewise.route.policy_file import Force, LoadedPolicy, force_of
from edgewise.route.policy_flaws import ANY

__all__ = ["Finding", "Severity", "lint_policy", "lint_trust"]


class Severity(StrEnum):
    """How bad a finding is.

    ``ERROR``: it does not do what it says. ``WARNING``: somebody should look at it. ``NOTE``:
    somebody may want to know.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that is wrong.

    Attributes:
        code: Stable name of the kind.
        severity: How bad.
        place: Which rule, e.g. ``tasks.chat`` or ``consent[2]``.
        message: What and why.
    """

    code: str
    severity: Severity
    place: str
    message: str


def lint_policy(policy: Policy, now: dt.datetime | None = None) -> tuple[Finding, ...]:
    """Return all findings, in the order of the policy.

    Args:
        policy: The policy.
        now: The time that its dates are held against; against none by default.
    """
    return (
        *_dates(policy),
        *(() if now is None else _force(policy, now)),
        *(found for task in policy.tasks for found in _task(policy, task)),
        *_classifier(policy),
        *_destinations(policy),
        *_shadowed("consent", policy.consent),
        *_consent(policy),
        *_shadowed("minimise", policy.minimise),
        *_signature(policy),
        *_records(policy),
    )


def lint_trust(loaded: LoadedPolicy) -> tuple[Finding, ...]:
    """Return what is to be said of a policy that would let something leave, were it trusted."""
    if not loaded.policy.destinations or loaded.lets_leave:
        return ()
    why = f"nothing leaves under it until a key that this home trusts signs it: {loaded.reason}"
    return (_warning("policy-not-trusted", "require_signature", why),)


def _error(code: str, place: str, message: str) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, place=place, message=message)


def _warning(code: str, place: str, message: str) -> Finding:
    return Finding(code=code, severity=Severity.WARNING, place=place, message=message)


def _dates(policy: Policy) -> Iterator[Finding]:
    issued, expires = policy.issued, policy.expires
    if issued is not None and expires is not None and expires <= issued:
        yield _error("never-in-force", "expires_at", "it expires before it is issued")
    if policy.destinations and expires is None:
        yield _warning("never-expires", "expires_at", "things may leave under it for ever")


def _force(policy: Policy, now: dt.datetime) -> Iterator[Finding]:
    force = force_of(policy, now)
    if force is Force.NOT_YET:
        yield _warning("not-yet", "issued_at", f"nothing leaves under it before {policy.issued_at}")
    elif force is Force.EXPIRED and policy.destinations:
        yield _error(
            "expired", "expires_at", f"nothing leaves under it: it expired on {policy.expires_at}"
        )
    elif force is Force.EXPIRED:
        yield _warning(
            "expired", "expires_at", f"it expired on {policy.expires_at}, and lets nothing leave"
        )


def _task(policy: Policy, task: TaskRule) -> Iterator[Finding]:
    place = f"tasks.{task.name}"
    for kind in task.evidence:
        if kind not in DEPLOYMENT_KINDS:
            yield _warning(
                "evidence-unknown",
                f"{place}.evidence",
                f"no deployment has evidence of the kind {kind!r}, so none can answer this task; "
                f"known are {', '.join(DEPLOYMENT_KINDS)}",
            )
    if task.cloud is CloudUse.NEVER:
        for field, is_set in (
            ("destinations", bool(task.destinations)),
            ("escalate", task.escalate),
            ("delay_safe", task.delay_safe),
        ):
            if is_set:
                yield _error(
                    "unreachable", f"{place}.{field}", f"{field} has no effect: cloud is never"
                )
        return
    if not task.destinations:
        yield _error("unreachable", f"{place}.cloud", "it may leave, but names no destination")
    named = task.data_classes or tuple(policy.classes)
    if all(policy.classes[name] is DataClass.LOCAL_ONLY for name in named):
        yield _error(
            "contradiction", place, "it may leave, but all data that it takes is local-only"
        )
    for name in task.destinations:
        yield from _gaps(policy, name, f"{place}.destinations")
    if task.cloud is CloudUse.PREFERRED:
        yield from _rarely_asked(policy, task, f"{place}.cloud")


def _rarely_asked(policy: Policy, task: TaskRule, place: str) -> Iterator[Finding]:
    """Say that a destination that is preferred is not asked for where this device can answer."""
    asked = {
        name
        for data_class, name in _leaving(policy, task)
        if scope_of(policy, data_class, policy.places[name]) is not None
    }
    for name in task.destinations:
        if name in asked:
            yield Finding(
                code="consent-rarely-asked",
                severity=Severity.NOTE,
                place=place,
                message=f"where this device can answer, it does and asks nobody: {name} is used "
                "there only with a consent that was given before (edgewise consent grant)",
            )


def _leaving(policy: Policy, task: TaskRule) -> Iterator[tuple[str, str]]:
    """Yield which data of a task may leave, and where to, whatever else stands in the way."""
    if task.cloud is CloudUse.NEVER:
        return
    for data_class in task.data_classes or tuple(policy.classes):
        if policy.classes[data_class] is not DataClass.LOCAL_ONLY:
            yield from ((data_class, name) for name in task.destinations)


def _classifier(policy: Policy) -> Iterator[Finding]:
    found = policy.classifier
    for name in () if found is None else found.may_leave:
        if policy.by_task[name].cloud is CloudUse.NEVER:
            yield _error(
                "unreachable",
                "classifier.may_leave",
                f"{name} has no effect: cloud is never for that task",
            )


def _gaps(policy: Policy, name: str, place: str) -> Iterator[Finding]:
    found = policy.places[name]
    if found.basis is Basis.NONE:
        yield _error("no-basis", place, f"data may go to {name}, which declares no basis")
    if not found.purpose:
        yield _error("no-purpose", place, f"data may go to {name}, which declares no purpose")
    rule = policy.minimises(name)
    if rule is None or not rule.fields:
        yield _error("no-fields", place, f"nothing says which fields may go to {name}")
    if not found.region:
        yield _warning("no-region", place, f"{name} does not declare where data is processed")
    if found.retention_days is None:
        yield _warning("no-retention", place, f"{name} does not declare how long data is kept")
    if found.price is None:
        yield _warning("no-price", place, f"{name} has no price, so no spending can be limited")


def _destinations(policy: Policy) -> Iterator[Finding]:
    used = {name for task in policy.tasks for name in task.destinations}
    for name in policy.places:
        if name not in used:
            yield _error("unreachable", f"destinations.{name}", f"no task names {name}")


def _shadowed(kind: str, rules: Iterable[ConsentRule | MinimiseRule]) -> Iterator[Finding]:
    before: list[tuple[str, str]] = []
    for at, rule in enumerate(rules):
        data_class = rule.data_class if isinstance(rule, ConsentRule) else ANY
        for first, (classes, places) in enumerate(before):
            if classes in {ANY, data_class} and places in {ANY, rule.destination}:
                yield _error(
                    "unreachable", f"{kind}[{at}]", f"{kind}[{first}] fits whenever this one does"
                )
                break
        before.append((data_class, rule.destination))


def _consent(policy: Policy) -> Iterator[Finding]:
    leaving = {pair for task in policy.tasks for pair in _leaving(policy, task)}
    for at, rule in enumerate(policy.consent):
        place = f"consent[{at}]"
        if not _fits_any(rule, leaving):
            yield _error("unreachable", place, _why_never(policy, rule))
        if rule.standing_days < 0:
            yield _error("contradiction", place, "standing_days is negative")
        if not rule.ask and rule.standing_days:
            yield _error("contradiction", place, "nobody is asked, so no consent can stand")
        if rule.ask:
            continue
        for name, found in policy.places.items():
            if rule.destination in {ANY, name} and found.basis is Basis.CONSENT:
                yield _error(
                    "contradiction", place, f"nobody is asked, but the basis of {name} is consent"
                )
        if policy.classes.get(rule.data_class) in {None, DataClass.SENSITIVE}:
            yield _warning("sensitive-unasked", place, "sensitive data may leave unasked")


def _fits_any(rule: ConsentRule, leaving: set[tuple[str, str]]) -> bool:
    """Whether a rule is about data that may leave; one about everything always has a point."""
    return (rule.data_class, rule.destination) == (ANY, ANY) or any(
        rule.data_class in {ANY, data_class} and rule.destination in {ANY, name}
        for data_class, name in leaving
    )


def _why_never(policy: Policy, rule: ConsentRule) -> str:
    if policy.classes.get(rule.data_class) is DataClass.LOCAL_ONLY:
        return f"nobody is ever asked: {rule.data_class} data never leaves the device"
    data = "data" if rule.data_class == ANY else f"{rule.data_class} data"
    where = "" if rule.destination == ANY else f" for {rule.destination}"
    return f"nobody is ever asked: no task lets {data} leave{where}"


def _signature(policy: Policy) -> Iterator[Finding]:
    if policy.destinations and not policy.require_signature:
        yield _warning(
            "unsigned-allowed",
            "require_signature",
            "whoever can write the policy's file can decide what leaves",
        )


def _records(policy: Policy) -> Iterator[Finding]:
    rule = policy.records
    if rule is None:
        return
    yield Finding(
        code="records-kept",
        severity=Severity.NOTE,
        place="records",
        message=f"a share of {rule.share:g} of the decisions is recorded in the home, without "
        f"content, for {rule.days} days, at most {rule.keep}",
    )
    if rule.local_only:
        yield _warning(
            "records-local-only",
            "records.local_only",
            "decisions about local-only data are recorded too: when, of which task, and where",
        )
