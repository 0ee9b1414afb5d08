"""Rules about one destination: whether this request may leave for it. Each must allow."""

from __future__ import annotations

from collections.abc import Iterator

from edgewise.core.outcome import ConsentNeeded, RuleResult
from edgewise.core.request import DataClass, Request
from edgewise.core.state import DeviceState
from edgewise.route.destinations import Basis, Destination
from edgewise.route.facts import ConsentVerdict, PolicyTrust, RouteEvidence
from edgewise.route.local_rules import idle, rule
from edgewise.route.policy import Policy

__all__ = ["CONSENT", "cloud_rules", "scope_of"]

CONSENT = "consent"


def scope_of(policy: Policy, data_class: str, place: Destination) -> ConsentNeeded | None:
    """Return which consent is needed; ``None`` for none, and for data that never leaves."""
    if _stays(policy, data_class):
        return None
    if not policy.asks(data_class, place.name).ask and place.basis is not Basis.CONSENT:
        return None
    return ConsentNeeded(
        feature=policy.feature,
        data_class=data_class,
        destination=place.name,
        purpose=place.purpose,
    )


def cloud_rules(
    request: Request,
    data_class: str,
    state: DeviceState,
    policy: Policy,
    evidence: RouteEvidence,
    place: Destination,
) -> Iterator[RuleResult]:
    """Try every rule about sending a request to one destination; consent is the last."""
    yield rule(
        "data-stays-local",
        not _stays(policy, data_class),
        f"{data_class} data may leave the device where the rest allows it",
        f"{data_class} data never leaves the device",
    )
    yield _trust(policy, evidence)
    yield rule(
        "policy-in-force",
        not evidence.policy_expired,
        "the policy is in force",
        "the policy has expired or is not in force yet; nothing leaves under it",
    )
    yield rule(
        "clock",
        evidence.clock_right,
        "the date can be relied on",
        "the device's clock cannot be relied on, so neither can expiry and consent",
    )
    yield rule(
        "basis",
        place.basis is not Basis.NONE and bool(place.purpose),
        f"data goes there for {place.purpose!r} on the basis of {place.basis}",
        "the policy declares no purpose or no basis for it",
    )
    yield _minimisation(policy, place)
    yield _length(request, policy)
    yield _spend(evidence, place)
    yield rule(
        "link",
        state.link in policy.device.links,
        f"the network is {state.link}",
        f"the network is {state.link}",
    )
    yield _consent(policy, data_class, evidence, place)


def _stays(policy: Policy, data_class: str) -> bool:
    return policy.classes.get(data_class, DataClass.LOCAL_ONLY) is DataClass.LOCAL_ONLY


def _spend(evidence: RouteEvidence, place: Destination) -> RuleResult:
    """Return whether a limit is known to be reached; what a request costs is not known yet."""
    if place.name in evidence.spent:
        return rule("spend", False, "", "its limit of spending is reached")
    if place.price is None:
        return idle("spend", "the policy sets no limit of spending for it")
    limit = f"{place.price.daily_limit:g} {place.price.currency} a day"
    return rule("spend", True, f"at most {limit}, which is held against when it is sent", "")


def _trust(policy: Policy, evidence: RouteEvidence) -> RuleResult:
    if evidence.trust is PolicyTrust.UNTRUSTED:
        return rule("policy-signed", False, "", "this home lets nothing leave under this policy")
    if not policy.require_signature:
        return idle("policy-signed", "the policy asks for no signature")
    return rule(
        "policy-signed",
        evidence.trust is not PolicyTrust.UNSIGNED,
        f"the policy is {evidence.trust}",
        "the policy is not signed by a key that this home trusts",
    )


def _minimisation(policy: Policy, place: Destination) -> RuleResult:
    found = policy.minimises(place.name)
    fields = () if found is None else found.fields
    return rule(
        "minimisation",
        bool(fields),
        f"only these fields leave: {', '.join(fields)}",
        "the policy does not declare which fields may leave",
    )


def _length(request: Request, policy: Policy) -> RuleResult:
    most = policy.limits.cloud_characters
    if most is None:
        return idle("cloud-length", "the policy sets no limit")
    length = characters(request)
    told = f"the conversation has {length} characters, and {most} may leave"
    return rule("cloud-length", length <= most, told, told)


def characters(request: Request) -> int:
    """Return how long a conversation is."""
    prompt = len(request.prompt) if request.prompt is not None else 0
    return prompt + sum(len(message.content) for message in request.messages)


def _consent(
    policy: Policy, data_class: str, evidence: RouteEvidence, place: Destination
) -> RuleResult:
    if _stays(policy, data_class):
        return idle(CONSENT, "nobody is asked about data that never leaves")
    if scope_of(policy, data_class, place) is None:
        return idle(CONSENT, f"the policy asks for none: the basis is {place.basis}")
    for fact in evidence.consents:
        if fact.destination == place.name:
            reason = f": {fact.reason}" if fact.reason else ""
            granted = fact.verdict is ConsentVerdict.GRANTED
            told = f"{_CONSENT_WORDS[fact.verdict]}{reason}"
            return rule(CONSENT, granted, told, told)
    return rule(CONSENT, False, "", "no consent stands: nobody was asked")


_CONSENT_WORDS = {
    ConsentVerdict.GRANTED: "consent stands",
    ConsentVerdict.DENIED: "consent was denied",
    ConsentVerdict.ABSENT: "no consent stands",
    ConsentVerdict.UNREADABLE: "whether consent stands is not known",
}
