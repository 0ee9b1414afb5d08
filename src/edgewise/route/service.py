"""The router at work: the pure decision, with the ledger of consents asked and permits minted.

It is the only thing that mints permits. A permit is given for the very bytes that are to be sent,
after the decision has been made once more and consent was used up: what was decided, or consented
to, a moment ago is no licence.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from edgewise.core.outcome import ConsentNeeded, Route, RouteDecision
from edgewise.core.request import Request
from edgewise.core.state import DeviceState
from edgewise.errors import EdgewiseError
from edgewise.route.cloud_rules import scope_of
from edgewise.route.consent import ConsentLedger, ConsentScope, ConsentState
from edgewise.route.consent import ConsentVerdict as Standing
from edgewise.route.consent.moments import from_clock, to_datetime
from edgewise.route.destinations import Destination
from edgewise.route.facts import ClassifiedTask, ConsentFact, ConsentVerdict, RouteEvidence
from edgewise.route.permits import CloudPermit, PermitGate, PermitOffice
from edgewise.route.policy import AUTO, CloudUse, Policy
from edgewise.route.policy_file import LoadedPolicy, in_force
from edgewise.route.policy_standing import PolicyStanding, standing
from edgewise.route.records import Recorder
from edgewise.route.router import decide
from edgewise.route.tasks import task_of

__all__ = ["Permitted", "Router"]

_CLOCK = "consent-clock-skewed"
_NOT_READ = "nobody looked, since it does not change where this goes"
_VERDICTS = {
    Standing.GRANTED: ConsentVerdict.GRANTED,
    Standing.DENIED: ConsentVerdict.DENIED,
    Standing.UNREADABLE: ConsentVerdict.UNREADABLE,
}


class Permitted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision made at the moment of sending, with the permit where it is ``cloud``."""

    decision: RouteDecision
    permit: CloudPermit | None = None


class Router:
    """One policy, one ledger, and the office that mints permits. Callable from any thread.

    Args:
        loaded: The policy, with how far it is trusted.
        ledger: Where consents are kept.
        clock: Seconds since 1970; only dates depend on it.
        recorder: Records decisions where the policy says so; nobody does without.
        classify: Says the task of a request that leaves it open; it raises nothing.
    """

    def __init__(
        self,
        loaded: LoadedPolicy,
        ledger: ConsentLedger,
        *,
        clock: Callable[[], float] = time.time,
        recorder: Recorder | None = None,
        classify: Callable[[Request], ClassifiedTask] | None = None,
    ) -> None:
        self.loaded = loaded
        self.recorder = recorder
        self._classify = classify
        self._ledger = ledger
        self._clock = clock
        self._office = PermitOffice()

    @property
    def policy(self) -> Policy:
        """Return the policy in force."""
        return self.loaded.policy

    @property
    def gate(self) -> PermitGate:
        """Return what the cloud client redeems permits at; it cannot mint."""
        return self._office.gate

    def standing(self) -> PolicyStanding:
        """Return which policy decides, and whether it is in force: what is over stays over."""
        now_s, policy = self._clock(), self.policy
        if policy.destinations and (policy.issued is not None or policy.expires is not None):
            moment = self._ledger.moment()
            now_s = now_s if moment is None else max(now_s, moment.floor_ms / 1000)
        return standing(self.loaded, to_datetime(from_clock(now_s)))

    def drawn(self, request: Request) -> bool:
        """Return whether the decision that a request is answered by is to be recorded."""
        return self.recorder is not None and self.recorder.drawn(request.data_class)

    def decide(
        self,
        request: Request,
        state: DeviceState,
        evidence: RouteEvidence,
        *,
        record: bool = False,
    ) -> RouteDecision:
        """Return the route of a request, with what the ledger and the clock say now.

        It raises nothing: a ledger that cannot be read allows nothing and is said to be so.
        ``record`` is for a decision that was :meth:`drawn`, once for each request.
        """
        known = self.known(request, evidence)
        decision = decide(request, request.data_class, state, self.policy, known)
        if record and self.recorder is not None:
            self.recorder.keep(request, state, known, decision)
        return decision

    def decide_lazily(
        self,
        request: Request,
        state: DeviceState,
        evidence: RouteEvidence,
        *,
        record: bool = False,
    ) -> RouteDecision:
        """Return the same route as :meth:`decide`; the ledger is read only where it can change it.

        A local answer that is neither second choice nor in doubt depends on no consent. Its rules
        then say that nobody looked. A decision that is recorded holds what the ledger says.
        """
        evidence = self.classified(request, evidence)
        task = task_of(request, self.policy, evidence).of(self.policy)
        plain = task is None or task.cloud is not CloudUse.PREFERRED
        if plain and evidence.doubt is None and not record:
            unread = () if task is None else task.destinations
            facts = tuple(
                ConsentFact(destination=name, verdict=ConsentVerdict.UNREADABLE, reason=_NOT_READ)
                for name in unread
            )
            known = self._with(evidence, facts)
            found = decide(request, request.data_class, state, self.policy, known)
            if found.route is Route.LOCAL:
                return found
        return self.decide(request, state, evidence, record=record)

    def permit(
        self,
        request: Request,
        state: DeviceState,
        evidence: RouteEvidence,
        payload: bytes,
        *,
        destination: str,
        record: bool = False,
        ready: Callable[[Destination], DeviceState | None] = lambda _place: None,
    ) -> Permitted:
        """Decide once more and, where the route is ``cloud``, use up consent and give a permit.

        Args:
            request: The request as the user made it; its data class decides.
            state: The device's state now.
            evidence: What else is known now.
            payload: The very bytes that are to be sent, minimised.
            destination: For whom they were minimised.
            record: Whether this decision was :meth:`drawn`; for a queued operation, which may go
                to no other destination.
            ready: Called with the destination before consent is used up, to find what is missing
                on this device for asking it. What it raises is raised, and no consent is used up.
                Somebody may have been asked for a key meanwhile, so it is decided again after it,
                by the state of the device that it returns.

        Returns:
            The decision; without a permit where it is not ``cloud``, or where the consent was
            used by somebody else in the meantime, or the route leads somewhere else by now: then
            it is ``decline``, and no consent was used up.
        """
        known = self.known(request, evidence)
        decision = decide(request, request.data_class, state, self.policy, known)
        try:
            if decision.route is Route.CLOUD and decision.destination == destination:
                state = ready(self.policy.places[destination]) or state
                known = self.known(request, evidence)
                decision = decide(request, request.data_class, state, self.policy, known)
        finally:
            if record and self.recorder is not None:
                self.recorder.keep(request, state, known, decision, only=destination)
        if decision.route is not Route.CLOUD:
            return Permitted(decision=decision)
        if decision.destination != destination:
            return Permitted(decision=_moved(decision, destination))
        place = self.policy.places[decision.destination]
        used = ""
        if decision.consent is not None:
            try:
                used = self._ledger.consume(_scope(decision.consent), self.policy.terms(place.name))
            except EdgewiseError as error:
                return Permitted(decision=self._late(request, state, known, decision, error))
        return Permitted(decision=decision, permit=self._office.mint(place, payload, consent=used))

    def _late(
        self,
        request: Request,
        state: DeviceState,
        known: RouteEvidence,
        decision: RouteDecision,
        error: EdgewiseError,
    ) -> RouteDecision:
        """Decide without the consent that could not be used up, and without another attempt."""
        gone = ConsentFact(
            destination=decision.destination,
            verdict=ConsentVerdict.UNREADABLE,
            reason=f"it could not be used: {error.message}",
        )
        facts = tuple(
            gone if fact.destination == gone.destination else fact for fact in known.consents
        )
        # No other destination either: each has a consent of its own, and this was the one shown.
        closed = tuple(
            msgspec.structs.replace(fact, verdict=ConsentVerdict.UNREADABLE)
            if fact.verdict is ConsentVerdict.GRANTED
            else fact
            for fact in facts
        )
        poorer = msgspec.structs.replace(known, consents=closed)
        found = decide(request, request.data_class, state, self.policy, poorer)
        if found.route is not Route.CLOUD:
            return found
        return msgspec.structs.replace(
            found, route=Route.DECLINE, destination="", consent=None, reasons=(gone.reason,)
        )

    def agreed(self, scope: ConsentScope) -> bool:
        """Return whether a consent stands for a destination as the policy declares it."""
        place = self.policy.places.get(scope.destination)
        return place is not None and self._ledger.state(
            scope, self.policy.terms(place.name)
        ).verdict is (Standing.GRANTED)

    def classified(self, request: Request, evidence: RouteEvidence) -> RouteEvidence:
        """Return the evidence with what the classifier says of a task that is open.

        What a classifier has said already is kept.
        """
        if request.task != AUTO or self._classify is None or evidence.classified is not None:
            return evidence
        return msgspec.structs.replace(evidence, classified=self._classify(request))

    def known(self, request: Request, evidence: RouteEvidence) -> RouteEvidence:
        """Return the evidence with what classifier, policy's trust, date and ledger add to it."""
        evidence = self.classified(request, evidence)
        states = self._consents(request, evidence)
        facts = tuple(
            ConsentFact(
                destination=name,
                verdict=_VERDICTS.get(state.verdict, ConsentVerdict.ABSENT),
                reason=state.reason,
            )
            for name, state in states.items()
        )
        right = evidence.clock_right and all(state.code != _CLOCK for state in states.values())
        if not self._dated(request, evidence):
            return self._with(evidence, facts, clock_right=right)
        moment = self._ledger.moment()
        if moment is None:  # nobody knows how late it was before
            return self._with(evidence, facts, clock_right=False)
        clock_s = max(self._clock(), moment.floor_ms / 1000)
        return self._with(evidence, facts, clock_s=clock_s, clock_right=right and not moment.skewed)

    def _with(
        self,
        evidence: RouteEvidence,
        facts: tuple[ConsentFact, ...],
        *,
        clock_s: float | None = None,
        clock_right: bool = True,
    ) -> RouteEvidence:
        now = to_datetime(from_clock(self._clock() if clock_s is None else clock_s))
        return msgspec.structs.replace(
            evidence,
            trust=self.loaded.trust,
            policy_expired=not in_force(self.policy, now),
            consents=facts,
            clock_right=evidence.clock_right and clock_right,
        )

    def _dated(self, request: Request, evidence: RouteEvidence) -> bool:
        """Return whether a request may leave and the policy's dates say until when."""
        task = task_of(request, self.policy, evidence).of(self.policy)
        dated = self.policy.issued is not None or self.policy.expires is not None
        return dated and task is not None and bool(task.destinations)

    def _consents(self, request: Request, evidence: RouteEvidence) -> dict[str, ConsentState]:
        """Ask the ledger about each destination that would need consent."""
        task = task_of(request, self.policy, evidence).of(self.policy)
        found = {}
        for name in () if task is None else task.destinations:
            place = self.policy.places[name]
            needed = scope_of(self.policy, request.data_class, place)
            if needed is None or not needed.purpose:
                continue
            found[name] = self._ledger.state(_scope(needed), self.policy.terms(name))
        return found


def _moved(decision: RouteDecision, prepared_for: str) -> RouteDecision:
    why = f"it was prepared for {prepared_for}, and its route leads to {decision.destination} now"
    return msgspec.structs.replace(
        decision, route=Route.DECLINE, destination="", consent=None, reasons=(why,)
    )


def _scope(needed: ConsentNeeded) -> ConsentScope:
    return ConsentScope(
        feature=needed.feature,
        data_class=needed.data_class,
        destination=needed.destination,
        purpose=needed.purpose,
    )
