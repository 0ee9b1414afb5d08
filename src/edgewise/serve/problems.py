"""Errors in the API's own shape: an HTTP status, and ``{"error": {...}}`` as OpenAI writes it.

The error object's ``code`` is Edgewise's; its ``edgewise`` member holds what OpenAI's shape has no
place for: the hint, the context, the reasons of a declined request, and what had been written of
an answer that ended before its time.
"""

from __future__ import annotations

from typing import Any

import msgspec

from edgewise.core.outcome import Completed, Declined, Failed, FinishReason, Outcome, Provenance
from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    InputError,
    IntegrityError,
    RemoteError,
    ResourceError,
    UnsupportedError,
    error_from_dict,
)

__all__ = ["ErrorAbout", "ErrorBody", "ErrorReply", "ProblemError", "answered"]

# Where the type of an error does not say the status.
_STATUS = {
    "token-refused": 401,
    "declined-by-policy": 403,
    "host-refused": 403,
    "origin-refused": 403,
    "model-not-found": 404,
    "route-unknown": 404,
    "method-unsupported": 405,
    "body-timeout": 408,
    "body-too-large": 413,
    "content-type-unsupported": 415,
    "queue-full": 429,
    "http-headers-too-large": 431,
    "session-busy": 503,
    "engine-unavailable": 503,
    "deadline-exceeded": 504,
}
_STATUS_OF_TYPE: tuple[tuple[type[EdgewiseError], int], ...] = (
    (InputError, 400),
    (UnsupportedError, 400),
    (ResourceError, 503),
    (RemoteError, 502),
    (IntegrityError, 500),
    (AdapterError, 500),
)
_TYPE = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
# Rules of the router that speak of the device's state: they may allow the same request later.
_STATE_RULES = frozenset({"memory", "thermal", "battery"})
_DECLINED_RETRY_S = 30


class ErrorAbout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Edgewise knows about an error beyond OpenAI's shape."""

    type: str
    hint: str | None = None
    retryable: bool = False
    context: dict[str, Any] = {}
    reasons: tuple[str, ...] = ()
    route: str | None = None
    fingerprint: str | None = None
    partial_text: str | None = None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error as OpenAI's API writes it, with a member of ours."""

    message: str
    type: str
    param: str | None
    code: str
    edgewise: ErrorAbout


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is an error."""

    error: ErrorBody


class ProblemError(Exception):
    """An error that goes to the client.

    Attributes:
        error: The error.
        status: The HTTP status, where the answer has not begun.
        headers: Headers that belong to it.
    """

    def __init__(
        self,
        error: EdgewiseError,
        *,
        reasons: tuple[str, ...] = (),
        partial_text: str | None = None,
        provenance: Provenance | None = None,
    ) -> None:
        super().__init__(error.code)
        self.error = error
        self.status = _status(error)
        self._about = ErrorAbout(
            type=type(error).__name__,
            hint=error.hint,
            retryable=error.retryable,
            context=_plain(error.context),
            reasons=reasons,
            route=None if provenance is None else str(provenance.route.route),
            fingerprint=None if provenance is None else provenance.fingerprint,
            partial_text=partial_text or None,
        )

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Return the headers that belong to the status."""
        headers = []
        wait_s = self.error.context.get("retry_after_s")
        if wait_s is not None:
            headers.append(("retry-after", str(wait_s)))
        if self.status >= 500 and not self.error.retryable:
            headers.append(("x-should-retry", "false"))  # read by OpenAI's own clients
        if self.status == 401:
            headers.append(("www-authenticate", "Bearer"))
        if self.error.code == "method-unsupported":
            headers.append(("allow", self.error.context["allow"]))
        if self._about.route is not None and self._about.fingerprint is not None:
            headers.append(("x-edgewise-route", self._about.route))
            headers.append(("x-edgewise-fingerprint", self._about.fingerprint))
        return headers

    @property
    def reply(self) -> ErrorReply:
        """Return the body."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        return ErrorReply(
            error=ErrorBody(
                message=self.error.message,
                type=_TYPE.get(self.status, default),
                param=self.error.context.get("param") or self.error.context.get("field"),
                code=self.error.code,
                edgewise=self._about,
            )
        )


def answered(outcome: Outcome) -> Completed:
    """Return the outcome when it is an answer that came to its own end, whole or at its limit.

    Raises:
        ProblemError: it was declined, failed, or was ended from outside.
    """
    if isinstance(outcome, Declined):
        raise ProblemError(
            _declined(outcome), reasons=outcome.reasons, provenance=outcome.provenance
        )
    if isinstance(outcome, Failed):
        error = error_from_dict(outcome.error)
        raise ProblemError(error, partial_text=outcome.partial_text, provenance=outcome.provenance)
    if outcome.finish is FinishReason.DEADLINE:
        error = ResourceError(
            "deadline-exceeded",
            "the deadline passed before the answer was complete",
            hint="give it more time, or ask for fewer tokens",
            retryable=True,
        )
        raise ProblemError(error, partial_text=outcome.text, provenance=outcome.provenance)
    if outcome.finish is FinishReason.CANCELLED:
        error = ResourceError("answer-cancelled", "the answer was cancelled", retryable=True)
        raise ProblemError(error, partial_text=outcome.text, provenance=outcome.provenance)
    return outcome


def _declined(outcome: Declined) -> EdgewiseError:
    message = f"the request was declined: {'; '.join(outcome.reasons)}"
    denying = {rule.rule for rule in outcome.provenance.route.rules if rule.verdict == "denies"}
    if denying and denying <= _STATE_RULES:
        return ResourceError(
            "declined-by-state",
            message,
            context={"retry_after_s": _DECLINED_RETRY_S},
            hint="the device's state forbids it now; it may allow it later",
            retryable=True,
        )
    return UnsupportedError(
        "declined-by-policy", message, hint="the reasons say which rule forbids it"
    )


def _status(error: EdgewiseError) -> int:
    if error.code in _STATUS:
        return _STATUS[error.code]
    for kind, status in _STATUS_OF_TYPE:
        if isinstance(error, kind):
            return status
    return 500


def _plain(context: dict[str, Any]) -> dict[str, Any]:
    try:
        plain = msgspec.to_builtins(context, str_keys=True)
    except (TypeError, ValueError):
        return {}
    assert isinstance(plain, dict)
    return plain
