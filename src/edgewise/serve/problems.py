"""Errors in the API's own shape: an HTTP status, and ``{"error": {...}}`` as OpenAI writes it.

The error object's ``code`` is Edgewise's; its ``edgewise`` member holds what OpenAI's shape has no
place for: the hint, the context, the reasons of a declined request, and what had been written of
an answer that ended before its time.
"""

from __future__ import annotations

import math
from typing import Any, Literal

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
from edgewise.serve.consent_bodies import ConsentQuestion

__all__ = ["CONSENT_REQUIRED", "ErrorAbout", "ErrorBody", "ErrorReply", "ProblemError", "answered"]

CONSENT_REQUIRED = "consent-required"
# Where the type of an error does not say the status.
_STATUS = {
    "token-refused": 401,
    "declined-by-policy": 403,
    CONSENT_REQUIRED: 403,
    "consent-form-refused": 403,
    "page-refused": 403,
    "host-refused": 403,
    "origin-refused": 403,
    "model-not-found": 404,
    "route-unknown": 404,
    "consent-not-found": 404,
    "consent-question-unknown": 404,
    "escalation-unknown": 404,
    "method-unsupported": 405,
    "body-timeout": 408,
    "consent-question-busy": 409,
    "consent-question-closed": 410,
    "escalation-expired": 410,
    "body-too-large": 413,
    "content-type-unsupported": 415,
    "cloud-rate-limited": 429,
    "queue-full": 429,
    "rate-limited": 429,
    "http-headers-too-large": 431,
    "session-busy": 503,
    "engine-unavailable": 503,
    "cloud-deadline": 504,
    "cloud-silent": 504,
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
_STATE_RULES = frozenset({"memory", "memory-pressure", "thermal", "battery", "storage"})
# Those that speak of destinations (as do all with an ``@``) never forbid an answer here.
_ELSEWHERE_RULES = frozenset({"cloud-permitted"})
_DECLINED_RETRY_S = 30


class ErrorAbout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Edgewise knows about an error beyond OpenAI's shape.

    ``outcome`` says what became of a request that was routed: an application that finds
    ``consent_required`` there puts the ``question`` to the user.
    """

    type: str
    outcome: Literal["consent_required", "declined", "failed"] | None = None
    hint: str | None = None
    retryable: bool = False
    context: dict[str, Any] = {}
    reasons: tuple[str, ...] = ()
    route: str | None = None
    fingerprint: str | None = None
    destination: str | None = None
    partial_text: str | None = None
    question: ConsentQuestion | None = None


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
        outcome: Literal["consent_required", "declined", "failed"] | None = None,
        question: ConsentQuestion | None = None,
    ) -> None:
        super().__init__(error.code)
        self.error = error
        self.status = _status(error)
        self._about = ErrorAbout(
            type=type(error).__name__,
            outcome=outcome,
            hint=error.hint,
            retryable=error.retryable,
            context=_plain(error.context),
            reasons=reasons,
            route=None if provenance is None else str(provenance.route.route),
            fingerprint=None if provenance is None else provenance.fingerprint,
            destination=(None if provenance is None else provenance.route.destination) or None,
            partial_text=partial_text or None,
            question=question,
        )

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Return the headers that belong to the status."""
        headers = []
        wait_s = self.error.context.get("retry_after_s")
        if wait_s is not None:
            headers.append(("retry-after", str(math.ceil(wait_s))))
        if self.status >= 500 and not self.error.retryable:
            headers.append(("x-should-retry", "false"))  # read by OpenAI's own clients
        if self.status == 401:
            headers.append(("www-authenticate", "Bearer"))
        if self.error.code == "method-unsupported":
            headers.append(("allow", self.error.context["allow"]))
        if self._about.route is not None and self._about.fingerprint is not None:
            headers.append(("x-edgewise-route", self._about.route))
            headers.append(("x-edgewise-fingerprint", self._about.fingerprint))
        if self._about.destination is not None:
            headers.append(("x-edgewise-destination", self._about.destination))
        return headers

    @property
    def place(self) -> str:
        """Return where the request went: ``local``, ``cloud:NAME`` or ``decline``; if known."""
        if self._about.destination is not None:
            return f"cloud:{self._about.destination}"
        return self._about.route or ""

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
        asked = next((one for one in outcome.events if one.code == CONSENT_REQUIRED), None)
        raise ProblemError(
            _declined(outcome, asking=asked is not None),
            reasons=outcome.reasons,
            provenance=outcome.provenance,
            outcome="declined" if asked is None else "consent_required",
            question=None if asked is None else msgspec.convert(asked.context, ConsentQuestion),
        )
    if isinstance(outcome, Failed):
        raise ProblemError(
            error_from_dict(outcome.error),
            partial_text=outcome.partial_text,
            provenance=outcome.provenance,
            outcome="failed",
        )
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


def _declined(outcome: Declined, *, asking: bool) -> EdgewiseError:
    if asking:
        needed = outcome.provenance.route.consent
        assert needed is not None
        rules = outcome.provenance.route.rules
        doubted = any(rule.rule == "doubt" and rule.verdict == "denies" for rule in rules)
        here = (
            "this device's answer is not verified"
            if doubted
            else "this device does not answer this request"
        )
        return UnsupportedError(
            "consent-required",
            f"{here}, and the user has not agreed to send it to {needed.destination}",
            hint="put the question to the user, and send the answer to /edgewise/v1/consent/ID or "
            "open its page; then ask again",
        )
    message = f"the request was declined: {'; '.join(outcome.reasons)}"
    denying = {rule.rule for rule in outcome.provenance.route.rules if rule.verdict == "denies"}
    denying = {rule for rule in denying - _ELSEWHERE_RULES if "@" not in rule}
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
