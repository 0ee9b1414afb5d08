"""Each thing that can go wrong at a destination, as one typed fault.

Nothing of what the server wrote is quoted: it can repeat the request. Of an error's own ``code``
only words that are known here are told.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

from edgewise.errors import (
    EdgewiseError,
    InputError,
    RemoteError,
    ResourceError,
    UnsupportedError,
)
from edgewise.route.cloud.answers import CloudFault

__all__ = [
    "Fault",
    "FaultError",
    "broken",
    "cancelled",
    "cut",
    "deadline",
    "filtered",
    "here",
    "internal",
    "nameless",
    "over_limit",
    "proxy_refused",
    "proxy_unsupported",
    "redirected",
    "server_word",
    "silence",
    "socks_refused",
    "status_fault",
    "tls_refused",
    "unreachable",
    "web_page",
]

# What servers say in ``error.code`` or ``error.type`` and what may therefore be repeated.
_KNOWN_WORDS = frozenset(
    {
        "billing_hard_limit_reached",
        "content_filter",
        "context_length_exceeded",
        "insufficient_quota",
        "invalid_api_key",
        "invalid_prompt",
        "invalid_request_error",
        "model_not_found",
        "rate_limit_exceeded",
        "server_error",
        "tokens",
        "unsupported_parameter",
        "unsupported_value",
    }
)
# OpenSSL's numbers of why a certificate is refused (x509_vfy.h).
_CERTIFICATE = {
    9: "its certificate is not valid yet",
    10: "its certificate has expired",
    18: "it signed its certificate by itself",
    19: "no authority trusted here signed its certificate",
    20: "no authority trusted here signed its certificate",
    21: "no authority trusted here signed its certificate",
    23: "its certificate was revoked",
    62: "its certificate is another server's",
    64: "its certificate is for another address",
}
_CLOCK = {9, 10}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of one attempt.

    Attributes:
        kind: Which.
        error: The same as an error.
        refused: Whether the server is known not to have acted, although the request was sent.
        retry_after_s: How long it asks to wait, seconds.
        status: The status it answered with.
    """

    kind: CloudFault
    error: EdgewiseError
    refused: bool = False
    retry_after_s: float | None = None
    status: int | None = None


class FaultError(Exception):
    """Carries a fault up to the client; it never leaves this package."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.error.code)
        self.fault = fault


def cancelled() -> Fault:
    """Return the fault of what was cancelled from outside."""
    error = RemoteError("cloud-cancelled", "the request to the cloud was cancelled")
    return Fault(kind=CloudFault.CANCELLED, error=error)


def deadline() -> Fault:
    """Return the fault of an ask whose time is over."""
    error = RemoteError(
        "cloud-deadline",
        "the deadline passed before the answer was whole",
        hint="allow more time, or ask for a shorter answer",
        retryable=True,
    )
    return Fault(kind=CloudFault.TIMEOUT, error=error)


def silence(doing: str, longest_s: float) -> Fault:
    """Return the fault of a step in which nothing came for too long."""
    error = RemoteError(
        "cloud-silent",
        f"nothing came for {longest_s:g} seconds while {doing}",
        context={"doing": doing, "longest_s": longest_s},
        hint="check the network; the server may be overloaded",
        retryable=True,
    )
    return Fault(kind=CloudFault.TIMEOUT, error=error)


def nameless(host: str) -> Fault:
    """Return the fault of a host whose name leads nowhere."""
    error = RemoteError(
        "cloud-name-unknown",
        f"the name {host} leads to no address",
        context={"host": host},
        hint="check the network and the url in the policy",
        retryable=True,
    )
    return Fault(kind=CloudFault.OUTAGE, error=error)


def unreachable(where: str, error: OSError | None) -> Fault:
    """Return the fault of a server that takes no connection."""
    why = "no address of it may be used" if error is None else _words(error)
    found = RemoteError(
        "cloud-unreachable",
        f"{where} cannot be reached: {why}",
        context={"where": where},
        hint="check the network, or whether the server runs",
        retryable=True,
    )
    return Fault(kind=CloudFault.OUTAGE, error=found)


def cut(doing: str) -> Fault:
    """Return the fault of a connection that ended before an answer began."""
    error = RemoteError(
        "cloud-interrupted",
        f"the connection ended while {doing}",
        context={"doing": doing},
        hint="check the network; the server may be restarting",
        retryable=True,
    )
    return Fault(kind=CloudFault.OUTAGE, error=error)


def tls_refused(error: ssl.SSLError, where: str) -> Fault:
    """Return the fault of a server that cannot show that it is the one that was meant."""
    number = getattr(error, "verify_code", 0)
    reason = str(error.reason or type(error).__name__)
    why = _CERTIFICATE.get(number, f"TLS fails with {reason}")
    found = RemoteError(
        "cloud-tls",
        f"{where} is not trusted: {why}",
        context={"where": where, "reason": reason, "verify_code": number},
        hint=(
            "check this device's clock, then the server's certificate"
            if number in _CLOCK
            else "sign in to the network first if it asks for that; for a private authority set "
            "ca_file in the policy, or SSL_CERT_FILE"
        ),
    )
    return Fault(kind=CloudFault.TLS, error=found)


def here(kind: CloudFault, error: EdgewiseError) -> Fault:
    """Return the fault of something on this device, before anything was sent."""
    return Fault(kind=kind, error=error, refused=True)


def proxy_refused(status: int | None) -> Fault:
    """Return the fault of a proxy that does not connect to the destination."""
    if status == 511:
        return _network_answers(status)
    said = "gave no HTTP answer" if status is None else f"answered {status}"
    again = status is None or status >= 500
    return _proxy_refused(said, {"status": status}, retryable=again)


def socks_refused(said: str, *, reply: int | None, retryable: bool) -> Fault:
    """Return the fault of a SOCKS proxy that does not connect to the destination.

    Args:
        said: What it does instead.
        reply: Its code, where it gave one (RFC 1928, 6).
        retryable: Whether the same may succeed later.
    """
    return _proxy_refused(said, {"reply": reply}, retryable=retryable)


def _proxy_refused(said: str, context: dict[str, Any], *, retryable: bool) -> Fault:
    error = RemoteError(
        "cloud-proxy-refused",
        f"the proxy {said} when asked for a connection to the destination",
        context=context,
        hint="check the proxy's address and credentials: HTTPS_PROXY, ALL_PROXY, NO_PROXY, or "
        "`proxy` in the policy",
        retryable=retryable,
    )
    return Fault(kind=CloudFault.OUTAGE, error=error, refused=True)


def proxy_unsupported(scheme: str) -> Fault:
    """Return the fault of a proxy that nothing here can use; it is never gone around."""
    error = UnsupportedError(
        "cloud-proxy-unsupported",
        f"a proxy of the kind {scheme[:20]!r} is set, which the cloud tier does not speak",
        context={"scheme": scheme[:20]},
        hint="set an http, https, socks5h or socks5 proxy, or name the host in NO_PROXY",
    )
    return here(CloudFault.OUTAGE, error)


def redirected(status: int) -> Fault:
    """Return the fault of a redirect, which is never followed."""
    error = RemoteError(
        "cloud-redirected",
        f"the request was redirected ({status}) and not sent on",
        context={"status": status},
        hint="sign in to the network if it asks for that; otherwise correct the url in the policy",
        retryable=True,
    )
    return Fault(kind=CloudFault.CAPTIVE_PORTAL, error=error, refused=True, status=status)


def web_page(status: int) -> Fault:
    """Return the fault of a web page in place of an answer."""
    error = RemoteError(
        "cloud-web-page",
        "a web page came in place of an answer: a sign-in page of the network, or an error page",
        context={"status": status},
        hint="sign in to the network if it asks for that; otherwise correct the url in the policy",
        retryable=True,
    )
    return Fault(kind=CloudFault.CAPTIVE_PORTAL, error=error, status=status)


def broken(why: str, *, code: str | None = None) -> Fault:
    """Return the fault of an answer that is not whole or not valid."""
    error = RemoteError(
        "cloud-answer-broken",
        f"the answer cannot be used: {why}",
        context={} if code is None else {"server_code": code},
        hint="ask again as a new request; if it comes back, report it to the server's operator",
    )
    return Fault(kind=CloudFault.BROKEN_ANSWER, error=error)


def filtered() -> Fault:
    """Return the fault of an answer that the server's content filter ended."""
    error = RemoteError(
        "cloud-content-filtered",
        "the server's content filter ended the answer",
        hint="the same request is filtered again; change it, or keep it on this device",
    )
    return Fault(kind=CloudFault.VALIDATION, error=error)


def over_limit(destination: str, *, needed: str, left: str, day: str) -> Fault:
    """Return the fault of a worst case that the day's limit leaves no room for."""
    error = ResourceError(
        "cloud-spend-limit",
        f"this request may cost up to {needed}, and {left} of the limit for {destination} are "
        f"left on {day} (UTC)",
        context={"destination": destination, "needed": needed, "left": left, "day": day},
        hint="ask for fewer tokens, wait until tomorrow, or raise daily_limit in the policy",
    )
    return here(CloudFault.SPEND_LIMIT, error)


def internal(error: BaseException) -> Fault:
    """Return the fault of a bug; it names the type of the error only, never its values."""
    found = RemoteError(
        "cloud-internal",
        f"the cloud client failed with {type(error).__name__}",
        context={"type": type(error).__name__},
        hint="report it; the message and its context hold nothing of the request",
    )
    return Fault(kind=CloudFault.INTERNAL, error=found)


def status_fault(status: int, body: Any, *, retry_after_s: float | None) -> Fault:
    """Return what a status of 400 and above means.

    Args:
        status: The status.
        body: What the body held as JSON, or ``None``.
        retry_after_s: What ``Retry-After`` asks for, seconds.
    """
    if status == 511:
        return _network_answers(status)
    word = server_word(body)
    context = {"status": status, "server_code": word, "retry_after_s": retry_after_s}
    said = f"the server answered {status}" + (f" ({word})" if word else "")
    kind, error, refused = _of_status(status, word, said, context)
    return Fault(
        kind=kind, error=error, refused=refused, retry_after_s=retry_after_s, status=status
    )


def server_word(body: Any) -> str | None:
    """Return the ``code`` or ``type`` of a server's error where it is a known word."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return None
    words = (error.get("code"), error.get("type"))
    return next((w for w in words if isinstance(w, str) and w in _KNOWN_WORDS), None)


def _of_status(
    status: int, word: str | None, said: str, context: dict[str, Any]
) -> tuple[CloudFault, EdgewiseError, bool]:
    if word == "insufficient_quota" or status in {401, 402, 403, 407}:
        error: EdgewiseError = RemoteError(
            "cloud-denied",
            f"{said}: it does not let this key in, or the account is used up",
            context=context,
            hint="check the key, the account and what it may use",
        )
        return CloudFault.PERMISSION, error, True
    if status in {404, 405, 410}:
        error = RemoteError(
            "cloud-not-found",
            f"{said}: it has no such model, or no chat API at this address",
            context=context,
            hint="check model and url in the policy",
        )
        return CloudFault.MODEL_NOT_FOUND, error, True
    if status == 429:
        error = RemoteError(
            "cloud-rate-limited",
            f"{said}: too many requests",
            context=context,
            hint="wait as long as the server asks, then ask again",
            retryable=True,
        )
        return CloudFault.RATE_LIMIT, error, True
    if status in {408, 409, 425} or status >= 500:
        error = RemoteError(
            "cloud-outage",
            f"{said}: it is in trouble",
            context=context,
            hint="try again later",
            retryable=True,
        )
        return CloudFault.OUTAGE, error, status in {408, 425}
    error = InputError(
        "cloud-request-refused",
        f"{said}: it finds the request wrong",
        context=context,
        hint="shorten the conversation if it is too long; otherwise see what the server supports",
    )
    return CloudFault.VALIDATION, error, True


def _network_answers(status: int) -> Fault:
    error = RemoteError(
        "cloud-network-sign-in",
        "the network wants a sign-in before it lets anything through",
        context={"status": status},
        hint="open a browser and sign in to the network, then ask again",
        retryable=True,
    )
    return Fault(kind=CloudFault.CAPTIVE_PORTAL, error=error, refused=True, status=status)


def _words(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
