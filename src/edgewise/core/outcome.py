"""What became of a request: outcome, provenance, timings, and the events on the way.

Invariants: an answer that is cut short is never ``completed`` with reason ``stop``; a declined
request has at least one reason; anything an implementation does that the caller did not ask for
(a wait, a fallback, a policy applied) is an :class:`Event`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from edgewise.core.quantity import Quantity
from edgewise.core.signals import Escalation, Signals
from edgewise.core.tools import ToolCall

__all__ = [
    "Completed",
    "ConsentNeeded",
    "Declined",
    "Event",
    "Failed",
    "FinishReason",
    "GuessSource",
    "Outcome",
    "Provenance",
    "Route",
    "RouteDecision",
    "RuleResult",
    "Speculation",
    "Timings",
    "TokenCounts",
    "TokenLogprob",
]


class Route(StrEnum):
    """Where a request runs."""

    LOCAL = "local"
    CLOUD = "cloud"
    DECLINE = "decline"


class RuleResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule the router tried. ``verdict`` is ``allows``, ``denies`` or ``not-applicable``."""

    rule: str
    verdict: str
    reason: str


class ConsentNeeded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody has to allow, or has allowed, for a request to leave: this and nothing else.

    Attributes:
        feature: The feature that asks.
        data_class: The class of the data that would leave.
        destination: Where it would go.
        purpose: Why, as the policy declares it.
    """

    feature: str
    data_class: str
    destination: str
    purpose: str


class RouteDecision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The route and every rule that led to it, in the order they were tried.

    Attributes:
        destination: Where it goes on the route ``cloud``; empty otherwise.
        consent: What somebody would have to allow for it to go there: the consent that is used
            on the route ``cloud``, the one that is missing on ``decline``, and on ``local`` where
            a destination would be wanted and consent is all that is missing.
        task: Task class that it was made for: the request's own, or the one that was found where
            the request left it open; empty where none was.
    """

    route: Route
    reasons: tuple[str, ...]
    rules: tuple[RuleResult, ...]
    policy_version: str
    destination: str = ""
    consent: ConsentNeeded | None = None
    task: str = ""


class FinishReason(StrEnum):
    """Why generation ended.

    ``STOP``: the model ended its turn or a stop text appeared. ``TOOL_CALLS``: it ended its turn
    by calling tools. ``LENGTH``: the token limit was reached and the answer is cut. ``DEADLINE``
    and ``CANCELLED``: ended from outside.
    """

    STOP = "stop"
    TOOL_CALLS = "tool-calls"
    LENGTH = "length"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happened on the way and that nobody should have to guess."""

    code: str
    message: str
    context: dict[str, Any] = {}


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens, counted as tokens. ``reused`` prompt tokens were already in the KV cache.

    A count is ``None`` where a runtime that answers by itself does not tell it; the outcome then
    has the event ``token-counts-unknown``.
    """

    prompt: int | None
    reused: int
    completion: int | None


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One token with its log-probability.

    Attributes:
        id: The token's id.
        data: Its bytes, which need not be whole characters.
        logprob: Natural logarithm of its probability by the model's own distribution at
            temperature 1, before any rule of sampling or structure; ``None`` for the first token
            of a prompt, which nothing precedes.
        top: The likeliest tokens at this place, likeliest first, as ``(id, bytes, logprob)``.
    """

    id: int
    data: bytes
    logprob: float | None
    top: tuple[tuple[int, bytes, float], ...] = ()


class GuessSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one way of guessing came to.

    Attributes:
        source: ``lookup``, in what was said before; ``draft``, by a draft model.
        guessed: Tokens that were guessed and verified.
        accepted: Those of them that stand in the answer.
        steps: Verifying passes.
        drafted: Tokens that a draft model thought of, also those not worth verifying.
        off: Why it guessed nothing, or no more; empty when it did to the end.
    """

    source: str
    guessed: int
    accepted: int
    steps: int
    drafted: int = 0
    off: str = ""


class Speculation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What guessing ahead came to.

    Attributes:
        method: How tokens were guessed: ``prompt-lookup``, or ``prompt-lookup+draft``.
        guessed: Tokens that were guessed and verified.
        accepted: Those of them that stand in the answer.
        steps: Verifying passes.
        off: Why there was no guessing any more, when it was given up; empty when it was not.
        sources: The same by where the guesses came from.
    """

    method: str
    guessed: int
    accepted: int
    steps: int
    off: str = ""
    sources: tuple[GuessSource, ...] = ()


class Timings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times of one answer, each measured.

    Attributes:
        queue_ms: From submission until the worker took the request.
        prefill_ms: Evaluating the prompt tokens that were not reused.
        ttft_ms: From submission until the first text reached the caller.
        decode_ms: All decode steps after the first token.
        total_ms: From submission to the end.
        decode_tok_s: Tokens after the first, per second of decode; unknown below two tokens.
    """

    queue_ms: Quantity
    prefill_ms: Quantity
    ttft_ms: Quantity
    decode_ms: Quantity
    total_ms: Quantity
    decode_tok_s: Quantity


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an answer came from and why."""

    route: RouteDecision
    fingerprint: str
    policy_version: str
    runtime: str
    device: str
    template: str
    seed: int | None = None


class Completed(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="outcome",
    tag="completed",
):
    """An answer, whole or cut: ``finish`` says which.

    Attributes:
        text: What the model said; without the tool calls it made.
        tool_calls: Calls it made, whole and valid; none when the answer was cut.
        logprobs: Its tokens, where they were asked for.
        prompt_logprobs: The prompt's tokens, where they were asked for.
        speculation: What guessing ahead came to, where it was done.
        signals: How sure the model was, where that was asked for.
        escalation: What a calibration makes of them, where the policy escalates the task.
    """

    text: str
    finish: FinishReason
    tokens: TokenCounts
    timings: Timings
    provenance: Provenance
    memory_peak_bytes: dict[str, Quantity] = {}
    events: tuple[Event, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    speculation: Speculation | None = None
    signals: Signals | None = None
    escalation: Escalation | None = None


class Declined(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="outcome",
    tag="declined",
):
    """No answer, by decision, before anything ran."""

    reasons: tuple[str, ...]
    provenance: Provenance
    shortfall_bytes: Quantity | None = None
    events: tuple[Event, ...] = ()


class Failed(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="outcome",
    tag="failed",
):
    """The attempt broke. ``partial_text`` is what had been shown before; it is not an answer."""

    error: dict[str, Any]
    partial_text: str
    provenance: Provenance
    events: tuple[Event, ...] = ()


Outcome: TypeAlias = Completed | Declined | Failed
