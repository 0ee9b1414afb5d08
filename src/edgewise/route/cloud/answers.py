"""What comes back from a destination: an answer, or a failure that says what it means.

Neither shows text in its ``repr``: what is logged by accident tells nothing that was said.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from edgewise.core.outcome import Event, FinishReason
from edgewise.core.quantity import Quantity
from edgewise.core.tools import ToolCall
from edgewise.errors import EdgewiseError, error_from_dict

__all__ = ["CloudAnswer", "CloudFailure", "CloudFault", "CloudTimings", "CloudUsage"]


class CloudFault(StrEnum):
    """Why there is no answer.

    ``VALIDATION``: the server finds the request wrong. ``PERMISSION``: no key, or the server does
    not take it. ``MODEL_NOT_FOUND``: the server has no such model, or no chat API at this address.
    ``RATE_LIMIT``: too many requests. ``TIMEOUT``: silence, or the deadline. ``OUTAGE``: it cannot
    be reached, broke off before it answered, or says that it is in trouble. ``CANCELLED``: from
    outside. ``BROKEN_ANSWER``: what came is no whole, valid answer. ``CAPTIVE_PORTAL``: a web page
    or a redirect in place of an answer. ``TLS``: the server cannot show that it is the one.
    ``SPEND_LIMIT``: the day's limit leaves no room for the worst case. ``INTERNAL``: a bug here.
    """

    VALIDATION = "validation"
    PERMISSION = "permission"
    MODEL_NOT_FOUND = "model-not-found"
    RATE_LIMIT = "rate-limit"
    TIMEOUT = "timeout"
    OUTAGE = "outage"
    CANCELLED = "cancelled"
    BROKEN_ANSWER = "broken-answer"
    CAPTIVE_PORTAL = "captive-portal"
    TLS = "tls"
    SPEND_LIMIT = "spend-limit"
    INTERNAL = "internal"


class CloudUsage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an answer took.

    Attributes:
        prompt_tokens: As the server states it: declared, not measured here.
        completion_tokens: The same for the answer.
        cost: In units of the destination's currency; the stated tokens at the declared price, or
            the worst case where the server states none.
    """

    prompt_tokens: Quantity
    completion_tokens: Quantity
    cost: Quantity


class CloudTimings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times of one ask, measured here on the monotonic clock, milliseconds.

    Attributes:
        connect_ms: Of the last attempt: name, connection, proxy and TLS.
        ttft_ms: From the call until the first text.
        total_ms: From the call to the end, with waits and further attempts.
    """

    connect_ms: Quantity
    ttft_ms: Quantity
    total_ms: Quantity


class CloudAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole answer, or one cut at its token limit: ``finish`` says which.

    Attributes:
        destination: Name of the destination that answered.
        text: What the model said; without the tool calls it made.
        finish: ``stop``, ``length`` or ``tool-calls``.
        tool_calls: Whole calls of tools that were offered; their arguments are a JSON object.
            None where the answer was cut.
        usage: Tokens and cost.
        model: The model that the server says answered.
        request_id: The server's name for the request, where it gave a plain one.
        attempts: Times the request was sent, 1 or more.
        events: What happened on the way and nobody asked for.
        timings: How long it took.
    """

    destination: str
    text: str
    finish: FinishReason
    usage: CloudUsage
    model: str
    timings: CloudTimings
    tool_calls: tuple[ToolCall, ...] = ()
    request_id: str | None = None
    attempts: int = 1
    events: tuple[Event, ...] = ()

    def __repr__(self) -> str:
        return (
            f"CloudAnswer(destination={self.destination!r}, finish={self.finish.value!r}, "
            f"<{len(self.text)} characters, {len(self.tool_calls)} tool calls>)"
        )

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("destination", self.destination), ("finish", self.finish)]


class CloudFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No answer. It holds no word of the request, of a header or of what the server wrote.

    Attributes:
        destination: Name of the destination.
        fault: Which kind of failure.
        error: The same as an error: type, code, message, context, hint, retryable.
        may_have_acted: Whether the server can have got the request and done what it asks. False
            where nothing was sent, and where the server refused.
        attempts: Times a connection was tried, 0 or more.
        partial_text: What had arrived before it broke; it is not an answer.
        retry_after_s: How long the server asks to wait, seconds.
        status: The status that the server answered with.
        request_id: The server's name for the request, where it gave a plain one.
        usage: The cost that is counted for it; ``None`` where nothing is.
        events: What happened on the way.
        timings: How long it took.
    """

    destination: str
    fault: CloudFault
    error: dict[str, Any]
    may_have_acted: bool
    attempts: int
    timings: CloudTimings
    partial_text: str = ""
    retry_after_s: float | None = None
    status: int | None = None
    request_id: str | None = None
    usage: CloudUsage | None = None
    events: tuple[Event, ...] = ()

    @property
    def code(self) -> str:
        """Return the error's code."""
        return str(self.error["code"])

    @property
    def message(self) -> str:
        """Return the error's message."""
        return str(self.error["message"])

    @property
    def retryable(self) -> bool:
        """Return whether the same request may succeed later without any change.

        It says nothing about whether asking again is safe: see ``may_have_acted``.
        """
        return bool(self.error["retryable"])

    def as_error(self) -> EdgewiseError:
        """Return it as an exception, for a caller that has nothing else to give back."""
        return error_from_dict(self.error)

    def __repr__(self) -> str:
        return (
            f"CloudFailure(destination={self.destination!r}, fault={self.fault.value!r}, "
            f"code={self.code!r}, may_have_acted={self.may_have_acted}, "
            f"attempts={self.attempts}, <{len(self.partial_text)} characters>)"
        )

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("destination", self.destination), ("code", self.code)]
