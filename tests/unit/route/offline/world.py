"""What the tests of the queue work with: clocks, drafts, and a sender on a real socket."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edgewise.core.canonical import canonical_json
from edgewise.route.offline import (
    Answered,
    Attempt,
    DocumentVersion,
    Draft,
    LinkEvidence,
    LinkState,
    MaybeSent,
    NotSent,
    OfflineQueue,
    Outgoing,
    Permitted,
    QueueClock,
    QueueLimits,
    Refused,
    RefusedPermanently,
    RetryLater,
    SendResult,
    link_state,
)
from edgewise.store import Home

SAFE = frozenset({"summarise"})
DAY_S = 86400.0


class Time:
    """Clocks that a test moves; ``wall`` and ``boot`` go on together unless it says otherwise."""

    def __init__(self, wall: float = 1_800_000_000.0, boot: float = 1000.0) -> None:
        self.wall = wall
        self.boot = boot
        self.boot_id = "run-1"

    def go(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds

    def restart(self) -> None:
        self.boot, self.boot_id = 1.0, f"{self.boot_id}+"

    def clock(self) -> QueueClock:
        return QueueClock(wall=lambda: self.wall, boot=lambda: self.boot, boot_id=self.boot_id)


def queue_at(root: Path, time: Time, **limits: Any) -> OfflineQueue:
    return OfflineQueue(
        Home(root),
        delay_safe=SAFE,
        limits=QueueLimits(**limits),
        clock=time.clock(),
        dice=random.Random(7),
    )


def draft(**changes: Any) -> Draft:
    given: dict[str, Any] = {
        "kind": "summarise",
        "payload": canonical_json({"text": "Tuesday, ten o'clock"}),
        "destination": "cloud",
        "deduplicates": True,
        "feature": "notes",
        "purpose": "a summary",
        "data_class": "personal",
        "lifetime_s": DAY_S,
    }
    return Draft(**{**given, **changes})


def document(version: str = "v1") -> DocumentVersion:
    return DocumentVersion(document_id="note-7", version=version)


def permit(_outgoing: Outgoing) -> Permitted:
    return Permitted()


class Scripted:
    """A sender that returns what it is told, or does it, one after the other."""

    def __init__(self, *results: SendResult | Callable[[], SendResult]) -> None:
        self.results = list(results)
        self.sent: list[tuple[str, int]] = []

    def send(self, outgoing: Outgoing, *, attempt: Attempt) -> SendResult:
        self.sent.append((attempt.idempotency_key, attempt.number))
        result = self.results.pop(0) if self.results else answered()
        return result() if callable(result) else result


def answered(text: bytes = b'{"summary":"ten"}') -> Answered:
    return Answered(status=200, answer=text, request_id="req-1")


class SocketSender:
    """Sends over HTTP/1.1 to a port of loopback, piece by piece, and judges what it sees.

    Args:
        port: Of the server.
        paths: Path of a destination, e.g. ``/ok/dedupe``.
        timeout_s: Longest silence.
        hook: Called before every step with its name; the crash tests end the process in it.
    """

    def __init__(
        self,
        port: int,
        paths: Callable[[str], str],
        *,
        timeout_s: float = 5.0,
        hook: Callable[[str], object] = lambda _name: None,
    ) -> None:
        self._port = port
        self._paths = paths
        self._timeout_s = timeout_s
        self._hook = hook

    def send(self, outgoing: Outgoing, *, attempt: Attempt) -> SendResult:
        self._hook("connect")
        try:
            connection = socket.create_connection(("127.0.0.1", self._port), self._timeout_s)
        except OSError as error:
            return NotSent(link=link_state(LinkEvidence()), reason=type(error).__name__)
        sent = 0
        with connection:
            try:
                for piece in self._pieces(outgoing, attempt):
                    self._hook("send")
                    connection.sendall(piece)
                    sent += len(piece)
                self._hook("sent")
                data = b""
                while more := connection.recv(65536):
                    self._hook("received")
                    data += more
            except OSError as error:
                seen = LinkEvidence(connected=True, bytes_sent=sent)
                why = type(error).__name__
                if seen.maybe_received:
                    return MaybeSent(link=link_state(seen), reason=why)
                return NotSent(link=link_state(seen), reason=why)
        return judged(data, sent)

    def _pieces(self, outgoing: Outgoing, attempt: Attempt) -> Iterator[bytes]:
        body = outgoing.payload
        head = (
            f"POST {self._paths(outgoing.operation.destination)} HTTP/1.1\r\nHost: loopback\r\n"
            f"Content-Length: {len(body)}\r\nIdempotency-Key: {attempt.idempotency_key}\r\n\r\n"
        ).encode("ascii")
        whole = head + body
        cuts = [0, 1, len(head) // 2, len(head), len(head) + len(body) // 2, len(whole) - 1,
                len(whole)]  # fmt: skip
        for start, stop in itertools.pairwise(cuts):
            yield whole[start:stop]


def judged(data: bytes, sent: int) -> SendResult:
    """Return what an answer means; less than a whole one means that nobody can tell."""
    head, gap, body = data.partition(b"\r\n\r\n")
    if not gap:
        seen = LinkEvidence(connected=True, bytes_sent=sent)
        return MaybeSent(link=link_state(seen), reason="the answer has no end")
    first, *lines = head.decode("ascii").split("\r\n")
    status = int(first.split(" ")[1])
    headers = dict(line.lower().split(": ", 1) for line in lines)
    location = urlsplit(headers.get("location", ""))
    seen = LinkEvidence(
        connected=True,
        bytes_sent=sent,
        status=status,
        content_type=headers.get("content-type", ""),
        other_origin=location.hostname not in {None, "127.0.0.1"},
    )
    link = link_state(seen)
    if link is not LinkState.ONLINE or len(body) < int(headers.get("content-length", 0)):
        return MaybeSent(link=link, reason=f"status {status} without a whole answer")
    if status == 200:
        return Answered(status=200, answer=body, request_id=headers.get("x-request-id", ""))
    if status in {429, 503}:
        return RetryLater(after_s=float(headers["retry-after"]), reason=f"status {status}")
    if status < 500:
        return RefusedPermanently(status=status, reason="no")
    return MaybeSent(link=link, reason=f"status {status}")


def reasons(result: object) -> list[str]:
    assert isinstance(result, Refused), result
    return [reason.code for reason in result.reasons]
