"""What the router is told of this home and device: the policy in force, and the evidence."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgewise.core.bundle import Bundle
from edgewise.core.outcome import Event, RouteDecision
from edgewise.core.request import DataClass, Request
from edgewise.core.state import DeviceState
from edgewise.device import read_state
from edgewise.device.link import read_link
from edgewise.errors import InputError
from edgewise.route import RouteEvidence, decide
from edgewise.route.consent import ConsentLedger
from edgewise.route.policy_file import LoadedPolicy, in_force
from edgewise.route.policy_standing import PolicyStanding, standing_events
from edgewise.route.records import Recorder
from edgewise.route.service import Router
from edgewise.workflow.assuming import Assumed
from edgewise.workflow.context import Context, Step
from edgewise.workflow.pace import Pace
from edgewise.workflow.policies import load_policy

__all__ = [
    "EvidenceReader",
    "Explained",
    "StateReader",
    "explain_route",
    "noting",
    "open_router",
    "route_evidence",
]

# Specified: how old what the files of evidence say may be when a request is routed.
_EVIDENCE_AGE_S = 5.0
# Specified: and what the device's sensors say. A request of a server is decided twice within it
# where it need not wait, and the pressure that is read is a mean of 10 seconds.
_STATE_AGE_S = 0.2


class Explained(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision with what it was made from.

    Attributes:
        decision: The route and every rule.
        data_class: The class of the request's data.
        treated_as: Which of the four it is treated as; ``None`` where the policy does not know it.
        deadline_s: The shortest deadline, of the request or the task, seconds; ``None`` for none.
        policy: The policy, how far it is trusted and whether it is in force.
        state: The device's state.
        evidence: What else was known.
        assumed: What was not read but given by who asks, by name.
    """

    decision: RouteDecision
    data_class: str
    treated_as: DataClass | None
    deadline_s: float | None
    policy: PolicyStanding
    state: DeviceState
    evidence: RouteEvidence
    assumed: dict[str, str] = {}


def open_router(
    context: Context,
    policy: Path | None = None,
    *,
    ledger: ConsentLedger | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Router:
    """Return a router under a policy that records decisions in the home where that says so.

    Args:
        context: Whose home.
        policy: A policy's file; the home's own by default.
        ledger: Where consents are kept; the home's by default.
        on_event: Called now where the policy is not in force, or not trusted so far that what it
            lets leave may leave; the context is told without it. Called from another thread when
            records are lost; without it these events wait in the router's recorder.

    Raises:
        InputError: the policy cannot be read.
        IntegrityError: its signature is wrong, or it is older than the home's last.
    """
    loaded = load_policy(context, policy)
    recorder = Recorder(context.home, loaded.policy, on_event=on_event)
    router = _router(context, loaded, ledger, recorder)
    for event in standing_events(loaded, router.standing()):
        (on_event or noting(context))(event)
    return router


def _router(
    context: Context,
    loaded: LoadedPolicy,
    ledger: ConsentLedger | None = None,
    recorder: Recorder | None = None,
) -> Router:
    """Return a router with the policy's classifier; one that cannot be read says so when asked."""
    classify = None
    if loaded.policy.classifier is not None:
        from edgewise.workflow.classifying import open_classifier  # noqa: PLC0415 - where used

        classify = open_classifier(context, loaded.policy.classifier).say
    consents = ledger or ConsentLedger(context.home)
    return Router(loaded, consents, recorder=recorder, classify=classify)


def noting(context: Context) -> Callable[[Event], None]:
    """Return what reports events as notes of the context."""

    def note(event: Event) -> None:
        message = f"{event.code}: {event.message}"
        context.report(Step(stage="route", status="note", message=message))

    return note


def route_evidence(
    context: Context, bundle: Bundle | None, loaded: LoadedPolicy, *, resident: bool = False
) -> RouteEvidence:
    """Return what is known of a deployment under a policy, now."""
    now = dt.datetime.now(dt.UTC)
    known = RouteEvidence(
        trust=loaded.trust, policy_expired=not in_force(loaded.policy, now), resident=resident
    )
    if bundle is None:
        return known
    device = context.device.digest
    found = context.evidence.find(subject=bundle.fingerprint)
    kinds = {
        piece.kind
        for _, piece in found
        if piece.device == device and piece.figures.get("passed") is not False
    }
    smoke = context.evidence.latest(kind="smoke", subject=bundle.fingerprint, device=device)
    return msgspec.structs.replace(
        known,
        fingerprint=bundle.fingerprint,
        qualified=smoke is not None and bool(smoke[1].figures.get("passed")),
        memory=bundle.memory,
        kinds=tuple(sorted(kinds)),
        context_length=bundle.deployment.compute.run_config.context_length,
    )


class EvidenceReader:
    """:func:`route_evidence` for one deployment, again and again: the files are read now and then.

    Reading and checking every file for each request would cost more than all the rest of its
    routing. Whether the model is loaded, and whether the policy is in force, is never old.
    """

    def __init__(self, context: Context, bundle: Bundle | None, loaded: LoadedPolicy) -> None:
        self._context = context
        self._bundle = bundle
        self._loaded = loaded
        self._read: tuple[float, RouteEvidence] | None = None

    def __call__(self, *, resident: bool) -> RouteEvidence:
        """Return what is known; the files' part of it is at most 5 seconds old."""
        now, read = time.monotonic(), self._read
        if read is None or now - read[0] > _EVIDENCE_AGE_S:
            read = (now, route_evidence(self._context, self._bundle, self._loaded))
            self._read = read
        over = not in_force(self._loaded.policy, dt.datetime.now(dt.UTC))
        return msgspec.structs.replace(read[1], resident=resident, policy_expired=over)


class StateReader:
    """The device's state, again and again: the sensors are read a few times a second at most.

    A reading that is not of this moment says its age among its sources. Callable from any thread.
    """

    def __init__(self, context: Context) -> None:
        self._folder = context.home.root
        self._read: tuple[float, DeviceState] | None = None

    def __call__(self) -> DeviceState:
        """Return the state, at most a fifth of a second old."""
        now, read = time.monotonic(), self._read
        if read is None or now - read[0] > _STATE_AGE_S:
            state = read_state(self._folder)
            self._read = (now, state)  # the older of the two moments
            return state
        age = f"read {(now - read[0]) * 1e3:.0f} ms ago"
        return msgspec.structs.replace(read[1], sources={**read[1].sources, "age": age})


def explain_route(
    context: Context,
    request: Request,
    *,
    policy: Path | None = None,
    assume: Assumed | None = None,
) -> Explained:
    """Decide where a request would run, here and now, without running it.

    Args:
        context: Whose home and device.
        request: The request.
        policy: A policy's file; the home's own by default.
        assume: What to take for true instead of reading it.

    Raises:
        InputError: the policy cannot be read.
        IntegrityError: its signature is wrong, it is older than the home's last, or the active
            bundle is damaged.
    """
    loaded = load_policy(context, policy, advance=False)
    try:
        bundle: Bundle | None = context.bundles.active()
    except InputError:
        bundle = None
    assume = assume or Assumed()
    read = read_state(context.home.root)
    state = assume.state(msgspec.structs.replace(read, link=assume.link or read_link()))
    router = _router(context, loaded)
    known = msgspec.structs.replace(
        route_evidence(context, bundle, loaded), expected_s=Pace(context, bundle)(request)
    )
    known = assume.evidence(known)
    evidence = router.known(request, known)
    decision = decide(request, request.data_class, state, loaded.policy, evidence)
    task = loaded.policy.by_task.get(decision.task)
    deadlines = (request.deadline_s, None if task is None else task.deadline_s)
    return Explained(
        decision=decision,
        data_class=request.data_class,
        treated_as=loaded.policy.classes.get(request.data_class),
        deadline_s=min((one for one in deadlines if one is not None), default=None),
        policy=router.standing(),
        state=state,
        evidence=evidence,
        assumed=assume.told(),
    )
