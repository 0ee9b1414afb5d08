"""A server on a bare socket that answers, or fails, at an exact byte; and what is asked of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import trustme

from edgewise.core.request import Message
from edgewise.route.cloud import (
    CloudAnswer,
    CloudClient,
    CloudFailure,
    CloudPayload,
    Secrets,
    SpendLedger,
)
from edgewise.route.destinations import Destination
from edgewise.route.permits import PermitOffice
from edgewise.store import Home

PROMPT = "canary-prompt-7f3a"
KEY = "canary-key-91bc-0d2e"
ECHO = "canary-echo-55de"  # what a server writes into its own head and errors
MODEL = "far-1b"
OK_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Request-Id: req-1\r\n"

Answer = Callable[["Exchange"], None]


class Exchange:
    """One request that came, and its connection."""

    def __init__(self, server: RawServer, sock: socket.socket) -> None:
        self.server = server
        self.sock = sock
        self.head = b""
        self.body = b""

    def read(self) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._some()
        self.head, _, self.body = data.partition(b"\r\n\r\n")
        while len(self.body) < int(self.headers.get("content-length", "0")):
            self.body += self._some()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode().split("\r\n")[1:]
        return {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.body).hexdigest()

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.sock.sendall(data)

    def until_closed(self, most_s: float = 20.0) -> None:
        """Wait until the client hangs up."""
        self.sock.settimeout(most_s)
        with contextlib.suppress(OSError):
            while self.sock.recv(4096):
                pass
        self.server.hung_up.set()

    def _some(self) -> bytes:
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        return data


class RawServer:
    """Answers its connections with ``answers`` in turn, the last one again and again."""

    def __init__(self, *answers: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answers = list(answers)
        self.exchanges: list[Exchange] = []
        self.connections = 0
        self.hung_up = threading.Event()
        self.errors: list[BaseException] = []
        self._tls = tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._stopping = False

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1"

    @contextlib.contextmanager
    def running(self) -> Iterator[RawServer]:
        thread = threading.Thread(target=self._accept)
        thread.start()
        try:
            yield self
        finally:
            self._stopping = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            for one in [thread, *self._threads]:
                one.join(20)
                assert not one.is_alive()
            assert not self.errors, self.errors

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            sock.settimeout(20)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answer = self.answers[min(self.connections, len(self.answers) - 1)]
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock, answer))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, answer: Answer) -> None:
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            exchange = Exchange(self, sock)
            if not getattr(answer, "unread", False):
                exchange.read()
                self.exchanges.append(exchange)
            answer(exchange)
        except OSError:
            pass  # clients of this server break off on purpose
        except BaseException as error:  # noqa: BLE001 - told at the end of the test
            self.errors.append(error)
        finally:
            if isinstance(sock, ssl.SSLSocket):
                sock.settimeout(1)
                with contextlib.suppress(OSError, ValueError):
                    sock = sock.unwrap()  # says good-bye, as an orderly end does
            sock.close()


def unread(answer: Answer) -> Answer:
    """Mark an answer that begins before the request was read."""

    def early(exchange: Exchange) -> None:
        answer(exchange)

    early.unread = True  # type: ignore[attr-defined]
    return early


def raw(*pieces: bytes, then: Answer | None = None) -> Answer:
    """Answer with bytes as they are, and close."""

    def answer(exchange: Exchange) -> None:
        for piece in pieces:
            exchange.send(piece)
        if then is not None:
            then(exchange)

    return answer


def hang(exchange: Exchange) -> None:
    exchange.until_closed()


def status(
    number: int, body: Any = None, *, kind: str = "application/json", **headers: str
) -> Answer:
    """Answer with a status and a body: JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body or {"error": {}}).encode()
    head = f"HTTP/1.1 {number} {ECHO}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
    head += "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return raw(head.encode() + b"\r\n" + data)


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def delta(text: str | None = None, *, finish: str | None = None, **fields: Any) -> bytes:
    words = ({} if text is None else {"content": text}) | fields
    choice = {"index": 0, "delta": words, "finish_reason": finish}
    return event({"model": MODEL, "choices": [choice]})


def usage(prompt: Any = 7, completion: Any = 3) -> bytes:
    told = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event({"model": MODEL, "choices": [], "usage": told})


FINISH = delta(finish="stop")
DONE = event(b"[DONE]")
GOOD = (delta("Hel"), delta("lo"), FINISH, usage(), DONE)


def stream(*events: bytes, then: Answer | None = None) -> Answer:
    """Answer with a stream that has no framing: it ends where the connection does."""
    return raw(OK_HEAD + b"\r\n", *events, then=then)


def chunked(*events: bytes, whole: bool = True) -> Answer:
    """Answer with a chunked stream; one that is not whole lacks its last mark."""
    framed = b"".join(f"{len(e):x}\r\n".encode() + e + b"\r\n" for e in events)
    end = b"0\r\n\r\n" if whole else b""
    return raw(OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", framed, end)


class Desk:
    """A client with everything around it, as the router would hold it."""

    def __init__(self, root: Path, *, key: str = KEY, office: PermitOffice | None = None) -> None:
        self.office = office or PermitOffice()
        self.ledger = SpendLedger(Home(root))
        self.keys_read: list[str] = []
        self.key = key
        self.client = CloudClient(
            self.office.gate, spend=self.ledger, secrets=Secrets(env={}, keyring=self._read)
        )
        self.heard: list[str] = []

    def _read(self, service: str, name: str) -> str:
        self.keys_read.append(f"{service}/{name}")
        return self.key

    def ask(
        self, destination: Destination, payload: CloudPayload | None = None, **options: Any
    ) -> CloudAnswer | CloudFailure:
        payload = payload or hello()
        permit = self.office.mint(destination, payload.body)
        told: dict[str, Any] = {"on_text": self.heard.append, "deadline_s": 20.0} | options
        return self.client.ask(permit, destination, payload, **told)

    def fails(self, destination: Destination, *args: Any, **options: Any) -> CloudFailure:
        found = self.ask(destination, *args, **options)
        assert isinstance(found, CloudFailure), found
        return found

    def answers(self, destination: Destination, *args: Any, **options: Any) -> CloudAnswer:
        found = self.ask(destination, *args, **options)
        assert isinstance(found, CloudAnswer), (found, getattr(found, "error", None))
        return found


def hello(**fields: Any) -> CloudPayload:
    message = Message(role="user", content=PROMPT)
    return CloudPayload(**({"model": MODEL, "messages": (message,)} | fields))


def at(server: RawServer, ca_file: Path | None = None, **fields: Any) -> Destination:
    told = {"ca_file": str(ca_file)} if ca_file is not None else {}
    defaults = {"name": "far", "url": server.url, "model": MODEL, "secret": "far-key"}
    return Destination(**(defaults | told | {"timeout_s": 10.0} | fields))


class Authority:
    """A private authority and the certificates it signs."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.file = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.file)

    def context(self, *names: str, **options: Any) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*(names or ("127.0.0.1",)), **options).configure_cert(context)
        return context
