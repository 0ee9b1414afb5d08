"""Open a session on an activated bundle, with the router and this device's state bound in."""

from __future__ import annotations

import msgspec

from edgewise.core.bundle import Bundle
from edgewise.core.outcome import RouteDecision
from edgewise.core.request import Request
from edgewise.core.state import DeviceState
from edgewise.device import read_state
from edgewise.route import DEFAULT_POLICY, Policy, RouteEvidence, decide
from edgewise.run.messages import PrefixSettings
from edgewise.run.session import Session
from edgewise.workflow.context import Context

__all__ = ["open_session"]


def open_session(
    context: Context,
    fingerprint: str | None = None,
    *,
    policy: Policy = DEFAULT_POLICY,
    prefixes: PrefixSettings | None = None,
) -> Session:
    """Return a session on the active bundle, or on the one whose fingerprint is given.

    ``prefixes`` says how many bytes of KV cache states are kept; none by default.

    Nothing is loaded yet; the first request does that, after it has been routed.

    Raises:
        InputError: nothing is active, or there is no such bundle.
        IntegrityError: the bundle's manifest is damaged.
    """
    bundle = context.bundles.active() if fingerprint is None else context.bundles.get(fingerprint)
    qualified = _qualified(context, bundle)

    def route(request: Request, state: DeviceState, *, resident: bool) -> RouteDecision:
        evidence = RouteEvidence(
            fingerprint=bundle.fingerprint,
            qualified=qualified,
            memory=bundle.memory,
            resident=resident,
        )
        return decide(request, request.data_class, state, policy, evidence)

    return Session(
        bundle,
        context.bundles.artifact(bundle),
        device=context.device.digest,
        decide=route,
        read_state=lambda: read_state(context.home.root),
        prefixes=None if prefixes is None else _located(context, bundle, prefixes),
    )


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
