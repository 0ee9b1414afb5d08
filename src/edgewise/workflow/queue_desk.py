"""Who may be sent now: the router's decision on each attempt of a queued operation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from edgewise.core.bundle import Bundle
from edgewise.core.outcome import Route, RouteDecision
from edgewise.core.request import Request
from edgewise.core.state import DeviceState, LinkState
from edgewise.device import read_state
from edgewise.errors import EdgewiseError, InputError
from edgewise.route import RouteEvidence
from edgewise.route.cloud import CloudClient, Means, SpendLedger
from edgewise.route.destinations import Destination
from edgewise.route.offline import (
    DeclinedSending,
    NeedsConsent,
    Operation,
    Permitted,
)
from edgewise.route.offline import Outgoing as QueuedBytes
from edgewise.route.outgoing import unreplaced
from edgewise.route.service import Router
from edgewise.workflow.context import Context
from edgewise.workflow.documents import changed_since
from edgewise.workflow.queue_rules import (
    changed,
    denials,
    unreplaced_words,
)
from edgewise.workflow.queue_sender import Licence
from edgewise.workflow.queued_payload import payload_of, request_of
from edgewise.workflow.routing import route_evidence

if TYPE_CHECKING:
    from edgewise.route.cloud.payload import CloudPayload
    from edgewise.route.minimise import Detector

__all__ = ["Desk", "active_bundle", "evidence_for"]


class _ChangedError(Exception):
    """The document changed while what its operation is sent with was awaited."""


class Desk:
    """Authorises one attempt after the other."""

    def __init__(
        self,
        context: Context,
        router: Router,
        client: CloudClient,
        resting: dict[str, str],
        link: Callable[[], LinkState],
        detectors: tuple[Detector, ...],
    ) -> None:
        self._context = context
        self._router = router
        self._client = client
        self._resting = resting
        self._link = link
        self._detectors = detectors
        self._bundle = active_bundle(context)

    def authorise(self, outgoing: QueuedBytes) -> Permitted | DeclinedSending | NeedsConsent:
        """Return the permit for an attempt, or what stands in its way, as it is now."""
        operation = outgoing.operation
        payload = payload_of(outgoing.payload)
        if payload is None:
            return DeclinedSending(reason="this version cannot read what was queued", final=True)
        barred = self._barred(operation, payload)
        if barred is not None:
            return barred
        request = request_of(payload, task=operation.kind, data_class=operation.data_class)
        to, task = operation.destination, operation.kind
        evidence = evidence_for(self._context, self._router, self._bundle, to, task)
        found: list[Means] = []

        def ready(place: Destination) -> DeviceState:
            found.append(self._client.means(place))  # may wait for somebody who unlocks a keyring
            stale = changed_since(operation)
            if stale is not None:
                raise _ChangedError(stale)
            return self._state()

        try:
            given = self._router.permit(
                request,
                self._state(),
                evidence,
                outgoing.payload,
                destination=operation.destination,
                record=self._router.drawn(request),
                ready=ready,
            )
        except _ChangedError as error:
            return DeclinedSending(reason=str(error), final=True)
        except EdgewiseError as error:  # this device lacks something; no consent was used up
            reason = f"{error.code}: {error.message}"
            self._resting[operation.destination] = reason
            return DeclinedSending(reason=reason)
        if given.permit is not None:
            place = self._router.policy.places[operation.destination]
            licence = Licence(
                permit=given.permit, destination=place, payload=payload, means=found[0]
            )
            return Permitted(licence=licence, deduplicates=place.idempotent)
        return self._not_permitted(
            request, self._state(), evidence, given.decision, operation.destination
        )

    def _barred(self, operation: Operation, payload: CloudPayload) -> DeclinedSending | None:
        flaw = changed(self._router.policy, operation, payload)
        if flaw is not None:
            # One that may not let anything leave is not taken at its word when it ends something:
            # the home's policy may be missing, or a file that nobody signed be in its place.
            return DeclinedSending(reason=flaw, final=self._router.loaded.lets_leave)
        stale = changed_since(operation)
        if stale is not None:
            return DeclinedSending(reason=stale, final=True)
        if operation.destination in self._resting:
            return DeclinedSending(reason=self._resting[operation.destination])
        kinds = unreplaced(payload, self._detectors)
        if kinds:
            # It is not minimised again: it may have been sent as it is, under this key, and nobody
            # agreed to an answer with further placeholders.
            return DeclinedSending(reason=unreplaced_words(kinds), final=True)
        return None

    def _state(self) -> DeviceState:
        return msgspec.structs.replace(read_state(self._context.home.root), link=self._link())

    def _not_permitted(
        self,
        request: Request,
        state: DeviceState,
        evidence: RouteEvidence,
        decision: RouteDecision,
        destination: str,
    ) -> DeclinedSending | NeedsConsent:
        if decision.route is Route.LOCAL:
            return DeclinedSending(reason="this device can answer it by itself now; it is not sent")

        def words(told: RouteDecision) -> str:
            return "; ".join(denials(told, destination))

        if decision.consent is None:
            # Where somebody else used the consent up in this moment, it can be asked for again.
            again = self._router.decide(request, state, evidence)
            decision = again if again.route is Route.DECLINE else decision
        if decision.consent is not None:
            return NeedsConsent(reason=words(decision))
        return DeclinedSending(reason=words(decision))


def evidence_for(
    context: Context, router: Router, bundle: Bundle | None, destination: str, task: str
) -> RouteEvidence:
    """Return what is known, with every other destination than the operation's closed."""
    policy = router.policy
    rule, place = policy.by_task.get(task), policy.places[destination]
    # Evidence can only close a way, and this is how it closes one; nobody is told of it, since
    # only the reasons of the operation's own destination are shown.
    closed = {name for name in (rule.destinations if rule else ()) if name != destination}
    if place.price is not None:
        spent = SpendLedger(context.home).spent(place, place.price)
        if spent.stated.number + spent.reserved.number >= place.price.daily_limit:
            closed.add(destination)
    known = route_evidence(context, bundle, router.loaded)
    return msgspec.structs.replace(known, spent=tuple(sorted(closed)))


def active_bundle(context: Context) -> Bundle | None:
    """Return the active bundle; ``None`` for none."""
    with contextlib.suppress(InputError):  # nothing is active: the router is told
        return context.bundles.active()
    return None
