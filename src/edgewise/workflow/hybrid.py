"""A feature that answers here, asks a destination, or declines: what its policy says, each time.

A request is routed before anything runs. What leaves is minimised first; consent is used up and
the permit is given for those very bytes. The cloud's answer gets its placeholders restored here.
A local answer that breaks is a failure and is not continued anywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from edgewise.core.bundle import Bundle
from edgewise.core.outcome import (
    Completed,
    Declined,
    Event,
    Failed,
    Outcome,
    Provenance,
    Route,
    RouteDecision,
)
from edgewise.core.request import Request
from edgewise.core.signals import Escalation
from edgewise.core.state import DeviceState, LinkState
from edgewise.device import read_state
from edgewise.device.link import read_link
from edgewise.errors import EdgewiseError, InputError
from edgewise.route.cloud import CancelToken, CloudClient, Secrets, SpendLedger
from edgewise.route.cloud.faults import cancelled
from edgewise.route.consent import ConsentPrompt
from edgewise.route.destinations import Destination
from edgewise.route.facts import Doubt, RouteEvidence
from edgewise.route.minimise import default_detectors
from edgewise.route.outgoing import Outgoing, prepare, question_for, stays, unanswerable
from edgewise.route.service import Router
from edgewise.run.session import Session
from edgewise.workflow.asking import Asking
from edgewise.workflow.cloud_answers import ask_destination
from edgewise.workflow.contacts import read_contacts
from edgewise.workflow.context import Context
from edgewise.workflow.judging import Judge
from edgewise.workflow.opening import open_session
from edgewise.workflow.pace import Pace
from edgewise.workflow.routing import EvidenceReader, noting, open_router

if TYPE_CHECKING:
    from edgewise.route.minimise import Detector

__all__ = ["Hybrid", "hybrid_over", "open_hybrid"]

_NO_SIGNALS = Event(
    code="signals-unavailable",
    message="a destination answered, and does not tell how sure its model was",
)


def open_hybrid(
    context: Context,
    policy: Path | None = None,
    *,
    contacts: Sequence[str] | None = None,
    link: Callable[[], LinkState] = read_link,
) -> Hybrid:
    """Return a feature under a policy, on the active deployment where there is one.

    Args:
        context: Whose home and device.
        policy: A policy's file; the home's own by default.
        contacts: Names of the user's contacts, which are replaced in what leaves; those in the
            home's ``contacts.txt`` by default.
        link: Says how the network is, without sending anything.

    Raises:
        InputError: the policy or the contacts cannot be read.
        IntegrityError: its signature is wrong, or the active bundle is damaged.
        UnsupportedError: the policy lets something leave, and the extras ``cloud`` and
            ``minimise`` are not installed.
    """
    names = read_contacts(context) if contacts is None else contacts
    router = open_router(context, policy)
    active, session = False, None
    with contextlib.suppress(InputError):  # nothing is active: the router is told
        active = bool(context.bundles.active().fingerprint)
    if active:
        session = open_session(context, router=router, recorded=lambda _request: False)
    return hybrid_over(context, router, session, contacts=names, link=link)


def hybrid_over(
    context: Context,
    router: Router,
    session: Session | None,
    *,
    contacts: Sequence[str] = (),
    link: Callable[[], LinkState] = read_link,
    state: Callable[[], DeviceState] | None = None,
) -> Hybrid:
    """Return a feature under a router's policy, over a session that decides by the same router.

    What the feature routes, it also records; the session is to be opened with ``recorded`` saying
    no to that. ``state`` reads the device's state; by default it is read anew each time.

    Raises:
        UnsupportedError: see :func:`open_hybrid`.
    """
    client: CloudClient | None = None
    detectors: tuple[Detector, ...] = ()
    if router.policy.destinations:
        client = CloudClient(router.gate, spend=SpendLedger(context.home), secrets=Secrets())
        detectors = default_detectors(contacts=contacts)
    return Hybrid(
        context,
        router,
        bundle=None if session is None else session.bundle,
        session=session,
        client=client,
        detectors=detectors,
        link=link,
        state=state,
    )


class Hybrid:
    """See :func:`open_hybrid`. It answers one request at a time.

    :meth:`decide`, :meth:`send`, :meth:`question` and :meth:`declined` leave the session alone, and
    may be called from several threads at once. Their ``after`` is the local answer to the same
    request that is doubted, or what was made of it.

    Attributes:
        router: Decides.
        judged: Has a request answered here by what it is given, and judges the answer.
        client: Asks destinations; ``None`` where the policy has none.
    """

    def __init__(
        self,
        context: Context,
        router: Router,
        *,
        bundle: Bundle | None,
        session: Session | None,
        client: CloudClient | None,
        detectors: tuple[Detector, ...],
        link: Callable[[], LinkState],
        state: Callable[[], DeviceState] | None = None,
    ) -> None:
        self.router = router
        self._context = context
        self._bundle = bundle
        self._session = session
        self.client = client
        self._detectors = detectors
        self._link = link
        self._read_state = state or (lambda: read_state(context.home.root))
        self._known = EvidenceReader(context, bundle, router.loaded)
        self._pace = Pace(context, bundle)
        self.judged = Judge(context, bundle, router.policy)

    @property
    def deployment(self) -> str:
        """Return the name and the fingerprint's head of what answers here; empty for nothing."""
        if self._bundle is None:
            return ""
        return f"{self._bundle.model} ({self._bundle.fingerprint[:12]})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the local session; what is to be recorded is on disk then, or said to be lost."""
        if self._session is not None:
            self._session.close()
        recorder = self.router.recorder
        if recorder is not None:
            recorder.flush()
            for event in recorder.take_events():
                noting(self._context)(event)

    def ask(
        self,
        request: Request,
        *,
        on_text: Callable[[str], None] | None = None,
        cancel: CancelToken | None = None,
        after: Completed | None = None,
    ) -> Outcome:
        """Answer a request where its route says, or decline it with the reasons.

        Where consent is the only thing that is missing, the outcome is ``declined`` and
        :meth:`question` has what to ask the user.

        Where the policy escalates the task, a local answer holds in ``escalation`` whether it may
        be kept. One that may not is offered as unverified and sent nowhere: asking elsewhere is
        another request, with that answer as ``after``, and has a route and a consent of its own.

        Args:
            request: The request.
            on_text: Called with each piece of text as it comes.
            cancel: Ends an answer of the cloud from another thread; :meth:`cancel` ends a local
                one.
            after: The local answer to the same request that is doubted.
        """
        outcome = self._routed(request, on_text, cancel, after)
        recorder = self.router.recorder
        events = () if recorder is None else recorder.take_events()
        if not events:
            return outcome
        return msgspec.structs.replace(outcome, events=(*outcome.events, *events))

    def _routed(
        self,
        request: Request,
        on_text: Callable[[str], None] | None,
        cancel: CancelToken | None,
        after: Completed | None,
    ) -> Outcome:
        state, evidence = self._state(), self._evidence(request, after)
        drawn = self.router.drawn(request)
        decision = self.router.decide(request, state, evidence, record=drawn)
        session = self._session
        if decision.route is Route.LOCAL and session is not None:
            outcome = self.judged(request, lambda asked: session.ask(asked, on_text=on_text))
            if after is None or isinstance(outcome, Declined):
                return outcome
            told = msgspec.structs.replace(outcome.provenance, route=decision)
            return msgspec.structs.replace(outcome, provenance=told)
        return self._elsewhere(request, decision, state, evidence, on_text, cancel)

    def decide(
        self,
        request: Request,
        *,
        after: Completed | Escalation | None = None,
        record: bool = False,
    ) -> RouteDecision:
        """Return where a request is to be answered; nothing runs and nothing is used up.

        The ledger of consents is read only where it can change the route, or is to be recorded.

        Args:
            request: The request.
            after: The answer of this device that is doubted, or what was made of it.
            record: Whether it will be answered by this decision, which may then be recorded.
        """
        drawn = record and self.router.drawn(request)
        evidence = self._evidence(request, after)
        return self.router.decide_lazily(request, self._state(), evidence, record=drawn)

    def send(
        self,
        request: Request,
        *,
        on_text: Callable[[str], None] | None = None,
        cancel: CancelToken | None = None,
        after: Completed | Escalation | None = None,
    ) -> Outcome:
        """Answer a request at the destination that its route names; decline where it names none.

        It never answers here. See :meth:`ask` for the arguments.
        """
        state, evidence = self._state(), self._evidence(request, after)
        decision = self.router.decide(request, state, evidence)
        return self._elsewhere(request, decision, state, evidence, on_text, cancel)

    def cancel(self) -> None:
        """End the local answer that is being made."""
        if self._session is not None:
            self._session.cancel()

    def question(
        self, request: Request, *, after: Completed | Escalation | None = None
    ) -> ConsentPrompt | None:
        """Return what to ask the user for this request; ``None`` where consent would not help.

        It says what would leave, after minimisation, and what was replaced; it sends nothing.
        """
        decision = self.router.decide(request, self._state(), self._evidence(request, after))
        if decision.route is Route.CLOUD or decision.consent is None:
            return None
        outgoing = self._outgoing(request, decision)
        if isinstance(outgoing, str):
            return None
        return question_for(self.router.policy, decision, outgoing)

    def _state(self) -> DeviceState:
        return msgspec.structs.replace(self._read_state(), link=self._link())

    def _evidence(
        self, request: Request, after: Completed | Escalation | None = None
    ) -> RouteEvidence:
        resident = self._session is not None and self._session.resident
        known = msgspec.structs.replace(
            self._known(resident=resident), expected_s=self._pace(request)
        )
        found = self.router.classified(request, known)
        doubted = after.escalation if isinstance(after, Completed) else after
        if doubted is None:
            return found
        doubt = Doubt(
            unsure=doubted.suggested,
            calibrated=doubted.judged,
            reason="; ".join(doubted.reasons),
            evidence=doubted.evidence,
        )
        return msgspec.structs.replace(found, doubt=doubt)

    def _outgoing(self, request: Request, decision: RouteDecision) -> Outgoing | str:
        """Return what would leave, or why nothing can."""
        name = decision.destination or (
            "" if decision.consent is None else decision.consent.destination
        )
        try:
            return prepare(self.router.policy, request, name, self._detectors)
        except EdgewiseError as error:
            return error.message

    def _elsewhere(
        self,
        request: Request,
        decision: RouteDecision,
        state: DeviceState,
        evidence: RouteEvidence,
        on_text: Callable[[str], None] | None,
        cancel: CancelToken | None,
    ) -> Outcome:
        if decision.route is not Route.CLOUD or self.client is None:
            return self.declined(decision)
        outgoing = self._outgoing(request, decision)
        if isinstance(outgoing, str):
            return self.declined(unanswerable(decision, outgoing))
        if cancel is not None and cancel.cancelled:  # before consent is used up
            return self._failed(decision, cancelled().error)
        asking = Asking(self.client, outgoing, cancel)

        def ready(place: Destination) -> DeviceState:
            asking.make_ready(place)
            return self._state()

        try:
            sent = self.router.permit(
                request,
                state,
                evidence,
                outgoing.payload.body,
                destination=outgoing.destination.name,
                ready=ready,
            )
        except EdgewiseError as error:  # something is missing here; no consent was used up
            return self._failed(decision, error)
        if sent.permit is None:
            return self.declined(sent.decision)
        provenance = self._provenance(sent.decision)
        outcome = ask_destination(asking, sent.permit, provenance, on_text=on_text)
        if not request.signals or not isinstance(outcome, Completed):
            return outcome
        return msgspec.structs.replace(outcome, events=(*outcome.events, _NO_SIGNALS))

    def _failed(self, decision: RouteDecision, error: EdgewiseError) -> Failed:
        return Failed(error=error.to_dict(), partial_text="", provenance=self._provenance(decision))

    def declined(self, decision: RouteDecision) -> Declined:
        """Return the outcome of a decision by which nothing is asked elsewhere."""
        if decision.route is not Route.DECLINE:
            decision = stays(decision)
        return Declined(reasons=decision.reasons, provenance=self._provenance(decision))

    def _provenance(self, decision: RouteDecision) -> Provenance:
        where = f"cloud:{decision.destination}" if decision.destination else "none"
        return Provenance(
            route=decision,
            # What a destination answers with has no fingerprint that this device could know.
            fingerprint=""
            if self._bundle is None or decision.destination
            else self._bundle.fingerprint,
            policy_version=decision.policy_version,
            runtime=where,
            device=self._context.device.digest,
            template="",
        )
