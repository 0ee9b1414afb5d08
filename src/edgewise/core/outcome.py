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
from edgewise.core.tools import ToolCall

__all__ = [
    "Completed",
    "Declined",
    "Event",
    "Failed",
    "FinishReason",
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


class RouteDecision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The route and every rule that led to it, in the order they were tried."""

    route: Route
    reasons: tuple[str, ...]
    rules: tuple[RuleResult, ...]
    policy_version: str


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


class Speculation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What guessing ahead came to.

    Attributes:
        method: How tokens were guessed, e.g. ``prompt-lookup``.
        guessed: Tokens that were guessed and verified.
        accepted: Those of them that stand in the answer.
        steps: Verifying passes.
        off: Why there was no guessing any more, when it was given up; empty when it was not.
    """

    method: str
    guessed: int
    accepted: int
    steps: int
    off: str = ""


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
