"""Open a session on an activated bundle, with the router and this device's state bound in."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from edgewise.core.bundle import Bundle
from edgewise.core.outcome import Event, RouteDecision
from edgewise.core.request import Request
from edgewise.core.state import DeviceState
from edgewise.device import read_state
from edgewise.route import DEFAULT_POLICY, Policy, RouteEvidence, decide
from edgewise.route.records import Recorder
from edgewise.route.service import Router
from edgewise.run.messages import PrefixSettings
from edgewise.run.model_process import ModelProcess
from edgewise.run.session import Session
from edgewise.workflow.context import Context
from edgewise.workflow.pace import Pace
from edgewise.workflow.routing import EvidenceReader, noting

__all__ = ["open_session", "open_sessions"]


def open_session(
    context: Context,
    fingerprint: str | None = None,
    *,
    policy: Policy = DEFAULT_POLICY,
    router: Router | None = None,
    prefixes: PrefixSettings | None = None,
    on_event: Callable[[Event], None] | None = None,
    recorded: Callable[[Request], bool] = lambda _request: True,
) -> Session:
    """Return a session on the active bundle, or on the one whose fingerprint is given.

    With a ``router``, it answers what that routes here and declines the rest; without, a policy
    that lets nothing leave decides. It answers one request at a time, also where the bundle is
    set up for several at once.
    ``prefixes`` says how many bytes of KV cache states are kept; none by default. ``on_event``
    is called with what is done because memory ran short, from another thread. ``recorded`` says
    which requests are routed by nobody else, so that their decisions may be recorded here.

    Nothing is loaded yet; the first request does that, after it has been routed.

    Raises:
        InputError: nothing is active, or there is no such bundle.
        IntegrityError: the bundle's manifest is damaged.
    """
    chosen = policy if router is None else router
    return _sessions(context, fingerprint, chosen, prefixes, on_event, recorded, most=1)[0]


def open_sessions(
    context: Context,
    fingerprint: str | None = None,
    *,
    policy: Policy = DEFAULT_POLICY,
    router: Router | None = None,
    prefixes: PrefixSettings | None = None,
    on_event: Callable[[Event], None] | None = None,
    state: Callable[[], DeviceState] | None = None,
    recorded: Callable[[Request], bool] = lambda _request: True,
) -> list[Session]:
    """Return as many sessions as the bundle answers requests at once; they share one worker.

    See :func:`open_session` for ``router``, ``prefixes``, ``on_event`` and ``recorded``. ``state``
    reads the device's state; by default it is read anew each time.

    Raises:
        InputError: nothing is active, or there is no such bundle.
        IntegrityError: the bundle's manifest is damaged.
    """
    chosen = policy if router is None else router
    return _sessions(
        context, fingerprint, chosen, prefixes, on_event, recorded, most=None, state=state
    )


def _sessions(
    context: Context,
    fingerprint: str | None,
    policy: Policy | Router,
    prefixes: PrefixSettings | None,
    on_event: Callable[[Event], None] | None,
    recorded: Callable[[Request], bool],
    *,
    most: int | None,
    state: Callable[[], DeviceState] | None = None,
) -> list[Session]:
    bundle = context.bundles.active() if fingerprint is None else context.bundles.get(fingerprint)
    qualified = _qualified(context, bundle)
    artifact = context.bundles.artifact(bundle)
    located = None if prefixes is None else _located(context, bundle, prefixes)
    known = EvidenceReader(context, bundle, policy.loaded) if isinstance(policy, Router) else None
    pace = Pace(context, bundle)
    process = ModelProcess(bundle, artifact, located, on_event=on_event)
    recorder = None
    if not isinstance(policy, Router):
        recorder = Recorder(context.home, policy, on_event=on_event or noting(context))

    def route(request: Request, state: DeviceState, *, resident: bool) -> RouteDecision:
        evidence = RouteEvidence(
            fingerprint=bundle.fingerprint,
            qualified=qualified,
            memory=bundle.memory,
            resident=resident,
            context_length=bundle.deployment.compute.run_config.context_length,
        )
        if isinstance(policy, Router):
            kinds = () if known is None else known(resident=resident).kinds
            drawn = recorded(request) and policy.drawn(request)
            known_now = msgspec.structs.replace(evidence, kinds=kinds, expected_s=pace(request))
            return policy.decide_lazily(request, state, known_now, record=drawn)
        decision = decide(request, request.data_class, state, policy, evidence)
        if recorder is not None and recorded(request) and recorder.drawn(request.data_class):
            recorder.keep(request, state, evidence, decision)
        return decision

    return [
        Session(
            bundle,
            artifact,
            device=context.device.digest,
            decide=route,
            read_state=state or (lambda: read_state(context.home.root)),
            prefixes=located,
            process=process,
        )
        for _ in range(most or bundle.deployment.compute.run_config.parallel)
    ]


def _located(context: Context, bundle: Bundle, prefixes: PrefixSettings) -> PrefixSettings:
    return msgspec.structs.replace(
        prefixes, home=str(context.home.root), fingerprint=bundle.fingerprint
    )


def _qualified(context: Context, bundle: Bundle) -> bool:
    """Whether the newest smoke evidence of this fingerprint on this device passed."""
    found = context.evidence.latest(
        kind="smoke", subject=bundle.fingerprint, device=context.device.digest
    )
    return found is not None and bool(found[1].figures.get("passed"))
