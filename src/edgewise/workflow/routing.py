"""What the router is told of this home and device: the policy in force, and the evidence."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgewise.core.bundle import Bundle
from edgewise.core.outcome import Event, RouteDecision
from edgewise.core.request import Request
from edgewise.core.state import DeviceState
from edgewise.device import read_state
from edgewise.device.link import read_link
from edgewise.errors import InputError
from edgewise.route import DEFAULT_POLICY, RouteEvidence, decide
from edgewise.route.consent import ConsentLedger
from edgewise.route.facts import PolicyTrust
from edgewise.route.policy_file import LoadedPolicy, in_force, read_policy
from edgewise.route.records import Recorder
from edgewise.route.service import Router
from edgewise.workflow.assuming import Assumed
from edgewise.workflow.context import Context, Step
from edgewise.workflow.pace import Pace

__all__ = [
    "EvidenceReader",
    "Explained",
    "StateReader",
    "explain_route",
    "has_policy",
    "keys_folder",
    "load_policy",
    "noting",
    "open_router",
    "route_evidence",
]

# Specified: how old what the files of evidence say may be when a request is routed.
_EVIDENCE_AGE_S = 5.0
# Specified: and what the device's sensors say. A request of a server is decided twice within it
# where it need not wait, and the pressure that is read is a mean of 10 seconds.
_STATE_AGE_S = 0.2
_POLICY_NAMES = ("policy.toml", "policy.json")


class Explained(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision with what it was made from.

    Attributes:
        decision: The route and every rule.
        trust: How far the policy is trusted.
        trust_reason: Why, in words.
        state: The device's state.
        evidence: What else was known.
        assumed: What was not read but given by who asks, by name.
    """

    decision: RouteDecision
    trust: PolicyTrust
    trust_reason: str
    state: DeviceState
    evidence: RouteEvidence
    assumed: dict[str, str] = {}


def keys_folder(context: Context) -> Path:
    """Return where the keys lie that policies may be signed with, one ``NAME.pub`` each."""
    return context.home.root / "policy-keys"


def load_policy(context: Context, path: Path | None = None) -> LoadedPolicy:
    """Return the policy of a file, else of the home, else the one that is built in.

    A policy of the home that is unsigned lets nothing leave where the home trusts keys, whatever
    it says of itself: else a file that anybody put there would do what a signed one was made for.

    Raises:
        InputError: it cannot be read, is not of the schema, or the home has two
            (``policy-ambiguous``).
        IntegrityError: its signature is wrong.
    """
    if path is not None:
        return read_policy(path, keys_folder(context))
    own = _own_policy(context)
    if own is None:
        return LoadedPolicy(
            policy=DEFAULT_POLICY, trust=PolicyTrust.BUILT_IN, reason="it is part of Edgewise"
        )
    loaded = read_policy(own, keys_folder(context))
    if loaded.trust is PolicyTrust.SIGNED or not _trusts_keys(context):
        return loaded
    return msgspec.structs.replace(
        loaded,
        policy=msgspec.structs.replace(loaded.policy, require_signature=True),
        reason=f"{loaded.reason}, and this home trusts keys: nothing leaves under it",
    )


def has_policy(context: Context) -> bool:
    """Return whether the home has a policy of its own.

    Raises:
        InputError: it cannot be told (``policy-unreadable``), or it has two (``policy-ambiguous``).
    """
    return _own_policy(context) is not None


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
        on_event: Called when records are lost, from another thread; without it these events wait
            in the router's recorder.

    Raises:
        InputError: the policy cannot be read.
        IntegrityError: its signature is wrong.
    """
    loaded = load_policy(context, policy)
    recorder = Recorder(context.home, loaded.policy, on_event=on_event)
    return _router(context, loaded, ledger, recorder)


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


def _own_policy(context: Context) -> Path | None:
    """Return the home's policy; a link that leads nowhere is one, which cannot be read."""
    root = context.home.root
    try:
        found = [root / name for name in _POLICY_NAMES if _lies_there(root / name)]
    except OSError as error:
        raise _unreadable(root, error) from error
    if len(found) > 1:
        raise InputError(
            "policy-ambiguous",
            f"the home {root} has two policies: {' and '.join(_POLICY_NAMES)}",
            context={"path": str(root)},
            hint="remove the one that is not meant",
        )
    return found[0] if found else None


def _lies_there(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _trusts_keys(context: Context) -> bool:
    folder = keys_folder(context)
    try:
        return any(one.suffix == ".pub" for one in folder.iterdir())
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unreadable(folder, error) from error


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(
        "policy-unreadable",
        f"whether {path} holds a policy or its keys cannot be told: {error.strerror or error}",
        context={"path": str(path)},
        hint="let this user read and search the home's folder",
    )


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
        IntegrityError: its signature is wrong, or the active bundle is damaged.
    """
    loaded = load_policy(context, policy)
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
    return Explained(
        decision=decision,
        trust=loaded.trust,
        trust_reason=loaded.reason,
        state=state,
        evidence=evidence,
        assumed=assume.told(),
    )
