"""Serve a browser runtime's page for a person, on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgewise.errors import UnsupportedError
from edgewise.runtimes import registry
from edgewise.workflow.artifacts import find_built, label, subject
from edgewise.workflow.context import Context, Step

if TYPE_CHECKING:
    from edgewise.runtimes.browser.server import LoopbackServer

__all__ = ["serve_artifact"]


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
