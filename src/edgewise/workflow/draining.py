"""The offline queue at work: what may wait is minimised and queued, and sent when it may be.

A queued operation is no licence. Before each attempt the router decides anew, under the policy
that is in force then, and for the destination that it was queued for and no other; consent is used
up and a permit is given for these very bytes. What a placeholder stands for is written nowhere: a
late answer gets it back from the same request, made again, or keeps its placeholders.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgewise.core.bundle import Bundle
from edgewise.core.outcome import Route, RouteDecision
from edgewise.core.request import DataClass, Request
from edgewise.core.state import DeviceState, LinkState
from edgewise.device import read_state
from edgewise.device.link import read_link
from edgewise.errors import EdgewiseError, InputError
from edgewise.route import RouteEvidence, decide
from edgewise.route.cloud import CloudClient, Means, Secrets, SpendLedger
from edgewise.route.facts import ConsentVerdict
from edgewise.route.minimise import default_detectors
from edgewise.route.offline import (
    Compatible,
    DeclinedSending,
    DocumentVersion,
    Draft,
    Drainer,
    DrainReport,
    DrainSettings,
    NeedsConsent,
    OfflineQueue,
    Permitted,
    Queued,
    Reason,
    Refused,
    State,
)
from edgewise.route.offline import LinkState as Met
from edgewise.route.offline import Outgoing as QueuedBytes
from edgewise.route.outgoing import prepare, unreplaced
from edgewise.route.policy import Policy
from edgewise.route.service import Router
from edgewise.workflow.contacts import read_contacts
from edgewise.workflow.context import Context
from edgewise.workflow.documents import changed_since
from edgewise.workflow.queue_rules import (
    barred,
    changed,
    denials,
    placeholder_words,
    scope_of,
    unreplaced_words,
)
from edgewise.workflow.queue_sender import Licence, QueueSender
from edgewise.workflow.queued_payload import payload_of, request_of
from edgewise.workflow.routing import noting, open_router, route_evidence

if TYPE_CHECKING:
    from edgewise.route.minimise import Detector

__all__ = ["DAY_S", "drain_queue", "enqueue_request", "open_drain", "open_queue"]

DAY_S = 86_400.0
_KEY = re.compile(r"[A-Za-z0-9_-]{1,255}")  # what the cloud client sends as Idempotency-Key
_STORED = {DataClass.PUBLIC, DataClass.PERSONAL}
_MET = {LinkState.CAPTIVE: Met.CAPTIVE_PORTAL, LinkState.WEAK: Met.HALF_OPEN}


def open_queue(context: Context, policy: Policy) -> OfflineQueue:
    """Return the queue of a home, under a policy.

    What the policy declares delay-safe may wait. Public and personal data may lie in the queue's
    file, and classes of the policy's own that are treated as one of the two.
    """
    return OfflineQueue(
        context.home,
        delay_safe=frozenset(task.name for task in policy.tasks if task.delay_safe),
        store_allowed=frozenset(name for name, like in policy.classes.items() if like in _STORED),
    )


def open_drain(context: Context, policy: Path | None = None) -> tuple[Router, CloudClient]:
    """Return a router under a policy, the home's own by default, and its cloud client.

    Raises:
        InputError: the policy cannot be read.
        IntegrityError: its signature is wrong.
        UnsupportedError: the extra ``cloud`` is not installed (``cloud-extra-missing``).
    """
    router = open_router(context, policy, on_event=noting(context))
    client = CloudClient(router.gate, spend=SpendLedger(context.home), secrets=Secrets())
    return router, client


def enqueue_request(
    context: Context,
    router: Router,
    request: Request,
    destination: str,
    detectors: tuple[Detector, ...],
    *,
    document: DocumentVersion | None = None,
    apply_to: Path | None = None,
    idempotency_key: str | None = None,
    expires_s: float = DAY_S,
    priority: int = 4,
    accept_placeholders: bool = False,
    prompt_version: str | None = None,
    schema_version: str | None = None,
) -> Queued | Refused:
    """Minimise a request and queue it for one destination; it is on disk when this returns.

    Args:
        context: Whose home and device.
        router: Policy and consents. No consent is used up here, and none is needed yet.
        request: What is asked; its task must be delay-safe.
        destination: Whom it may be sent to, by its name in the policy; never to another.
        detectors: What is replaced in it.
        document: What the answer is to be applied to.
        apply_to: File that the answer goes to, see :mod:`edgewise.workflow.late_answers`; the
            document's name is its path then. ``None`` where the application applies it itself.
        idempotency_key: 1 to 255 letters, digits, dashes and underscores; made when ``None``.
        expires_s: How long it may wait, seconds.
        priority: 0 to 9; higher goes first.
        accept_placeholders: Queue it although something was replaced. What the placeholders stand
            for is kept nowhere, see :func:`~edgewise.workflow.late_answers.read_late_answer`.
        prompt_version: Version of the prompt, for who drains.
        schema_version: Version of the answer's schema, for who drains.

    Returns:
        ``Refused``, with every reason, for what may not wait or would not be sent: nothing of it
        was written then.

    Raises:
        InputError: an argument is out of its range (``operation-invalid``).
        ResourceError, IntegrityError: the state database cannot be written or is damaged.
    """
    if idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
        raise _invalid("idempotency_key", "it is 1 to 255 letters, digits, dashes and underscores")
    if apply_to is not None and not apply_to.is_absolute():
        raise _invalid("apply_to", "it is an absolute path")
    if apply_to is not None and document and not Path(document.document_id).is_absolute():
        raise _invalid("document", "where the answer goes to a file, it is an absolute path")
    policy = router.policy
    reasons = barred(policy, request.task, request.data_class, destination)
    reasons = reasons or _unsendable(context, router, request, destination)
    if reasons:
        return Refused(reasons=reasons)
    try:
        outgoing = prepare(policy, request, destination, detectors)
    except EdgewiseError as error:
        return _refused(error.code, error.message)
    if outgoing.minimised.replaced and not accept_placeholders:
        words = placeholder_words(sum(outgoing.minimised.replaced.values()))
        return _refused("placeholders", words)
    place = outgoing.destination
    draft = Draft(
        kind=request.task,
        payload=outgoing.payload.body,
        destination=destination,
        deduplicates=place.idempotent,
        feature=policy.feature,
        purpose=place.purpose,
        data_class=request.data_class,
        lifetime_s=expires_s,
        priority=priority,
        idempotency_key=idempotency_key,
        document=document,
        apply_to=None if apply_to is None else str(apply_to),
        prompt_version=prompt_version,
        schema_version=schema_version,
        destination_sha256=place.terms(()).digest,
    )
    return open_queue(context, policy).enqueue(draft)


def drain_queue(
    context: Context,
    router: Router,
    client: CloudClient,
    *,
    compatible: Compatible | None = None,
    link: Callable[[], LinkState] = read_link,
    limit: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    settings: DrainSettings | None = None,
    queue: OfflineQueue | None = None,
    detectors: tuple[Detector, ...] | None = None,
) -> DrainReport:
    """Send what is due, each operation once, and return what became of it.

    Without a network that the policy lets things leave by, nothing is tried and no consent is
    used up; the report names the destinations that something waits for.

    Args:
        context: Whose home and device.
        router: Policy, consents and permits, now.
        client: Redeems the router's permits.
        compatible: Versions that the caller takes answers for.
        link: Says how the network is, without sending anything.
        limit: Most operations to handle.
        stop: Asked before each operation.
        settings: Whether a decline ends an operation or lets it wait. What a trusted policy does
            not allow any more ends in either case.
        queue: The queue; the home's by default.
        detectors: What may not be in anything that leaves, as it is known now; all of them, with
            the home's contacts, by default. Nothing is replaced in what waits: what they find ends
            it.

    Raises:
        InputError: the home's contacts cannot be read.
        UnsupportedError: the extra ``minimise`` is not installed (``minimise-library-missing``).
        ResourceError, IntegrityError: the state database cannot be read or written; what was being
            sent is then as after a crash.
    """
    queue = queue or open_queue(context, router.policy)
    links = router.policy.device.links
    found = link()
    if found not in links:
        queue.tidy()
        waiting = {entry.operation.destination for entry in queue.entries({State.QUEUED})}
        return DrainReport(
            handled=(),
            links=dict.fromkeys(sorted(waiting), _MET.get(found, Met.OFFLINE)),
            next_due_s=queue.next_due_s(),
            clock_skew_s=queue.now().skew_s,
        )
    queue.wake_agreed(lambda operation: router.agreed(scope_of(operation)))
    sender = QueueSender(client)
    if detectors is None:
        detectors = default_detectors(contacts=read_contacts(context))
    desk = _Desk(context, router, client, sender.resting, link, detectors)
    drainer = Drainer(queue, sender, desk.authorise, compatible=compatible, settings=settings)
    try:
        return drainer.drain(limit=limit, stop=lambda: stop() or link() not in links)
    finally:
        if router.recorder is not None:
            router.recorder.flush()


class _Desk:
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
        self._bundle = _active(context)

    def authorise(self, outgoing: QueuedBytes) -> Permitted | DeclinedSending | NeedsConsent:
        """Return the permit for an attempt, or what stands in its way, as it is now."""
        operation, policy = outgoing.operation, self._router.policy
        payload = payload_of(outgoing.payload)
        if payload is None:
            return DeclinedSending(reason="this version cannot read what was queued", final=True)
        flaw = changed(policy, operation, payload)
        if flaw is not None:
            # One that may not let anything leave is not taken at its word when it ends something:
            # the home's policy may be missing, or a file that nobody signed be in its place.
            trusted = self._router.loaded.lets_leave
            return DeclinedSending(reason=flaw, final=trusted)
        stale = changed_since(operation)
        if stale is not None:
            return DeclinedSending(reason=stale, final=True)
        if operation.destination in self._resting:
            return DeclinedSending(reason=self._resting[operation.destination])
        request = request_of(payload, task=operation.kind, data_class=operation.data_class)
        kinds = unreplaced(payload, self._detectors)
        if kinds:
            # It is not minimised again: it may have been sent as it is, under this key, and nobody
            # agreed to an answer with further placeholders.
            return DeclinedSending(reason=unreplaced_words(kinds), final=True)
        state = msgspec.structs.replace(read_state(self._context.home.root), link=self._link())
        evidence = _evidence(self._context, self._router, self._bundle, operation.destination,
                             operation.kind)  # fmt: skip
        found: list[Means] = []
        try:
            given = self._router.permit(
                request,
                state,
                evidence,
                outgoing.payload,
                destination=operation.destination,
                record=self._router.drawn(request),
                ready=lambda place: found.append(self._client.means(place)),
            )
        except EdgewiseError as error:  # this device lacks something; no consent was used up
            reason = f"{error.code}: {error.message}"
            self._resting[operation.destination] = reason
            return DeclinedSending(reason=reason)
        if given.permit is not None:
            place = policy.places[operation.destination]
            licence = Licence(
                permit=given.permit, destination=place, payload=payload, means=found[0]
            )
            return Permitted(licence=licence, deduplicates=place.idempotent)
        return self._not_permitted(request, state, evidence, given.decision, operation.destination)

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


def _unsendable(
    context: Context, router: Router, request: Request, destination: str
) -> tuple[Reason, ...]:
    """Return why a request would not be sent even with a network and with consent."""
    policy = router.policy
    links = policy.device.links
    if not links:
        return (Reason(code="route-declined", words="the policy lets nothing leave by any link"),)
    state = msgspec.structs.replace(read_state(context.home.root), link=links[0])
    evidence = _evidence(context, router, _active(context), destination, request.task)
    known = router.known(request, evidence)
    agreed = tuple(
        msgspec.structs.replace(fact, verdict=ConsentVerdict.GRANTED)
        if fact.verdict is ConsentVerdict.ABSENT
        else fact
        for fact in known.consents
    )
    # The day's limit of spending is another one tomorrow.
    spent = tuple(name for name in known.spent if name != destination)
    known = msgspec.structs.replace(known, consents=agreed, spent=spent)
    decision = decide(request, request.data_class, state, policy, known)
    if decision.route is Route.CLOUD:
        return ()
    if decision.route is Route.LOCAL:
        return (Reason(code="answered-here", words="this device can answer it by itself now"),)
    words = denials(decision, destination)
    return tuple(Reason(code="route-declined", words=one) for one in words)


def _evidence(
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


def _active(context: Context) -> Bundle | None:
    with contextlib.suppress(InputError):  # nothing is active: the router is told
        return context.bundles.active()
    return None


def _refused(code: str, words: str) -> Refused:
    return Refused(reasons=(Reason(code=code, words=words),))


def _invalid(field: str, allowed: str) -> InputError:
    return InputError(
        "operation-invalid",
        f"{field} of an operation cannot be used: {allowed}",
        context={"field": field},
        hint="see the page on the offline queue",
    )
