"""A loopback server with a ledger of effects, and the faults of bad links, on real sockets.

The ledger is what the tests believe: what the server did, by idempotency key, and not what the
queue says about it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections import Counter
from typing import Self

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0: closing sends RST

_LATER = {"Retry-After": "120"}
_LOGIN = {"Location": "http://login.example/"}
# Answers without an effect: status, body, type, further headers.
_REFUSALS = {
    "portal-200": (200, b"<html>Welcome to the hotel</html>", "text/html", {}),
    "portal-302": (302, b"", "text/html", _LOGIN),
    "portal-511": (511, b"<html></html>", "text/html", {}),
    "400": (400, b"{}", "application/json", {}),
    "401": (401, b"{}", "application/json", {}),
    "429": (429, b"{}", "application/json", _LATER),
    "503": (503, b"{}", "application/json", _LATER),
}


class FaultServer:
    """Serves ``POST /<fault>/<dedupe|plain>``; what a fault does stands in :meth:`_answer`."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.script: dict[str, list[str]] = {}  # faults of a key's requests, in order
        self.slow = threading.Event()  # lets the answers of "slow" go
        self._answers: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._busy = 0
        self._held: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.slow.set()
        with contextlib.suppress(OSError):  # where a listener cannot be shut down, closing wakes
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        with self._lock:
            for connection in self._held:
                connection.close()
        self.settle()

    def settle(self) -> None:
        """Wait until every request that arrived has been dealt with."""
        with self._idle:
            assert self._idle.wait_for(lambda: self._busy == 0, timeout=30)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._busy += 1
            threading.Thread(target=self._serve, args=(connection,)).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(20)
            self._exchange(connection)
        except OSError:
            connection.close()
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def _exchange(self, connection: socket.socket) -> None:
        head, body = _read_head(connection)
        if head is None:
            connection.close()  # the client went away before it had said what it wants
            return
        path, headers = head
        key = headers["idempotency-key"]
        _, fault, mode = path.split("/")
        with self._lock:
            self.requests[key] += 1
            steps = self.script.get(key)
            fault = steps.pop(0) if steps else fault
        if fault == "half-open":
            with self._lock:
                self._held.append(connection)
            return
        if fault == "reset-before":
            _reset(connection)
            return
        while len(body) < int(headers["content-length"]):
            more = connection.recv(65536)
            if not more:
                connection.close()  # half a request is none
                return
            body += more
        self._answer(connection, fault, key, body, dedupe=mode == "dedupe")
        connection.close()

    def _act(self, key: str, body: bytes, *, dedupe: bool) -> bytes:
        with self._lock:
            if dedupe and key in self._answers:
                return self._answers[key]
            self.effects[key] += 1
            told = {"done": json.loads(body), "effect": self.effects[key]}
            self._answers[key] = json.dumps(told).encode()
            return self._answers[key]

    def _answer(
        self, connection: socket.socket, fault: str, key: str, body: bytes, *, dedupe: bool
    ) -> None:
        if fault in _REFUSALS:
            _reply(connection, *_REFUSALS[fault])
        elif fault == "500":
            self._act(key, body, dedupe=dedupe)
            _reply(connection, 500, b"{}")
        elif fault == "acts-then-resets":
            self._act(key, body, dedupe=dedupe)
            _reset(connection)
        elif fault == "acts-then-error-page":
            self._act(key, body, dedupe=dedupe)
            _reply(connection, 200, b"<html>Bad gateway</html>", "text/html")
        elif fault == "acts-then-cuts":
            answer = self._act(key, body, dedupe=dedupe)
            _reply(connection, 200, answer, cut=len(answer) // 2)
        elif fault == "slow":
            answer = self._act(key, body, dedupe=dedupe)
            self.slow.wait(20)
            _reply(connection, 200, answer)
        elif fault == "twice":  # something on the way repeats the request
            self._act(key, body, dedupe=dedupe)
            _reply(connection, 200, self._act(key, body, dedupe=dedupe))
        else:
            assert fault == "ok", fault
            _reply(connection, 200, self._act(key, body, dedupe=dedupe))


def _read_head(
    connection: socket.socket,
) -> tuple[tuple[str, dict[str, str]] | None, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return None, b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return (first.split(" ")[1], headers), body


def _reply(
    connection: socket.socket,
    status: int,
    body: bytes,
    content_type: str = "application/json",
    extra: dict[str, str] | None = None,
    cut: int | None = None,
) -> None:
    headers = {
        "Content-Type": content_type,
        "Content-Length": str(len(body)),
        "X-Request-Id": "req-1",
        "Connection": "close",
        **(extra or {}),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    connection.sendall(f"HTTP/1.1 {status} x\r\n{lines}\r\n".encode() + body[:cut])


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()
