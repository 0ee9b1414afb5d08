"""The guard: the transport under the openai SDK, through which one permitted request passes.

The SDK builds a request around an empty conversation and a key that is none. The guard lets
nothing of it through: it checks that the SDK calls where the permit says, and then sends the very
bytes that the permit was redeemed for, with the headers listed here and no others. So no version
of the SDK, no variable that it reads and no log of it sees a word of the request or the key, and
no redirect, retry or proxy of its own can lead anywhere else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import h11
import httpx

from edgewise.errors import IntegrityError
from edgewise.route.cloud import faults, socks
from edgewise.route.cloud.answers import CloudFault
from edgewise.route.cloud.faults import Fault, FaultError
from edgewise.route.cloud.proxies import Proxy
from edgewise.route.cloud.retry import retry_after_s
from edgewise.route.cloud.secrets import Secret
from edgewise.route.cloud.waiting import Span
from edgewise.route.cloud.wire import TlsWire, Wire, connect
from edgewise.route.destinations import Destination

__all__ = ["ANSWER_BYTES_MAX", "GuardedTransport", "Head", "Passage", "chat_url"]

ANSWER_BYTES_MAX = 16 << 20
_HEAD_BYTES_MAX = 64 << 10
_ERROR_BYTES_MAX = 64 << 10
_INTERIM_MAX = 16
_PIECE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the head of an answer says, as far as anybody here asks."""

    status: int
    content_type: str
    request_id: str | None
    retry_after_s: float | None


@dataclass(slots=True, kw_only=True)
class Passage:
    """One attempt to send one permitted payload; what became of it is noted here.

    Attributes:
        destination: Where it may go.
        body: The bytes that may be sent.
        payload_sha256: The digest in the permit that was redeemed.
        span: The time there is.
        trust: Whom TLS trusts; ``None`` only for this machine over http.
        proxy: The proxy to ask for a tunnel.
        secret: Key of the destination.
        idempotency_key: Sent with every attempt where the destination honours it.
        sent: Whether a byte of the request went out.
        head: Head of the answer.
        error_body: What the body of an answer of 400 and above held as JSON.
        fault: What ended it.
        connect_ms: What name, connection, proxy and TLS took, milliseconds.
    """

    destination: Destination
    body: bytes = field(repr=False)
    payload_sha256: str
    span: Span
    trust: ssl.SSLContext | None
    proxy: Proxy | None = None
    secret: Secret | None = None
    idempotency_key: str | None = None
    sent: bool = False
    head: Head | None = None
    error_body: Any = field(default=None, repr=False)
    fault: Fault | None = None
    connect_ms: float | None = None


def chat_url(destination: Destination) -> str:
    """Return the one address that is posted to."""
    return destination.url.rstrip("/") + "/chat/completions"


class GuardedTransport(httpx.BaseTransport):
    """Lets one request through for one passage, and refuses everything else.

    Args:
        passage: What may be sent; without one nothing is.
    """

    def __init__(self, passage: Passage | None) -> None:
        self._passage = passage
        self._wire: Wire | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send the passage's bytes and return the answer.

        Raises:
            IntegrityError: no permit covers this request (``permit-refused``).
            FaultError: it could not be sent, or no answer came.
        """
        passage, self._passage = self._passage, None
        if passage is None:
            raise _refused("missing", "nothing was permitted here")
        try:
            _require_permitted(passage, request)
            return self._exchange(passage)
        except FaultError as error:
            passage.fault = error.fault
            self.close()
            raise
        except IntegrityError as error:
            passage.fault = faults.here(CloudFault.INTERNAL, error)
            raise
        except Exception as error:  # noqa: BLE001 - version 2 of the SDK logs what it catches
            passage.fault = faults.internal(error)
            self.close()
            raise FaultError(passage.fault) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        if self._wire is not None:
            self._wire.close()

    def _exchange(self, passage: Passage) -> httpx.Response:
        began = time.monotonic()
        try:
            self._wire = self._opened(passage)
        except ssl.SSLEOFError:
            raise FaultError(faults.cut("TLS was negotiated")) from None
        except ssl.SSLError as error:
            raise FaultError(faults.tls_refused(error, passage.destination.origin)) from None
        except OSError:
            raise FaultError(faults.cut("connecting")) from None
        passage.connect_ms = (time.monotonic() - began) * 1e3
        talk = _Talk(self._wire, passage)
        talk.send()
        head = passage.head = talk.head()
        if head.status >= 400:
            passage.error_body = _json_or_none(talk.error_body())
        if head.status >= 300:
            self.close()
            return httpx.Response(head.status)
        return httpx.Response(head.status, stream=_Body(talk, self.close))

    def _opened(self, passage: Passage) -> Wire:
        destination, proxy = passage.destination, passage.proxy
        host, port = (
            (destination.host, destination.port) if proxy is None else (proxy.host, proxy.port)
        )
        wire: Wire = connect(
            host,
            port,
            passage.span,
            most_s=destination.connect_timeout_s,
            silence_s=destination.timeout_s,
            loopback=passage.trust is None,
        )
        self._wire = wire
        if proxy is not None and proxy.socks:
            socks.open_tunnel(wire, proxy, destination.host, destination.port)
        elif proxy is not None:
            wire = _tunnel(wire, proxy, passage)
        if passage.trust is None:
            return wire
        return TlsWire(wire, passage.trust, destination.host)


class _Talk:
    """One request and one answer over a wire."""

    def __init__(self, wire: Wire, passage: Passage) -> None:
        self._wire = wire
        self._passage = passage
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES_MAX)

    def send(self) -> None:
        passage = self._passage
        path = httpx.URL(chat_url(passage.destination)).raw_path
        request = h11.Request(method=b"POST", target=path, headers=_headers(passage))
        data = (
            self._http.send(request),
            self._http.send(h11.Data(data=passage.body)),
            self._http.send(h11.EndOfMessage()),
        )
        passage.sent = True
        try:
            self._wire.write(b"".join(part or b"" for part in data))
        except OSError:
            return  # it may have answered before it stopped to listen: the answer says more

    def head(self) -> Head:
        for _ in range(_INTERIM_MAX):
            event = self._next("waiting for the answer")
            if isinstance(event, h11.Response):
                return _head(event)
            if not isinstance(event, h11.InformationalResponse):
                break
        raise FaultError(faults.broken("it does not begin as HTTP does"))

    def error_body(self) -> bytes:
        """Return the start of a refusal's body; the status counts also where none comes."""
        body = b""
        try:
            while len(body) < _ERROR_BYTES_MAX:
                event = self._next("reading why")
                if not isinstance(event, h11.Data):
                    break
                body += event.data
        except FaultError:
            self._passage.span.check()
        return body

    def body(self) -> Iterator[bytes]:
        left = ANSWER_BYTES_MAX
        while True:
            event = self._next(None)
            if isinstance(event, h11.EndOfMessage):
                return
            if not isinstance(event, h11.Data):
                raise FaultError(faults.broken("its end is missing"))
            left -= len(event.data)
            if left < 0:
                raise FaultError(faults.broken(f"it has more than {ANSWER_BYTES_MAX} bytes"))
            yield bytes(event.data)

    def _next(self, doing: str | None) -> Any:
        """Return the next event; ``doing`` is ``None`` once an answer has begun."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(self._wire.read(_PIECE_BYTES))
        except h11.RemoteProtocolError:
            if self._http.their_state is h11.ERROR and self._ended():
                raise FaultError(_cut(doing)) from None
            raise FaultError(faults.broken("it is no valid HTTP")) from None
        except ssl.SSLError as error:
            raise FaultError(faults.tls_refused(error, self._passage.destination.origin)) from None
        except OSError:
            raise FaultError(_cut(doing)) from None
        if isinstance(event, h11.ConnectionClosed):
            raise FaultError(_cut(doing))
        return event

    def _ended(self) -> bool:
        return self._http.trailing_data[1]


class _Body(httpx.SyncByteStream):
    """The body of an answer; what ends it early is noted in the passage."""

    def __init__(self, talk: _Talk, close: Any) -> None:
        self._talk = talk
        self._close = close

    def __iter__(self) -> Iterator[bytes]:
        return self._talk.body()

    def close(self) -> None:
        self._close()


def _tunnel(wire: Wire, proxy: Proxy, passage: Passage) -> Wire:
    """Return the wire through a proxy, after it has opened a tunnel (RFC 9110, 9.3.6)."""
    assert passage.trust is not None
    if proxy.tls:
        from edgewise.route.cloud.tls import trusting  # noqa: PLC0415 - read only where needed

        wire = TlsWire(wire, trusting(None), proxy.host)
    target = passage.destination.authority.encode()
    headers = [(b"Host", target), (b"User-Agent", b"edgewise")]
    if proxy.authorization is not None:
        headers.append((b"Proxy-Authorization", proxy.authorization))
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES_MAX)
    wire.write(http.send(h11.Request(method=b"CONNECT", target=target, headers=headers)) or b"")
    wire.write(http.send(h11.EndOfMessage()) or b"")
    status = None
    with contextlib.suppress(h11.RemoteProtocolError):
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(wire.read(_PIECE_BYTES))
        status = getattr(event, "status_code", None)
    if status is None or not 200 <= status < 300 or http.trailing_data[0]:
        raise FaultError(faults.proxy_refused(status))
    return wire


def _headers(passage: Passage) -> list[tuple[bytes, bytes]]:
    """Return every header that leaves the device."""
    headers = [
        (b"Host", passage.destination.host_header.encode()),
        (b"Accept", b"text/event-stream, application/json"),
        (b"Accept-Encoding", b"identity"),
        (b"Connection", b"close"),
        (b"Content-Type", b"application/json"),
        (b"Content-Length", str(len(passage.body)).encode()),
        (b"User-Agent", b"edgewise"),
    ]
    if passage.secret is not None:
        headers.append((b"Authorization", b"Bearer " + passage.secret.reveal().encode()))
    if passage.idempotency_key is not None:
        headers.append((b"Idempotency-Key", passage.idempotency_key.encode()))
    return headers


def _head(event: h11.Response) -> Head:
    found: dict[bytes, str] = {}
    for name, value in event.headers:
        found.setdefault(name.lower(), value.decode("latin-1"))
    encoding = found.get(b"content-encoding", "identity").strip().lower()
    if encoding != "identity" and event.status_code < 300:
        raise FaultError(faults.broken("it is compressed, which was not asked for"))
    request_id = found.get(b"x-request-id", "")
    plain = 0 < len(request_id) <= 128 and all(c.isalnum() or c in "-_.:" for c in request_id)
    return Head(
        status=event.status_code,
        content_type=found.get(b"content-type", "").partition(";")[0].strip().lower(),
        request_id=request_id if plain and request_id.isascii() else None,
        retry_after_s=retry_after_s(
            found.get(b"retry-after"), date=found.get(b"date"), now_s=time.time()
        ),
    )


def _require_permitted(passage: Passage, request: httpx.Request) -> None:
    if request.method != "POST" or request.url != httpx.URL(chat_url(passage.destination)):
        raise _refused("destination", "the request is for another address")
    if hashlib.sha256(passage.body).hexdigest() != passage.payload_sha256:
        raise _refused("payload", "what is to be sent is not what it was given for")
    if (passage.trust is None) != (passage.destination.scheme == "http"):
        raise _refused("destination", "it is for a connection with TLS")


def _cut(doing: str | None) -> Fault:
    return faults.broken("it was cut before its end") if doing is None else faults.cut(doing)


def _json_or_none(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _refused(why: str, words: str) -> IntegrityError:
    return IntegrityError(
        "permit-refused",
        f"nothing was sent: {words}",
        context={"why": why},
        hint="ask the router for a permit; only the cloud client sends anything",
    )
