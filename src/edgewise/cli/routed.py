"""Ask a feature that routes: show the outcome and, on a terminal, the question of consent."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgewise.cli.answer import show_answer
from edgewise.cli.output import print_json, say
from edgewise.core.outcome import Declined, Outcome
from edgewise.core.request import Request

if TYPE_CHECKING:
    from edgewise.route.consent import ConsentPrompt, ConsentScope
    from edgewise.workflow.context import Context

__all__ = ["answer_by_route", "grant_command"]

_DETAILS = "details"


def answer_by_route(
    context: Context, policy: Path | None, request: Request, *, as_json: bool
) -> Outcome:
    """Answer a request under a policy; ask for consent where that is all that is missing."""
    from edgewise.workflow.hybrid import open_hybrid

    with open_hybrid(context, policy) as hybrid:
        outcome = hybrid.ask(request) if as_json else show_answer(hybrid, request)
        question = hybrid.question(request) if isinstance(outcome, Declined) else None
        if question is not None and not as_json and _agreed(context, question, policy):
            outcome, question = show_answer(hybrid, request), None
        if as_json:
            print_json(outcome if question is None else {"outcome": outcome, "question": question})
        return outcome


def _agreed(context: Context, question: ConsentPrompt, policy: Path | None) -> bool:
    """Show the question; record an answer where somebody can give one."""
    from edgewise.route.consent import ConsentLedger, Origin, record_choice, render
    from edgewise.route.consent.prompt import Choice

    width = shutil.get_terminal_size().columns
    asking = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    say()
    say(render(question, width=width, details=not asking))
    if not asking:
        say(f"to agree for one use: {grant_command(question.scope, policy)}")
        return False
    answers = click.Choice([*(str(one) for one in question.choices), _DETAILS])
    while (said := click.prompt("Your answer", type=answers, err=True)) == _DETAILS:
        say(render(question, width=width))
    choice = Choice(said)
    until = question.until_at_most if choice is Choice.UNTIL else None
    ledger = ConsentLedger(context.home)
    decision = record_choice(ledger, question, choice, origin=Origin.CLI, until=until)
    said = "refused; nothing was sent" if choice is Choice.NO else "agreed"
    say(f"{said}; take it back with: edgewise consent revoke {decision}")
    return choice is not Choice.NO


def grant_command(scope: ConsentScope, policy: Path | None) -> str:
    """Return the command that agrees to a scope, for one use."""
    parts = {
        "--feature": scope.feature,
        "--data-class": scope.data_class,
        "--destination": scope.destination,
        "--purpose": scope.purpose,
        **({} if policy is None else {"--policy": str(policy)}),
    }
    told = " ".join(f"{option} {shlex.quote(text)}" for option, text in parts.items())
    return f"edgewise consent grant {told}"
