"""``edgewise serve``."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from edgewise.cli.options import json_option, model_size
from edgewise.cli.output import StepPrinter, paint, say, show_quantity
from edgewise.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from edgewise.core.outcome import Event
    from edgewise.serve.server import Ready

__all__ = ["serve"]

_TOKEN_VARIABLE = "EDGEWISE_API_TOKEN"  # noqa: S105 - the variable's name
_TOKEN_FILE_MAX_BYTES = 4096


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 for any."
)
@click.option("--token-file", metavar="FILE", help="File with the token that clients must send.")
@click.option(
    "--allow-origin", multiple=True, metavar="ORIGIN", help="Web origin that may call; repeatable."
)
@click.option(
    "--queue",
    "queue_max",
    type=click.IntRange(1, 10_000),
    default=64,
    show_default=True,
    help="Most requests that may wait.",
)
@click.option(
    "--rate-limit",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Requests of one address: N at once, then N a minute; any number by default.",
)
@click.option("--max-body", default="4MiB", show_default=True, help="Longest request body.")
@click.option(
    "--prewarm/--no-prewarm", default=True, show_default=True, help="Load the model before ready."
)
@click.option(
    "--prefix-memory",
    default="64MiB",
    show_default=True,
    help="Memory for states of conversations and system messages; 0 keeps none.",
)
@click.option(
    "--prefix-disk",
    default="0",
    show_default=True,
    help="Disk for them, kept between runs. They hold the conversations.",
)
@click.option(
    "--release-after",
    type=click.IntRange(1, 31_536_000),
    metavar="SECONDS",
    help="Hand the model's memory back when nobody has asked for so long; never by default.",
)
@click.option("--fingerprint", metavar="PREFIX", help="Use this bundle, not the active one.")
@click.option(
    "--policy",
    metavar="FILE",
    help="Route requests by this policy; by the home's, where it has one, by default.",
)
@json_option
def serve(
    *,
    host: str,
    port: int,
    token_file: str | None,
    allow_origin: tuple[str, ...],
    queue_max: int,
    rate_limit: int | None,
    max_body: str,
    prewarm: bool,
    prefix_memory: str,
    prefix_disk: str,
    release_after: int | None,
    fingerprint: str | None,
    policy: str | None,
    as_json: bool,
) -> int:
    """Serve the active model to local programs, with an API that OpenAI's clients can call.

    Listens on this machine only. Beyond it a token is needed: in the variable EDGEWISE_API_TOKEN
    or in a file. Ctrl-C stops it when running answers have ended; a second one at once.
    """
    try:
        from edgewise.serve.elsewhere import Routing
        from edgewise.serve.server import ApiServer
    except ImportError as error:
        raise UnsupportedError(
            "serve-not-installed",
            f"the server needs a library that is not installed: {error.name}",
            hint="install it: pip install 'edgewise[serve]'",
        ) from error
    from edgewise.run.messages import PrefixSettings
    from edgewise.serve import Guard, Limits, valid_origin
    from edgewise.workflow.context import Context
    from edgewise.workflow.serving import open_served

    guard = Guard(
        host=host,
        token=_token(token_file),
        origins=frozenset(valid_origin(origin) for origin in allow_origin),
    )
    limits = Limits(
        queue_max=queue_max,
        requests_per_minute=rate_limit,
        queue_per_client_max=max(1, queue_max // 4),
        body_max_bytes=_body_size(max_body),
        release_after_s=release_after,
    )
    prefixes = PrefixSettings(
        memory_bytes=model_size(prefix_memory) or 0, disk_bytes=model_size(prefix_disk) or 0
    )
    context = Context(report=StepPrinter())
    with contextlib.ExitStack() as stack:
        sessions, feature, ledger = open_served(
            context,
            fingerprint,
            policy=None if policy is None else Path(policy),
            prefixes=prefixes,
            on_event=_say_event,
        )
        for session in sessions:
            stack.enter_context(session)
        routing = None if feature is None else Routing(feature=feature, ledger=ledger)
        server = ApiServer(
            sessions, guard=guard, port=port, limits=limits, routing=routing, log=say
        )
        show = _show_json if as_json else functools.partial(_show, with_token=bool(guard.token))
        policy_told = None if feature is None else feature.router.standing()
        server.run(
            prewarm=prewarm,
            on_ready=lambda ready: show(dataclasses.replace(ready, policy=policy_told)),
        )
    return 0


def _body_size(text: str) -> int:
    size = model_size(text)
    if not size:
        raise InputError(
            "size-invalid",
            "no request has a body of 0 bytes",
            hint="write --max-body like 4MiB or 64KiB",
        )
    return size


def _say_event(event: Event) -> None:
    say(f"{event.code}: {event.message}")


def _token(token_file: str | None) -> str | None:
    if token_file is None:
        return os.environ.get(_TOKEN_VARIABLE) or None
    try:
        with Path(token_file).open("rb") as file:
            text = file.read(_TOKEN_FILE_MAX_BYTES + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise _unreadable(token_file, str(why)) from error
    if not text or len(text) > _TOKEN_FILE_MAX_BYTES or len(text.split()) != 1:
        raise _unreadable(token_file, "it does not hold one token")
    return text


def _unreadable(token_file: str, why: str) -> InputError:
    return InputError(
        "token-file-unusable",
        f"the token file cannot be used: {why}",
        context={"path": token_file},
        hint="put the token into it, on one line",
    )


def _show_json(ready: Ready) -> None:
    print(msgspec.json.encode(ready).decode(), flush=True)


def _show(ready: Ready, *, with_token: bool) -> None:
    print(ready.url, flush=True)
    say(f"model       {ready.model}")
    say(f"fingerprint {ready.fingerprint}")
    if ready.policy is not None:
        say(f"policy      {ready.policy.text}")
    if ready.prewarm_ms is not None and ready.load_ms is not None:
        loaded = show_quantity(ready.load_ms, "ms")
        say(f"prewarmed in {ready.prewarm_ms:.0f} ms, of which loading {loaded}")
    token = ' -H "Authorization: Bearer $EDGEWISE_API_TOKEN"' if with_token else ""
    say(paint(_curl(ready, token), "dim"))


def _curl(ready: Ready, token: str) -> str:
    body = f'{{"model": "{ready.model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return (
        f"curl {ready.url}/v1/chat/completions{token} "
        f"-H 'Content-Type: application/json' -d '{body}'"
    )
