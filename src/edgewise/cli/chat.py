"""``edgewise chat``."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli.answer import show_answer
from edgewise.cli.options import (
    contacts_option,
    generation_options,
    policy_option,
    request_from,
    require_active,
)
from edgewise.cli.output import StepPrinter, paint, print_error, say
from edgewise.core.outcome import Completed, Outcome
from edgewise.core.request import Message, Request
from edgewise.errors import EdgewiseError
from edgewise.run.session import Session

if TYPE_CHECKING:
    from edgewise.workflow.context import Context

__all__ = ["chat", "converse", "converse_by_policy"]

_HELP = "/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer"


@click.command()
@generation_options
@policy_option
@contacts_option
def chat(*, policy: Path | None, contacts: Path | None, **options: Any) -> int:
    """Talk with the active model.

    Under a policy each turn has a route of its own: it is answered here, by a destination once you
    agreed, or declined. Ctrl-C stops an answer and keeps the conversation; Ctrl-D leaves.
    """
    from edgewise.workflow.contacts import read_contacts
    from edgewise.workflow.context import Context
    from edgewise.workflow.opening import open_session
    from edgewise.workflow.policies import has_policy

    system, fingerprint = options.pop("system"), options.pop("fingerprint")
    context = Context(report=StepPrinter())
    names = read_contacts(context, contacts)
    if policy is not None or has_policy(context):
        require_active(fingerprint)
        converse_by_policy(context, policy, options, contacts=names, system=system)
        return 0
    with open_session(context, fingerprint) as session:
        converse(session, options, system=system)
    return 0


def converse(session: Session, options: dict[str, Any], *, system: str | None = None) -> None:
    """Read prompts and answer them on this device until the input ends."""
    about = f"{session.bundle.model} ({session.bundle.fingerprint[:12]})"
    _converse(functools.partial(show_answer, session), about, options, system)


def converse_by_policy(
    context: Context,
    policy: Path | None,
    options: dict[str, Any],
    *,
    contacts: tuple[str, ...] | None = None,
    system: str | None = None,
) -> None:
    """Read prompts and answer each by its route until the input ends; see :func:`open_hybrid`."""
    from edgewise.cli.routed import ask_by_route
    from edgewise.workflow.hybrid import open_hybrid

    with open_hybrid(context, policy, contacts=contacts) as hybrid:
        here = hybrid.deployment or "no model is active here"
        about = f"{here}, by the policy {hybrid.router.standing().text}"
        answer = functools.partial(ask_by_route, context, hybrid, policy=policy)
        _converse(answer, about, options, system)


def _converse(
    answer: Callable[[Request], Outcome], about: str, options: dict[str, Any], system: str | None
) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() line editing and history

    start = [Message(role="system", content=system)] if system else []
    messages = list(start)
    say(paint(f"{about}. {_HELP}", "dim"))
    while True:
        line = _read()
        if line is None or line in {"/quit", "/exit"}:
            return
        if line == "/reset":
            messages = list(start)
            say(paint("the conversation is forgotten", "dim"))
        elif line == "/help":
            say(_HELP)
        elif line.startswith("/"):
            say(f"there is no command {line.split()[0]!r}; {_HELP}")
        elif line:
            messages = _turn(answer, options, messages, line)


def _read() -> str | None:
    sys.stdout.flush()
    while True:
        try:
            return input(paint("> ", "bold", stream=sys.stdout)).strip()
        except (EOFError, RuntimeError):  # RuntimeError: there is no standard input at all
            say()
            return None
        except KeyboardInterrupt:
            say()
        except UnicodeDecodeError:
            say("that line is not valid UTF-8; it was ignored")


def _turn(
    answer: Callable[[Request], Outcome],
    options: dict[str, Any],
    messages: list[Message],
    line: str,
) -> list[Message]:
    try:
        asked = [*messages, Message(role="user", content=line)]
        outcome = answer(request_from(tuple(asked), options))
    except EdgewiseError as error:
        print_error(error, as_json=False)
        if error.code == "prompt-too-long":
            say("the conversation no longer fits the context: /reset forgets it")
        return messages
    except (KeyboardInterrupt, click.Abort):  # a destination's answer, or the question before it
        say(paint("cancelled", "yellow"))
        return messages
    if isinstance(outcome, Completed) and outcome.text:
        return [*asked, Message(role="assistant", content=outcome.text)]
    return messages
