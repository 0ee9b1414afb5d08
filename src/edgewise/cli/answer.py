"""Ask a session and show the outcome: text as it comes, then a line about where it came from."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from edgewise.cli.output import paint, say
from edgewise.core import shown
from edgewise.core.outcome import Completed, Declined, Failed, FinishReason, Outcome
from edgewise.core.quantity import Quantity, Unknown
from edgewise.core.request import Request
from edgewise.core.units import mib
from edgewise.errors import ExitCode, error_from_dict

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["exit_code", "show_answer", "show_outcome"]


class Answers(Protocol):
    """A session, or a feature that routes."""

    def ask(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Outcome:
        """Answer a request."""
        ...


def show_answer(session: Answers, request: Request) -> Outcome:
    """Ask, with the text on standard output as it comes and the rest on standard error."""
    terminal = sys.stdout.isatty()

    def show(text: str) -> None:
        sys.stdout.write(shown.answer(text) if terminal else text)
        sys.stdout.flush()

    outcome = session.ask(request, on_text=show)
    if isinstance(outcome, Completed | Failed):
        sys.stdout.write("\n")
        sys.stdout.flush()
    show_outcome(outcome)
    return outcome


def show_outcome(outcome: Outcome) -> None:
    """Print where the answer came from, or why there is none."""
    provenance = outcome.provenance
    for event in outcome.events:
        say(f"{paint('note', 'yellow')}: {event.code}: {event.message}")
    if isinstance(outcome, Declined):
        say(f"{paint('declined', 'yellow')}: {'; '.join(outcome.reasons)}")
        return
    if isinstance(outcome, Failed):
        error = error_from_dict(outcome.error)
        say(f"{paint('failed', 'red')}: {error.code}: {error.message}")
        for line in error.context.get("native_log", [])[-3:]:
            say(f"  native: {line}")
        if error.hint:
            say(f"{paint('hint', 'yellow')}: {error.hint}")
        return
    tokens, timings = outcome.tokens, outcome.timings
    cut = {
        FinishReason.LENGTH: f"cut at the limit of {_count(tokens.completion)} tokens",
        FinishReason.DEADLINE: "cut at the deadline",
        FinishReason.CANCELLED: "cancelled",
    }.get(outcome.finish)
    if cut:
        say(paint(cut, "yellow"))
    reused = f" ({tokens.reused} reused)" if tokens.reused else ""
    peak = outcome.memory_peak_bytes.get("total", Unknown(reason="not read"))
    parts = [
        f"{provenance.route.route} by {provenance.policy_version}",
        provenance.runtime,
        f"deployment {provenance.fingerprint[:12]}" if provenance.fingerprint else "",
        f"{_count(tokens.prompt)} prompt{reused} + {_count(tokens.completion)} tokens",
        f"TTFT {_number(timings.ttft_ms, 'ms')}",
        _number(timings.decode_tok_s, "tok/s"),
        f"peak {mib(peak.number)}" if not isinstance(peak, Unknown) else "",
    ]
    if outcome.speculation is not None and outcome.speculation.guessed:
        guesses = outcome.speculation
        drafted = sum(one.guessed for one in guesses.sources if one.source == "draft")
        by = f", {drafted} by the draft model" if drafted else ""
        parts.append(f"{guesses.accepted} of {guesses.guessed} guesses right{by}")
    if provenance.seed is not None:
        parts.append(f"seed {provenance.seed}")
    say(paint(" | ".join(part for part in parts if part), "dim"))


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else str(tokens)


def exit_code(outcome: Outcome, request: Request | None = None) -> ExitCode:
    """Return the exit code that the outcome stands for.

    An answer that was to have a structure and was cut is no success: half a JSON text is none.
    """
    if isinstance(outcome, Declined):
        return ExitCode.NEGATIVE
    if isinstance(outcome, Failed):
        return error_from_dict(outcome.error).exit_code
    if outcome.finish is FinishReason.CANCELLED:
        return ExitCode.INTERRUPT
    structured = request is not None and request.structure is not None
    cut = outcome.finish is FinishReason.LENGTH and structured
    if cut or outcome.finish is FinishReason.DEADLINE:
        return ExitCode.RESOURCE
    return ExitCode.OK


def _number(quantity: Quantity, unit: str) -> str:
    if isinstance(quantity, Unknown):
        return "" if unit == "tok/s" else "unknown"
    return f"{quantity.number:,.0f} {unit}"
