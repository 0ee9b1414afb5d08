"""``edgewise run``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgewise.cli.answer import exit_code, show_answer
from edgewise.cli.options import generation_options, json_option, read_prompt, request_from
from edgewise.cli.output import StepPrinter, print_json
from edgewise.cli.routed import answer_by_route
from edgewise.cli.structure import structure_from, structure_options
from edgewise.core.request import Message
from edgewise.errors import InputError

__all__ = ["run"]


@click.command()
@click.argument("prompt", required=False)
@generation_options
@structure_options
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="Policy that routes it. Default: the home's, else the one that keeps everything here.",
)
@json_option
def run(prompt: str | None, *, policy: Path | None, as_json: bool, **options: Any) -> int:
    """Answer PROMPT with the active model, or what is piped in.

    With a policy that lets something leave, the route decides who answers; where consent is
    missing, you are asked on a terminal, and told how to give it elsewhere. The answer goes to
    standard output as it comes; where it came from (route, deployment, tokens, timings) goes to
    standard error. With --json all of it is one object.
    """
    from edgewise.workflow.context import Context
    from edgewise.workflow.opening import open_session
    from edgewise.workflow.policies import has_policy

    system, fingerprint = options.pop("system"), options.pop("fingerprint")
    messages = [Message(role="system", content=system)] if system else []
    messages.append(Message(role="user", content=read_prompt(prompt)))
    request = request_from(tuple(messages), options, structure_from(options))
    context = Context(report=StepPrinter())
    if policy is not None or has_policy(context):
        _require_active(fingerprint)
        outcome = answer_by_route(context, policy, request, as_json=as_json)
        return int(exit_code(outcome, request))
    with open_session(context, fingerprint) as session:
        if as_json:
            outcome = session.ask(request)
            print_json(outcome)
        else:
            outcome = show_answer(session, request)
    return int(exit_code(outcome, request))


def _require_active(fingerprint: str | None) -> None:
    if fingerprint is not None:
        raise InputError(
            "request-contradiction",
            "a policy routes to the active deployment, and --fingerprint names another",
            hint="leave one of the two out",
        )
