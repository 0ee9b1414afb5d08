"""Every way in which a server fails, at an exact byte: one typed failure each, and no restart."""

from __future__ import annotations

import socket
import sys
import threading
import time
from email.utils import formatdate
from typing import Any

import pytest
from tests.unit.route.cloud.servers import (
    DONE,
    ECHO,
    FINISH,
    GOOD,
    MODEL,
    OK_HEAD,
    PROMPT,
    Answer,
    Desk,
    RawServer,
    at,
    chunked,
    delta,
    event,
    hang,
    hello,
    raw,
    status,
    stream,
    unread,
)

from edgewise.core.tools import Tool
from edgewise.errors import RemoteError
from edgewise.route.cloud import CancelToken, CloudFault
from edgewise.route.destinations import Destination

TOOL = Tool(name="look")
HTML = b"<html>Please sign in</html>"


def call(**fields: Any) -> bytes:
    return delta(tool_calls=[{"index": 0} | fields])


def api_error(code: str, number: int) -> Answer:
    return status(number, {"error": {"code": code, "message": f"{ECHO} {PROMPT}"}})


STATUSES: list[tuple[Answer, CloudFault, str, bool, bool]] = [
    (status(400), CloudFault.VALIDATION, "cloud-request-refused", False, False),
    (status(413), CloudFault.VALIDATION, "cloud-request-refused", False, False),
    (status(422), CloudFault.VALIDATION, "cloud-request-refused", False, False),
    (status(401), CloudFault.PERMISSION, "cloud-denied", False, False),
    (status(402), CloudFault.PERMISSION, "cloud-denied", False, False),
    (status(403), CloudFault.PERMISSION, "cloud-denied", False, False),
    (api_error("insufficient_quota", 429), CloudFault.PERMISSION, "cloud-denied", False, False),
    (status(404), CloudFault.MODEL_NOT_FOUND, "cloud-not-found", False, False),
    (status(404, HTML, kind="text/html"), CloudFault.MODEL_NOT_FOUND, "cloud-not-found",
     False, False),
    (status(429), CloudFault.RATE_LIMIT, "cloud-rate-limited", True, False),
    (status(408), CloudFault.OUTAGE, "cloud-outage", True, False),
    (status(409), CloudFault.OUTAGE, "cloud-outage", True, True),
    (status(500), CloudFault.OUTAGE, "cloud-outage", True, True),
    (status(502, HTML, kind="text/html"), CloudFault.OUTAGE, "cloud-outage", True, True),
    (status(503), CloudFault.OUTAGE, "cloud-outage", True, True),
    (status(511), CloudFault.CAPTIVE_PORTAL, "cloud-network-sign-in", True, False),
    (status(302, Location="http://127.0.0.1:9/login"), CloudFault.CAPTIVE_PORTAL,
     "cloud-redirected", True, False),
    (status(307, Location="/v1/chat/completions"), CloudFault.CAPTIVE_PORTAL,
     "cloud-redirected", True, False),
    (status(200, HTML, kind="text/html; charset=utf-8"), CloudFault.CAPTIVE_PORTAL,
     "cloud-web-page", True, True),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "fault", "code", "retryable", "acted"), STATUSES)
def test_a_status_means_one_fault(
    desk: Desk, answer: Answer, fault: CloudFault, code: str, retryable: bool, acted: bool
) -> None:
    with RawServer(answer).running() as server:
        failure = desk.fails(at(server))
        assert server.connections == 1
    assert (failure.fault, failure.code, failure.retryable) == (fault, code, retryable)
    assert (failure.may_have_acted, failure.attempts, failure.partial_text) == (acted, 1, "")
    assert failure.error["hint"]
    assert ECHO not in str(failure.error)
    assert failure.as_error().code == code


def test_only_known_words_of_a_refusal_are_repeated(desk: Desk) -> None:
    known = api_error("context_length_exceeded", 400)
    with RawServer(known, api_error(PROMPT, 400)).running() as server:
        first, second = desk.fails(at(server)), desk.fails(at(server))
    assert first.error["context"]["server_code"] == "context_length_exceeded"
    assert second.error["context"]["server_code"] is None
    assert PROMPT not in str(second.error)


BROKEN: list[Answer] = [
    stream(),
    stream(DONE),
    stream(delta("Hel")),
    stream(delta("Hel"), DONE),
    stream(delta("Hel"), b"data: {\n\n"),
    stream(delta("Hel"), b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n'),
    stream(delta("Hel"), b'data: {"choices": [], "choices": []}\n\n'),
    stream(delta("Hel"), b"data: [1, 2]\n\n"),
    stream(delta("Hel"), b'data: {"choices": 3}\n\n'),
    stream(delta("Hel"), b'data: {"choices": [{"delta": {"content": 3}}]}\n\n'),
    stream(delta("Hel"), b'data: {"choices": [{"index": 1, "delta": {}}]}\n\n'),
    stream(delta("Hel"), b"\x00\x01\x02 garbage\n\n"),
    stream(delta("Hel"), b"<html>\n\n"),
    stream(delta("Hel"), b"data: " + b"[" * 100_000 + b"\n\n"),
    stream(delta("Hel"), event({"error": {"code": "server_error", "message": ECHO}})),
    stream(delta("Hel"), delta(finish="eaten_by_a_dog"), DONE),
    stream(delta("Hel"), FINISH, delta("lo"), DONE),
    stream(delta("Hel"), delta(finish="tool_calls"), DONE),
    stream(delta("Hel"), b"data: " + b"x" * (2 << 20)),
    chunked(delta("Hel"), whole=False),
    raw(OK_HEAD + b"Content-Length: 9999\r\n\r\n", delta("Hel")),
    raw(OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"zz\r\n"),
    raw(OK_HEAD + b"Content-Encoding: gzip\r\n\r\n", *GOOD),
    status(200, {"error": {"code": "server_error", "message": ECHO}}),
    status(200, {"choices": []}),
    status(200, b"hello", kind="text/plain"),
    status(200, b"hello", kind=""),
    status(204),
    status(206, b"".join(GOOD), kind="text/event-stream"),
    raw(b"HTTP/9.9 what\r\n\r\n"),
    raw(b"\x16\x03\x01 this is no HTTP\r\n\r\n"),
    raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 50),
    raw(b"HTTP/1.1 200 OK\r\nX-Long: " + b"y" * 100_000 + b"\r\n\r\n"),
]


@pytest.mark.parametrize("answer", BROKEN)
def test_a_broken_answer_is_one(desk: Desk, answer: Answer) -> None:
    with RawServer(answer).running() as server:
        failure = desk.fails(at(server, idempotent=True))
        assert server.connections == 1
    assert (failure.fault, failure.code) == (CloudFault.BROKEN_ANSWER, "cloud-answer-broken")
    assert failure.may_have_acted
    assert failure.partial_text == "".join(desk.heard)
    assert ECHO not in str(failure.error)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"choices": [{"message": {"content": "\xff"}, "finish_reason": "stop"}]}',
        {"choices": []},
        {"choices": [{"message": {"content": "Hi"}}]},
        {"choices": [{"finish_reason": "stop"}]},
        {"choices": [{"message": {"content": ["Hi"]}, "finish_reason": "stop"}]},
        {"error": {"message": ECHO}},
    ],
)
def test_a_broken_answer_in_one_piece(desk: Desk, body: Any) -> None:
    with RawServer(status(200, body)).running() as server:
        failure = desk.fails(at(server), hello(stream=False))
    assert failure.fault is CloudFault.BROKEN_ANSWER


def test_a_stream_where_one_piece_was_asked_for(desk: Desk) -> None:
    with RawServer(stream(*GOOD)).running() as server:
        failure = desk.fails(at(server), hello(stream=False))
    assert failure.fault is CloudFault.BROKEN_ANSWER
    assert desk.heard == []


@pytest.mark.parametrize(
    "parts",
    [
        (call(id="a", function={"name": "other", "arguments": "{}"}),),
        (call(id="a", function={"arguments": "{}"}),),
        (call(function={"name": "look", "arguments": "{}"}),),
        (call(id="a", function={"name": "look", "arguments": "{"}),),
        (call(id="a", function={"name": "look", "arguments": "[]"}),),
        (call(id="a", function={"name": "look", "arguments": '{"a": 1, "a": 2}'}),),
        (call(id="a", index=-1, function={"name": "look", "arguments": "{}"}),),
        (call(id="a", index=10**9, function={"name": "look", "arguments": "{}"}),),
    ],
)
def test_broken_tool_calls(desk: Desk, parts: tuple[bytes, ...]) -> None:
    with RawServer(stream(*parts, delta(finish="tool_calls"), DONE)).running() as server:
        failure = desk.fails(at(server), hello(tools=(TOOL,)))
    assert failure.fault is CloudFault.BROKEN_ANSWER


def test_a_filtered_answer_is_none(desk: Desk) -> None:
    with RawServer(stream(delta("So"), delta(finish="content_filter"), DONE)).running() as server:
        failure = desk.fails(at(server))
    assert (failure.fault, failure.code) == (CloudFault.VALIDATION, "cloud-content-filtered")
    assert failure.partial_text == "So"


def test_a_huge_answer_is_cut(desk: Desk) -> None:
    def huge(exchange: Any) -> None:
        exchange.send(OK_HEAD + b"\r\n")
        piece = b": " + b"x" * 65_000 + b"\n"
        for _ in range(300):
            exchange.send(piece)

    with RawServer(huge).running() as server:
        failure = desk.fails(at(server))
    assert failure.fault is CloudFault.BROKEN_ANSWER
    assert "bytes" in failure.message


@pytest.mark.parametrize(
    ("answer", "acted"),
    [
        (unread(raw(b"")), True),
        (raw(b""), True),
        (raw(b"HTTP/1.1 20"), True),
        (raw(OK_HEAD), True),
    ],
)
def test_a_connection_that_ends_before_an_answer_begins(
    desk: Desk, answer: Answer, acted: bool
) -> None:
    with RawServer(answer).running() as server:
        failure = desk.fails(at(server))
        assert server.connections == 1
    assert (failure.fault, failure.code) == (CloudFault.OUTAGE, "cloud-interrupted")
    assert failure.may_have_acted is acted


def test_a_refusal_before_the_request_was_read_is_heard(desk: Desk) -> None:
    def early(exchange: Any) -> None:
        status(413)(exchange)
        exchange.until_closed()

    with RawServer(unread(early)).running() as server:
        failure = desk.fails(at(server), hello(stop=("x" * 4_000_000,)))
    assert (failure.fault, failure.status) == (CloudFault.VALIDATION, 413)


def test_nobody_listens(desk: Desk) -> None:
    server = RawServer(raw(b""))
    destination = at(server)
    server._socket.close()
    failure = desk.fails(destination)
    assert (failure.fault, failure.code) == (CloudFault.OUTAGE, "cloud-unreachable")
    assert not failure.may_have_acted
    assert failure.retryable


def test_a_name_that_leads_nowhere(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object, **__: object) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    server = RawServer(raw(b""))
    destination = at(server, url="https://far.invalid/v1")
    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    failure = desk.fails(destination)
    server._socket.close()
    assert (failure.fault, failure.code) == (CloudFault.OUTAGE, "cloud-name-unknown")
    assert not failure.may_have_acted


def test_a_name_for_this_machine_that_leads_elsewhere_is_not_followed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    failure = desk.fails(Destination(name="far", url="http://localhost:1/v1", model=MODEL))
    assert failure.code == "cloud-unreachable"
    assert "no address of it may be used" in failure.message


# Silence, drips, deadlines and cancelling.


@pytest.mark.parametrize(
    ("answer", "partial"),
    [(hang, ""), (raw(OK_HEAD, then=hang), ""), (stream(then=hang), ""),
     (stream(delta("Hel"), then=hang), "Hel"), (unread(hang), "")],
)  # fmt: skip
def test_silence_is_a_timeout(desk: Desk, answer: Answer, partial: str) -> None:
    with RawServer(answer).running() as server:
        failure = desk.fails(at(server, timeout_s=0.2))
        assert server.hung_up.wait(5)
    assert (failure.fault, failure.code) == (CloudFault.TIMEOUT, "cloud-silent")
    assert failure.may_have_acted
    assert failure.partial_text == partial


def drip(exchange: Any) -> None:
    exchange.send(OK_HEAD + b"\r\n" + delta("Hel"))
    exchange.sock.settimeout(0.02)
    for _ in range(1000):
        exchange.send(b": ping\n\n")
        try:
            if not exchange.sock.recv(1):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    exchange.server.hung_up.set()


def test_a_drip_ends_at_the_deadline(desk: Desk) -> None:
    with RawServer(drip).running() as server:
        failure = desk.fails(at(server), deadline_s=0.4)
        assert server.hung_up.wait(5)
    assert (failure.fault, failure.code) == (CloudFault.TIMEOUT, "cloud-deadline")
    assert failure.partial_text == "Hel"
    assert failure.timings.total_ms.number >= 400


def test_a_peer_that_never_speaks_tls(desk: Desk, authority: Any) -> None:
    server = RawServer(unread(hang))
    with server.running():
        url = server.url.replace("http:", "https:")
        failure = desk.fails(at(server, authority.file, url=url, timeout_s=0.2))
    assert (failure.fault, failure.may_have_acted) == (CloudFault.TIMEOUT, False)


def test_a_name_server_that_does_not_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(20) and [])
    server = RawServer(raw(b""))
    failure = desk.fails(at(server, connect_timeout_s=0.2))
    release.set()
    server._socket.close()
    assert failure.code == "cloud-silent"
    assert not failure.may_have_acted


def cancelled_ms(desk: Desk, destination: Any, ready: Any) -> tuple[Any, float]:
    """Cancel from another thread once ``ready`` returns; return the failure and the time it took."""
    token = CancelToken()
    said: list[float] = []

    def cancel() -> None:
        ready()
        said.append(time.monotonic())
        token.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    failure = desk.fails(destination, cancel=token)
    took = (time.monotonic() - said[0]) * 1e3
    thread.join()
    return failure, took


@pytest.mark.parametrize("answer", [hang, stream(delta("Hel"), then=hang)])
def test_cancelling_closes_the_connection_at_once(desk: Desk, answer: Answer) -> None:
    with RawServer(answer).running() as server:

        def ready() -> None:
            until = time.monotonic() + 10
            streams = answer is not hang
            while not (server.exchanges and (desk.heard or not streams)):
                assert time.monotonic() < until
                time.sleep(0.001)

        failure, took = cancelled_ms(desk, at(server), ready)
        assert server.hung_up.wait(5)
    assert (failure.fault, failure.code) == (CloudFault.CANCELLED, "cloud-cancelled")
    assert failure.may_have_acted
    assert failure.partial_text == "".join(desk.heard)
    assert took < 2000  # milliseconds in truth; a loaded machine may take its time


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses")
def test_cancelling_ends_the_wait_for_a_connection(desk: Desk) -> None:
    # A listener whose queue is full takes no further connection: the kernel drops the first packet.
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    port = listener.getsockname()[1]
    fillers = [socket.socket() for _ in range(8)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))
    server = RawServer(raw(b""))
    destination = at(server, url=f"http://127.0.0.1:{port}/v1", connect_timeout_s=30.0)
    failure, took = cancelled_ms(desk, destination, lambda: time.sleep(0.1))
    for one in (listener, server._socket, *fillers):
        one.close()
    assert failure.fault is CloudFault.CANCELLED
    assert not failure.may_have_acted
    assert took < 2000


def test_cancelling_ends_the_wait_for_a_name(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    release, asked = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> list[Any]:
        asked.set()
        release.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    server = RawServer(raw(b""))
    failure, took = cancelled_ms(desk, at(server), lambda: asked.wait(10))
    release.set()
    server._socket.close()
    assert failure.fault is CloudFault.CANCELLED
    assert took < 2000


def test_what_was_cancelled_before_is_not_begun(desk: Desk) -> None:
    token = CancelToken()
    token.cancel()
    with RawServer(stream(*GOOD)).running() as server:
        failure = desk.fails(at(server), cancel=token)
    assert (failure.fault, failure.attempts) == (CloudFault.CANCELLED, 0)
    assert (server.connections, desk.keys_read) == (0, [])


# Further attempts.


def test_without_idempotency_there_is_one_attempt(desk: Desk) -> None:
    with RawServer(status(503), stream(*GOOD)).running() as server:
        failure = desk.fails(at(server, idempotent=False, retries=5))
        assert server.connections == 1
    assert failure.attempts == 1


@pytest.mark.parametrize("first", [status(500), status(429, Retry_After="0"), raw(b"")])
def test_the_same_bytes_and_the_same_key_are_sent_again(desk: Desk, first: Answer) -> None:
    with RawServer(first, stream(*GOOD)).running() as server:
        answer = desk.answers(at(server, idempotent=True))
        one, two = server.exchanges
    assert (one.body, one.head) == (two.body, two.head)
    assert one.headers["idempotency-key"]
    assert answer.attempts == 2
    assert [e.code for e in answer.events] == ["cloud-repeated"]


def test_attempts_are_counted_out(desk: Desk) -> None:
    with RawServer(status(503)).running() as server:
        failure = desk.fails(at(server, idempotent=True, retries=1))
        assert server.connections == 2
    assert (failure.attempts, failure.fault) == (2, CloudFault.OUTAGE)


@pytest.mark.parametrize("answer", [status(400), status(401), stream(delta("Hel"))])
def test_what_another_attempt_cannot_mend_or_has_begun_is_not_repeated(
    desk: Desk, answer: Answer
) -> None:
    with RawServer(answer, stream(*GOOD)).running() as server:
        desk.fails(at(server, idempotent=True))
        assert server.connections == 1


def test_an_answer_that_hangs_after_it_began_is_not_repeated(desk: Desk) -> None:
    with RawServer(stream(then=hang), stream(*GOOD)).running() as server:
        failure = desk.fails(at(server, idempotent=True, timeout_s=0.2))
        assert server.connections == 1
    assert failure.fault is CloudFault.TIMEOUT


def test_a_wait_beyond_the_deadline_is_not_begun(desk: Desk) -> None:
    with RawServer(status(429, Retry_After="3600")).running() as server:
        failure = desk.fails(at(server, idempotent=True))
    assert (failure.fault, failure.attempts) == (CloudFault.RATE_LIMIT, 1)
    assert failure.retry_after_s == 3600
    assert failure.timings.total_ms.number < 15_000


def test_retry_after_as_a_date_is_read_by_the_servers_clock(desk: Desk) -> None:
    then = 1_000_000_000  # the server's clock is decades behind
    late = status(
        429, Retry_After=formatdate(then + 90, usegmt=True), Date=formatdate(then, usegmt=True)
    )
    with RawServer(late).running() as server:
        failure = desk.fails(at(server))
    assert failure.retry_after_s == 90


def test_cancelling_ends_the_wait_between_attempts(desk: Desk) -> None:
    with RawServer(status(429, Retry_After="15")).running() as server:

        def ready() -> None:
            while not server.exchanges:
                time.sleep(0.001)
            time.sleep(0.05)

        failure, took = cancelled_ms(desk, at(server, idempotent=True), ready)
        assert server.connections == 1
    assert failure.fault is CloudFault.CANCELLED
    assert took < 2000


def test_a_failure_is_an_error_for_who_wants_one(desk: Desk) -> None:
    with RawServer(status(503)).running() as server:
        error = desk.fails(at(server)).as_error()
    assert isinstance(error, RemoteError)
    assert error.retryable
