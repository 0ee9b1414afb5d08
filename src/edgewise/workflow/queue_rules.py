"""What a policy says about an operation that waits, beside the route that it gives.

All of it is pure: the state of the device and of consents is the router's to judge.
"""

from __future__ import annotations

from edgewise.core.outcome import RouteDecision
from edgewise.core.request import DataClass
from edgewise.route.cloud import CloudPayload
from edgewise.route.consent import ConsentScope
from edgewise.route.offline import Operation, Reason
from edgewise.route.policy import CloudUse, Policy
from edgewise.workflow.queued_payload import fields_of

__all__ = ["barred", "changed", "denials", "placeholder_words", "scope_of", "unreplaced_words"]

# What the router asks of any request, wherever it runs; rules about this device do not count here.
_REQUEST_RULES = {"task-allowed", "data-class-allowed", "sampling", "length", "cloud-permitted"}


def barred(policy: Policy, task: str, data_class: str, destination: str) -> tuple[Reason, ...]:
    """Return why a policy does not let such a request wait or leave, whatever the state is."""
    found = []
    rule, like = policy.by_task.get(task), policy.classes.get(data_class)
    if rule is None or not rule.delay_safe:
        words = f"the policy does not let {task!r} requests wait: "
        words += "its [[tasks]] needs delay_safe = true"
        if rule is None:
            words += f", and it has only {', '.join(policy.by_task) or 'none'}"
        found.append(Reason(code="not-delay-safe", words=words))
    if like is None:
        words = f"the policy does not know {data_class!r} data, so it stays here"
        found.append(Reason(code="data-class-unknown", words=words))
    elif like is DataClass.LOCAL_ONLY:
        words = "local-only data never leaves, so it does not wait to leave"
        found.append(Reason(code="local-only", words=words))
    if rule is not None and (rule.cloud is CloudUse.NEVER or destination not in rule.destinations):
        words = f"the policy does not let {task!r} requests leave for {destination!r}"
        found.append(Reason(code="destination-not-permitted", words=words))
    return tuple(found)


def changed(policy: Policy, operation: Operation, payload: CloudPayload) -> str | None:
    """Return what the policy has against an operation now that it had not when it was queued."""
    name = operation.destination
    against = barred(policy, operation.kind, operation.data_class, name)
    if against:
        return against[0].words
    place = policy.places[name]
    if operation.destination_sha256 != place.terms(()).digest:
        return (
            f"{name} is declared otherwise now than when it was queued (address, model, purpose, "
            "region, retention or basis); what was meant for the one is not sent to the other"
        )
    if operation.feature != policy.feature:
        return f"it was queued for the feature {operation.feature!r}, and this is another"
    rule = policy.minimises(name)
    kept = [one for one in fields_of(payload) if rule is None or one not in rule.fields]
    if kept:
        return f"the policy does not let {' and '.join(kept)} leave any more"
    return None


def scope_of(operation: Operation) -> ConsentScope:
    """Return which consent an operation needs."""
    return ConsentScope(
        feature=operation.feature,
        data_class=operation.data_class,
        destination=operation.destination,
        purpose=operation.purpose,
    )


def placeholder_words(count: int) -> str:
    """Return why a request in which something is replaced is not queued."""
    what = "1 identifier" if count == 1 else f"{count} identifiers"
    return (
        f"{what} would be replaced by placeholders, and what these stand for is kept nowhere: a "
        "late answer gets them back from the same request only; --accept-placeholders queues it "
        "all the same"
    )


def unreplaced_words(kinds: dict[str, int]) -> str:
    """Return what is said of an operation in which more would be replaced now than was then."""
    told = ", ".join(f"{count} of kind {kind}" for kind, count in kinds.items())
    return (
        f"it holds what would be replaced now, and was not when it was queued ({told}); "
        "it is not sent: queue the request anew"
    )


def denials(decision: RouteDecision, destination: str) -> tuple[str, ...]:
    """Return why a request does not leave for a destination, without the rules of others."""
    denied = [one for one in decision.rules if one.verdict == "denies"]
    found = (
        one.reason
        for one in denied
        if one.rule in _REQUEST_RULES or one.rule.endswith(f"@{destination}")
    )
    return tuple(found) or decision.reasons
