"""``edgewise run``."""

from __future__ import annotations

from typing import Any

import click

from edgewise.cli.answer import exit_code, show_answer
from edgewise.cli.options import generation_options, json_option, read_prompt, request_from
from edgewise.cli.output import StepPrinter, print_json
from edgewise.cli.structure import structure_from, structure_options
from edgewise.core.request import Message

__all__ = ["run"]


@click.command()
@click.argument("prompt", required=False)
@generation_options
@structure_options
@json_option
def run(prompt: str | None, *, as_json: bool, **options: Any) -> int:
    """Answer PROMPT with the active model, or what is piped in.

    The answer goes to standard output as it comes; where it came from (route, deployment,
    tokens, timings) goes to standard error. With --json all of it is one object.
    """
    from edgewise.workflow.context import Context
    from edgewise.workflow.opening import open_session

    system, fingerprint = options.pop("system"), options.pop("fingerprint")
    messages = [Message(role="system", content=system)] if system else []
    messages.append(Message(role="user", content=read_prompt(prompt)))
    request = request_from(tuple(messages), options, structure_from(options))
    with open_session(Context(report=StepPrinter()), fingerprint) as session:
        if as_json:
            outcome = session.ask(request)
            print_json(outcome)
        else:
            outcome = show_answer(session, request)
    return int(exit_code(outcome, request))
