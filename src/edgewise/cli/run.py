"""``edgewise run``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgewise.cli.answer import exit_code, show_answer
from edgewise.cli.options import (
    contacts_option,
    generation_options,
    json_option,
    policy_option,
    read_prompt,
    request_from,
    require_active,
)
from edgewise.cli.output import StepPrinter, print_json
from edgewise.cli.routed import answer_by_route
from edgewise.cli.structure import structure_from, structure_options
from edgewise.core.request import Message

__all__ = ["run"]


@click.command()
@click.argument("prompt", required=False)
@generation_options
@structure_options
@policy_option
@contacts_option
@json_option
def run(
    prompt: str | None,
    *,
    policy: Path | None,
    contacts: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Answer PROMPT with the active model, or what is piped in.

    With a policy that lets something leave, the route decides who answers; where consent is
    missing, you are asked on a terminal, and told how to give it elsewhere. The answer goes to
    standard output as it comes; where it came from (route, deployment, tokens, timings) goes to
    standard error. With --json all of it is one object.
    """
    from edgewise.workflow.contacts import read_contacts
    from edgewise.workflow.context import Context
    from edgewise.workflow.opening import open_session
    from edgewise.workflow.policies import has_policy

    system, fingerprint = options.pop("system"), options.pop("fingerprint")
    messages = [Message(role="system", content=system)] if system else []
    messages.append(Message(role="user", content=read_prompt(prompt)))
    request = request_from(tuple(messages), options, structure_from(options))
    context = Context(report=StepPrinter())
    names = read_contacts(context, contacts)
    if policy is not None or has_policy(context):
        require_active(fingerprint)
        outcome = answer_by_route(context, policy, request, contacts=names, as_json=as_json)
        return int(exit_code(outcome, request))
    with open_session(context, fingerprint) as session:
        if as_json:
            outcome = session.ask(request)
            print_json(outcome)
        else:
            outcome = show_answer(session, request)
    return int(exit_code(outcome, request))
