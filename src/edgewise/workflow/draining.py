"""The offline queue at work: what may wait is minimised and queued, and sent when it may be.

A queued operation is no licence. Before each attempt the router decides anew, under the policy
that is in force then, and for the destination that it was queued for and no other; consent is used
up and a permit is given for these very bytes. What a placeholder stands for is written nowhere: a
late answer gets it back from the same request, made again, or keeps its placeholders.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgewise.core.outcome import Route
from edgewise.core.request import DataClass, Request
from edgewise.core.state import LinkState
from edgewise.device import read_state
from edgewise.device.link import read_link
from edgewise.errors import EdgewiseError, InputError
from edgewise.route import decide
from edgewise.route.cloud import CloudClient, Secrets, SpendLedger
from edgewise.route.facts import ConsentVerdict
from edgewise.route.minimise import default_detectors
from edgewise.route.offline import (
    Compatible,
    DocumentVersion,
    Draft,
    Drainer,
    DrainReport,
    DrainSettings,
    OfflineQueue,
    Queued,
    Reason,
    Refused,
    State,
)
from edgewise.route.offline import LinkState as Met
from edgewise.route.outgoing import prepare
from edgewise.route.policy import Policy
from edgewise.route.service import Router
from edgewise.workflow.contacts import read_contacts
from edgewise.workflow.context import Context
from edgewise.workflow.queue_desk import Desk, active_bundle, evidence_for
from edgewise.workflow.queue_rules import (
    barred,
    denials,
    placeholder_words,
    scope_of,
)
from edgewise.workflow.queue_sender import QueueSender
from edgewise.workflow.routing import noting, open_router

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
    desk = Desk(context, router, client, sender.resting, link, detectors)
    drainer = Drainer(queue, sender, desk.authorise, compatible=compatible, settings=settings)
    try:
        return drainer.drain(limit=limit, stop=lambda: stop() or link() not in links)
    finally:
        if router.recorder is not None:
            router.recorder.flush()


def _unsendable(
    context: Context, router: Router, request: Request, destination: str
) -> tuple[Reason, ...]:
    """Return why a request would not be sent even with a network and with consent."""
    policy = router.policy
    links = policy.device.links
    if not links:
        return (Reason(code="route-declined", words="the policy lets nothing leave by any link"),)
    state = msgspec.structs.replace(read_state(context.home.root), link=links[0])
    evidence = evidence_for(context, router, active_bundle(context), destination, request.task)
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


def _refused(code: str, words: str) -> Refused:
    return Refused(reasons=(Reason(code=code, words=words),))


def _invalid(field: str, allowed: str) -> InputError:
    return InputError(
        "operation-invalid",
        f"{field} of an operation cannot be used: {allowed}",
        context={"field": field},
        hint="see the page on the offline queue",
    )
