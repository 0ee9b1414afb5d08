"""HTTP for fetching: trust roots, proxies, redirects, and what each refusal means.

Invariants: certificates are always verified. A connection never goes from https to http.
Credentials given for one origin are not sent to another. Each failure becomes one
:class:`RemoteError` that says whether trying again can help.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from edgewise.errors import EdgewiseError, InputError, RemoteError
from edgewise.models.sources.reference import is_loopback

if TYPE_CHECKING:
    import httpx

__all__ = ["open_stream", "shown", "tls_context", "translate_error"]

_CA_FILES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
_REDIRECTS_MAX = 10
_SECRET_HEADERS = {"authorization", "cookie", "proxy-authorization"}


def tls_context(env: Mapping[str, str] | None = None) -> ssl.SSLContext:
    """Return a verifying context with the trust roots that the environment names.

    ``SSL_CERT_FILE``, ``SSL_CERT_DIR``, ``REQUESTS_CA_BUNDLE``, ``CURL_CA_BUNDLE`` and
    ``PIP_CERT`` are added up; with none of them, the system's roots and certifi's.

    Raises:
        InputError: one of them names something that is not there or not readable.
    """
    env = os.environ if env is None else env
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    named = [(key, env[key]) for key in _CA_FILES if env.get(key)]
    named += [
        ("SSL_CERT_DIR", part) for part in env.get("SSL_CERT_DIR", "").split(os.pathsep) if part
    ]
    if not named:
        import certifi  # noqa: PLC0415 - only the HTTP path needs it; httpx brings it

        context.load_default_certs()
        context.load_verify_locations(cafile=certifi.where())
    for key, value in named:
        try:
            if Path(value).is_dir():
                context.load_verify_locations(capath=value)
            else:
                context.load_verify_locations(cafile=value)
        except (OSError, ssl.SSLError) as error:
            raise InputError(
                "ca-bundle-unreadable",
                f"{key}={value} is not a readable bundle of certificates ({error})",
                context={"variable": key, "path": value},
                hint=f"correct or unset {key}",
            ) from error
    return context


@contextmanager
def open_stream(
    client: httpx.Client, url: str, headers: Mapping[str, str], *, allow_http: bool = False
) -> Iterator[httpx.Response]:
    """Yield the streamed response to a GET, after following redirects that are allowed.

    Raises:
        InputError: the URL has another scheme than https (or http, where that is allowed).
        RemoteError: a redirect is refused or there are too many.
    """
    check_url(url, allow_http=allow_http)
    sent = dict(headers)
    for _ in range(_REDIRECTS_MAX + 1):
        with client.stream("GET", url, headers=sent) as response:
            if not response.has_redirect_location:
                yield response
                return
            target = urljoin(url, response.headers["location"])
        _check_redirect(url, target, allow_http=allow_http)
        if _origin(url) != _origin(target):
            sent = {key: value for key, value in sent.items() if key.lower() not in _SECRET_HEADERS}
        url = target
    raise RemoteError(
        "remote-redirect-refused",
        f"more than {_REDIRECTS_MAX} redirects from {shown(url)}",
        context={"url": shown(url)},
    )


def check_url(url: str, *, allow_http: bool) -> None:
    """Return when ``url`` may be fetched.

    Raises:
        InputError: it is not https, and not an http URL that is allowed.
    """
    parts = urlsplit(url)
    plain_ok = parts.scheme == "http" and (allow_http or is_loopback(parts.hostname))
    if not parts.hostname or not (parts.scheme == "https" or plain_ok):
        raise InputError(
            "url-not-https",
            f"{shown(url)} is not an https URL",
            context={"url": shown(url)},
            hint="use https://; http:// is for this computer only",
        )


def shown(url: str) -> str:
    """Return ``url`` without user, query and fragment, which may hold secrets."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def status_error(response: httpx.Response, *, retry_after_s: float | None) -> RemoteError | None:
    """Return what a status other than 200, 206 and 416 means, ``None`` for those three."""
    status = response.status_code
    if status in {200, 206, 416}:
        return None
    url = shown(str(response.url))
    context: dict[str, Any] = {"url": url, "status": status, "retry_after_s": retry_after_s}
    if status in {401, 403, 407}:
        code, hint = "remote-denied", "check the address, your access and the proxy's credentials"
    elif status in {404, 410}:
        code, hint = "remote-not-found", "check the address; the file may have been withdrawn"
    elif status == 429:
        code, hint = "remote-rate-limited", "wait, then run the same command again: it resumes"
    elif status in {408, 425} or status >= 500:
        code, hint = "remote-failed", "the server is in trouble; run the command again later"
    else:
        code, hint = "remote-refused", "check the address"
    return RemoteError(
        code,
        f"{url} answered {status} {response.reason_phrase}".rstrip(),
        context=context,
        hint=hint,
        retryable=status in {408, 425, 429} or status >= 500,
    )


def retry_after_s(response: httpx.Response, *, now_s: float) -> float | None:
    """Return the seconds that ``Retry-After`` asks for (a number or a date), if it does."""
    text = response.headers.get("retry-after", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except (TypeError, ValueError):
        return None


def translate_error(error: httpx.HTTPError | httpx.InvalidURL, url: str) -> EdgewiseError:
    """Return the typed error for what httpx raised."""
    import httpx  # noqa: PLC0415 - heavy, and only fetching needs it

    where = shown(url)
    context = {"url": where, "reason": str(error) or type(error).__name__}
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return InputError("url-invalid", f"{where}: {error}", context=context)
    tls = _tls_cause(error, connecting=isinstance(error, httpx.ConnectError))
    if tls is not None:
        return RemoteError(
            "remote-tls",
            f"the certificate or TLS of {where} was refused: {tls}",
            context=context,
            hint="behind a company proxy, point SSL_CERT_FILE at its CA bundle",
        )
    if isinstance(error, httpx.ProxyError):
        return RemoteError(
            "remote-proxy",
            f"the proxy refused the connection to {where}: {error}",
            context=context,
            hint="check HTTPS_PROXY, NO_PROXY and the proxy's credentials",
            retryable=True,
        )
    if isinstance(error, httpx.TimeoutException):
        code, what = "remote-timeout", "did not answer in time"
    elif isinstance(error, httpx.ConnectError):
        code, what = "remote-unreachable", "cannot be reached"
    else:
        code, what = "remote-interrupted", "broke off"
    return RemoteError(
        code,
        f"{where} {what}: {context['reason']}",
        context=context,
        hint="check the network; the same command resumes where it stopped",
        retryable=True,
    )


def _tls_cause(error: BaseException, *, connecting: bool) -> ssl.SSLError | None:
    """Return the refusal behind ``error``; a connection that merely ended is not one."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return seen
        if connecting and isinstance(seen, ssl.SSLError) and not isinstance(seen, ssl.SSLEOFError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _check_redirect(url: str, target: str, *, allow_http: bool) -> None:
    source, wanted = urlsplit(url), urlsplit(target)
    plain_ok = (
        wanted.scheme == "http"
        and source.scheme == "http"
        and (allow_http or is_loopback(wanted.hostname))
    )
    if not wanted.hostname or not (wanted.scheme == "https" or plain_ok):
        raise RemoteError(
            "remote-redirect-refused",
            f"{shown(url)} redirects to {shown(target)}, which is not protected",
            context={"url": shown(url), "target": shown(target)},
            hint="only redirects to https are followed",
        )


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port
