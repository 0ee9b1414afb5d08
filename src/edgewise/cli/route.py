"""``edgewise route``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgewise.cli.assuming import ASSUME_HELP, assumed_of
from edgewise.cli.options import TASK_HELP, json_option, read_prompt
from edgewise.cli.output import StepPrinter, paint, print_json, show
from edgewise.core.outcome import Route
from edgewise.core.request import DataClass, Message, Request
from edgewise.core.state import LinkState
from edgewise.errors import ExitCode

if TYPE_CHECKING:
    from edgewise.workflow.routing import Explained

__all__ = ["route"]

_SIGNS = {"allows": ("ok", "green"), "denies": ("no", "red"), "not-applicable": ("--", "dim")}


@click.command()
@click.argument("request", required=False)
@click.option("--explain", is_flag=True, help="Show every rule that was tried.")
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="Policy file. Default: policy.toml or policy.json in the home, else the built-in one.",
)
@click.option(
    "--data-class",
    default=str(DataClass.LOCAL_ONLY),
    show_default=True,
    help="Class of the data: public, personal, sensitive, local-only, or one of the policy's own.",
)
@click.option("--task", default="chat", show_default=True, help=TASK_HELP)
@click.option("--max-tokens", type=int, help="Tokens that would be asked for.")
@click.option("--deadline", type=float, metavar="SECONDS", help="Deadline of the answer.")
@click.option(
    "--link",
    type=click.Choice([str(state) for state in LinkState]),
    help="State of the network to assume. Default: whether an interface is up.",
)
@click.option("--assume", multiple=True, metavar="NAME=VALUE", help=ASSUME_HELP)
@json_option
def route(
    request: str | None,
    *,
    explain: bool,
    policy: Path | None,
    data_class: str,
    task: str,
    max_tokens: int | None,
    deadline: float | None,
    link: str | None,
    assume: tuple[str, ...],
    as_json: bool,
) -> int:
    """Say where REQUEST would run, and why; nothing is run and nothing leaves.

    REQUEST is the user's text, or what is piped in. Ends with exit code 10 when the request would
    be declined.
    """
    from edgewise.workflow.context import Context
    from edgewise.workflow.routing import explain_route

    asked = Request(
        messages=(Message(role="user", content=read_prompt(request)),),
        data_class=data_class,
        task=task,
        max_tokens=max_tokens,
        deadline_s=deadline,
    )
    found = explain_route(
        Context(report=StepPrinter()),
        asked,
        policy=policy,
        assume=assumed_of(assume, link),
    )
    if as_json:
        print_json(found)
    else:
        _show(found, explain=explain)
    return int(ExitCode.NEGATIVE if found.decision.route is Route.DECLINE else ExitCode.OK)


def _show(found: Explained, *, explain: bool) -> None:
    decision = found.decision
    where = f" → {decision.destination}" if decision.destination else ""
    show(f"{decision.route}{where}")
    for reason in decision.reasons:
        show(f"  {_line(reason)}")
    if decision.consent is not None and decision.route is Route.DECLINE:
        scope = decision.consent
        what = f"{scope.feature} may send {scope.data_class} data to {scope.destination}"
        show(f"  consent would be needed: {what} for {_line(scope.purpose)}")
    if not explain:
        return
    show()
    show(f"request: {_request(found)}")
    show(f"policy: {found.policy.why}")
    for name, value in found.assumed.items():
        show(f"assumed: {name} is {value}")
    width = max(len(rule.rule) for rule in decision.rules)
    for rule in decision.rules:
        sign, colour = _SIGNS[rule.verdict]
        show(f"{paint(sign, colour, stream=sys.stdout)} {rule.rule:{width}}  {_line(rule.reason)}")


def _request(found: Explained) -> str:
    task = f"task {found.decision.task}" if found.decision.task else "no known task"
    if found.treated_as is None:
        like = ", which the policy does not know"
    else:
        like = "" if found.treated_as == found.data_class else f", treated as {found.treated_as}"
    within = "no deadline" if found.deadline_s is None else f"deadline {found.deadline_s:g} s"
    return f"{task}, {found.data_class} data{like}, {within}"


def _line(text: str) -> str:
    """Return the words of a text, which a policy's file may have set over several lines."""
    return " ".join(text.split())
