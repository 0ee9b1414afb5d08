"""Ask a feature that routes: show the outcome and, on a terminal, the question of consent."""

from __future__ import annotations

import datetime as dt
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgewise.cli.answer import show_answer
from edgewise.cli.dates import moment_of, shown_date
from edgewise.cli.output import print_error, print_json, say
from edgewise.core.outcome import Declined, Outcome
from edgewise.core.request import Request
from edgewise.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgewise.route.consent import ConsentPrompt, ConsentScope
    from edgewise.workflow.context import Context
    from edgewise.workflow.hybrid import Hybrid

__all__ = ["answer_by_route", "ask_by_route", "grant_command"]

_DETAILS = "details"


def answer_by_route(
    context: Context,
    policy: Path | None,
    request: Request,
    *,
    contacts: tuple[str, ...],
    as_json: bool,
) -> Outcome:
    """Answer a request under a policy; ask for consent where that is all that is missing."""
    from edgewise.workflow.hybrid import open_hybrid

    with open_hybrid(context, policy, contacts=contacts) as hybrid:
        if not as_json:
            return ask_by_route(context, hybrid, request, policy=policy)
        outcome = hybrid.ask(request)
        question = hybrid.question(request) if isinstance(outcome, Declined) else None
        print_json(outcome if question is None else {"outcome": outcome, "question": question})
        return outcome


def ask_by_route(
    context: Context, hybrid: Hybrid, request: Request, *, policy: Path | None = None
) -> Outcome:
    """Show the answer to a request by its route; ask for consent where that is all it lacks.

    ``policy`` is the file that was named, for the command that is told to who cannot be asked.
    """
    asked = _Interruptible(hybrid)
    outcome = show_answer(asked, request)
    question = hybrid.question(request) if isinstance(outcome, Declined) else None
    if question is not None and _agreed(context, question, policy):
        outcome = show_answer(asked, request)
    return outcome


class _Interruptible:
    """A feature whose destination is no longer waited for once the user interrupts."""

    def __init__(self, hybrid: Hybrid) -> None:
        self._hybrid = hybrid

    def ask(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Outcome:
        if self._hybrid.client is None:
            return self._hybrid.ask(request, on_text=on_text)
        from edgewise.route.cloud import CancelToken

        token = CancelToken()
        try:
            return self._hybrid.ask(request, on_text=on_text, cancel=token)
        except KeyboardInterrupt:
            token.cancel()
            raise


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
    ledger = ConsentLedger(context.home)
    while True:
        try:
            until = _date_typed(question.until_at_most) if choice is Choice.UNTIL else None
            decision = record_choice(ledger, question, choice, origin=Origin.CLI, until=until)
            break
        except InputError as error:  # a slip of the keys is asked about again
            print_error(error, as_json=False)
    said = "refused; nothing was sent" if choice is Choice.NO else "agreed"
    said = f"{said} until {shown_date(until)}" if until is not None else said
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


def _date_typed(latest: dt.datetime | None) -> dt.datetime:
    """Return when a consent is to end, asked for; the latest moment on the latest day.

    Raises:
        InputError: it is no date (``consent-date-invalid``).
    """
    assert latest is not None  # the question has it where `until` is a choice
    last = latest.astimezone().date()
    typed = str(click.prompt("Until which day", default=last.isoformat(), err=True)).strip()
    until = moment_of(typed)
    return latest if typed == last.isoformat() else until
