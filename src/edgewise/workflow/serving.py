"""What a server serves: the sessions of a deployment under a policy, or a browser's page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.outcome import Event
from edgewise.errors import UnsupportedError
from edgewise.route.consent import ConsentLedger
from edgewise.run.messages import PrefixSettings
from edgewise.run.session import Session
from edgewise.runtimes import registry
from edgewise.workflow.artifacts import find_built, label, subject
from edgewise.workflow.context import Context, Step
from edgewise.workflow.opening import open_sessions
from edgewise.workflow.policies import has_policy
from edgewise.workflow.routing import StateReader, noting, open_router

if TYPE_CHECKING:
    from edgewise.runtimes.browser.server import LoopbackServer
    from edgewise.workflow.hybrid import Hybrid

__all__ = ["open_served", "serve_artifact"]


def open_served(
    context: Context,
    fingerprint: str | None = None,
    *,
    policy: Path | None = None,
    prefixes: PrefixSettings | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> tuple[list[Session], Hybrid | None, ConsentLedger]:
    """Return the sessions of a server and, under a policy, the feature that routes its requests.

    The feature is ``None`` where no policy is given and the home has none. It asks destinations
    and answers nothing itself; the sessions do, and are to be closed.

    Raises:
        InputError: the policy cannot be read, nothing is active, or there is no such bundle.
        IntegrityError: the policy's signature is wrong, or the bundle's manifest is damaged.
        UnsupportedError: the policy lets something leave, and the extras ``cloud`` and
            ``minimise`` are not installed.
    """
    ledger = ConsentLedger(context.home)
    if policy is None and not has_policy(context):
        sessions = open_sessions(context, fingerprint, prefixes=prefixes, on_event=on_event)
        return sessions, None, ledger
    from edgewise.workflow.hybrid import hybrid_over  # noqa: PLC0415 - loaded where it is needed

    router = open_router(context, policy, ledger=ledger, on_event=on_event or noting(context))
    state = StateReader(context)
    sessions = open_sessions(
        context,
        fingerprint,
        router=router,
        prefixes=prefixes,
        on_event=on_event,
        state=state,
        # The feature routes conversations; what is to be gone on from is routed here only.
        recorded=lambda request: request.prompt is not None,
    )
    return sessions, hybrid_over(context, router, sessions[0], state=state), ledger


def serve_artifact(
    context: Context, name: str, *, port: int = 0, threads: int | None = None
) -> LoopbackServer:
    """Return a running server whose page answers with a built artifact.

    Raises:
        InputError: nothing of that name has been built.
        UnsupportedError: its runtime does not run in a browser, or is not installed.
        IntegrityError: the artifact is damaged.
        ResourceError: the port is taken.
    """
    receipt = find_built(context, name)
    serve = getattr(registry.adapter(receipt.runtime), "serve", None)
    if serve is None:
        raise UnsupportedError(
            "runtime-not-in-browser",
            f"{receipt.runtime} does not run in a browser",
            hint="build it for wllama or webllm",
        )
    what = subject(context, receipt, context_length=2048, threads=threads)
    server: LoopbackServer = serve(what.artifact, what.run_config, port=port)
    context.report(Step(stage="serve", status="done", message=f"{label(receipt)}: {server.url}"))
    return server
