"""Which requests under a policy a consent is for, and whether a grant covers any. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from edgewise.core.request import DataClass
from edgewise.errors import InputError
from edgewise.route.cloud_rules import scope_of
from edgewise.route.consent import ConsentScope, EntryState, LedgerEntry
from edgewise.route.consent.scopes import require_consentable
from edgewise.route.consent.terms import NOT_KEPT
from edgewise.route.destinations import Terms
from edgewise.route.policy import CloudUse, Policy

__all__ = ["Coverage", "coverage", "require_asked"]


class Coverage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a grant covers requests under a policy.

    Attributes:
        covers: Whether it does; ``None`` for a decision that is no grant in force.
        reason: Why not.
    """

    covers: bool | None
    reason: str = ""


def coverage(policy: Policy, entry: LedgerEntry) -> Coverage:
    """Return whether a decision covers requests under a policy, as it is now."""
    if entry.state is not EntryState.GRANTED or entry.scope is None:
        return Coverage(covers=None)
    if entry.terms is None:
        return Coverage(covers=False, reason=NOT_KEPT)
    reasons = list(_unasked(policy, entry.scope))
    place = policy.places.get(entry.scope.destination)
    if place is not None:
        reasons = [entry.terms.differences(policy.terms(place.name)), *reasons]
    told = "; ".join(filter(None, reasons))
    return Coverage(covers=not told, reason=told)


def require_asked(policy: Policy, scope: ConsentScope) -> Terms:
    """Return the terms of a scope that some request under a policy asks consent for.

    Raises:
        InputError: no consent opens it (``consent-local-only``), or no request under the policy
            asks for it (``consent-never-matches``).
    """
    require_consentable(scope)
    reasons = tuple(_unasked(policy, scope))
    if reasons:
        raise InputError(
            "consent-never-matches",
            f"no request under the policy {policy.name!r} asks for this consent: "
            f"{'; '.join(reasons)}",
            context={"policy": policy.name, "reasons": list(reasons)},
            hint="name all four parts as the policy does, and the policy with --policy where it is "
            "not the home's; `edgewise route --explain` says which consent a request needs",
        )
    return policy.terms(scope.destination)


def _unasked(policy: Policy, scope: ConsentScope) -> Iterator[str]:
    """Say what keeps any request from asking for a consent of this scope."""
    if scope.feature != policy.feature:
        yield f"its feature is {policy.feature!r}, not {scope.feature!r}"
    like = policy.classes.get(scope.data_class)
    if like is None:
        yield f"it knows no data class {scope.data_class!r}, only {_list(policy.classes)}"
    elif like is DataClass.LOCAL_ONLY:
        yield f"{scope.data_class} data never leaves under it"
    place = policy.places.get(scope.destination)
    if place is None:
        yield f"it has no destination {scope.destination!r}, only {_list(policy.places)}"
        return
    if scope.purpose != place.purpose:
        yield f"the purpose of {place.name} is {place.purpose!r}, not {scope.purpose!r}"
    if not _leaves(policy, scope.data_class, place.name):
        yield f"none of its tasks lets {scope.data_class} data leave for {place.name}"
    elif scope_of(policy, scope.data_class, place) is None:
        yield f"nobody has to agree before {scope.data_class} data goes to {place.name}"


def _leaves(policy: Policy, data_class: str, destination: str) -> bool:
    return any(
        task.cloud is not CloudUse.NEVER
        and destination in task.destinations
        and (not task.data_classes or data_class in task.data_classes)
        for task in policy.tasks
    )


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
