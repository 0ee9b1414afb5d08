"""``edgewise chat``."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli.answer import show_answer
from edgewise.cli.options import generation_options, request_from
from edgewise.cli.output import StepPrinter, paint, print_error, say
from edgewise.core.outcome import Completed
from edgewise.core.request import Message
from edgewise.errors import EdgewiseError
from edgewise.run.session import Session

if TYPE_CHECKING:
    from edgewise.workflow.context import Context

__all__ = ["chat", "converse"]

_HELP = "/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer"


@click.command()
@generation_options
def chat(**options: Any) -> int:
    """Talk with the active model.

    Ctrl-C stops an answer and keeps the conversation; Ctrl-D leaves.
    """
    from edgewise.workflow.context import Context
    from edgewise.workflow.opening import open_session

    system, fingerprint = options.pop("system"), options.pop("fingerprint")
    context = Context(report=StepPrinter())
    with open_session(context, fingerprint) as session:
        _say_policy(context)
        converse(session, options, system=system)
    return 0


def _say_policy(context: Context) -> None:
    """Say that the home's policy, where there is one, is not asked: a chat stays here anyway."""
    from edgewise.route.policy_standing import standing
    from edgewise.workflow.policies import has_policy, load_policy

    try:
        if not has_policy(context):
            return
        told = standing(load_policy(context, advance=False), dt.datetime.now(dt.UTC)).text
    except EdgewiseError as error:
        told = f"{error.code}: {error.message}"
    say(f"a chat stays on this device and does not ask the home's policy ({told})")


def converse(session: Session, options: dict[str, Any], *, system: str | None = None) -> None:
    """Read prompts and answer them until the input ends."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() line editing and history

    start = [Message(role="system", content=system)] if system else []
    messages = list(start)
    say(paint(f"{session.bundle.model} ({session.bundle.fingerprint[:12]}). {_HELP}", "dim"))
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
            messages = _turn(session, options, messages, line)


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
    session: Session, options: dict[str, Any], messages: list[Message], line: str
) -> list[Message]:
    try:
        asked = [*messages, Message(role="user", content=line)]
        outcome = show_answer(session, request_from(tuple(asked), options))
    except EdgewiseError as error:
        print_error(error, as_json=False)
        if error.code == "prompt-too-long":
            say("the conversation no longer fits the context: /reset forgets it")
        return messages
    if isinstance(outcome, Completed) and outcome.text:
        return [*asked, Message(role="assistant", content=outcome.text)]
    return messages
