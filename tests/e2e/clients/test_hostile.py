"""What a hostile client can send over a raw socket: refused by name, and nobody else is hurt.

Each test ends by asking the same server an ordinary question.
"""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from tests.unit.serve.fakes import MODEL, FakeSession, Served, open_descriptors, serving, wait_for

from edgewise.serve.limits import Limits

LIMITS = Limits(
    body_max_bytes=64 << 10,
    header_timeout_s=0.4,
    body_timeout_s=0.4,
    keep_alive_s=1,
    stall_s=0.4,
    connections_max=100,
    grace_s=0.2,
)
BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()
PATH = "/v1/chat/completions"
IDLE_WANTED = 10_000


@pytest.fixture
def session() -> FakeSession:
    return FakeSession()


@pytest.fixture
def served(session: FakeSession) -> Iterator[Served]:
    with serving(session, limits=LIMITS) as served:
        yield served
        reply = httpx.post(served.url + PATH, content=BODY, headers=JSON, timeout=10)
        assert reply.status_code == 200, reply.text
        assert not [line for line in served.lines if "internal error" in line]


JSON = {"content-type": "application/json"}


def head(*lines: str, length: int | None = None, target: str = PATH) -> bytes:
    """Return a request's head; ``Host`` and the content type are there unless lines set them."""
    names = {line.partition(":")[0].lower() for line in lines}
    found = [f"POST {target} HTTP/1.1", *lines]
    if "host" not in names:
        found.append("Host: localhost")
    if "content-type" not in names:
        found.append("Content-Type: application/json")
    if length is not None:
        found.append(f"Content-Length: {length}")
    return "\r\n".join([*found, "", ""]).encode("latin-1")


def connect(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=10)


def everything(sock: socket.socket) -> bytes:
    """Read until the other side closes, or cuts the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            found += data
    return found


def answer(sock: socket.socket) -> bytes:
    """Read one answer of a known length."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += sock.recv(65536)
    lines, _, body = found.partition(b"\r\n\r\n")
    (length,) = (int(line[15:]) for line in lines.split(b"\r\n") if line[:15] == b"content-length:")
    while len(body) < length:
        body += sock.recv(65536)
    return lines


def exchange(served: Served, data: bytes) -> bytes:
    with connect(served) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
        return everything(sock)


def status_of(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def refusal(reply: bytes) -> tuple[int, str]:
    body = reply.partition(b"\r\n\r\n")[2]
    return status_of(reply), json.loads(body)["error"]["code"]


def closing(body: bytes = BODY, *lines: str) -> bytes:
    return head("Connection: close", *lines, length=len(body)) + body


# -- bodies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "body-not-json"),
        (b"{", "body-not-json"),
        (b"\x00" * 100, "body-not-json"),
        (b"[" * 60_000, "body-too-deep"),
        (b'{"model":' * 7000, "body-too-deep"),
        (b'{"a":"\xff\xfe"}', "body-not-utf8"),
        (b'{"model": 7, "messages": 7}', "parameter-invalid"),
        (b'{"model": "x", "messages": [[]]}', "parameter-invalid"),
        (b'{"model": "x"}', "parameter-invalid"),
        (b'{"model": "x", "messages": {"0": 1}}', "parameter-invalid"),
        (BODY[:-1] + b', "best_of": 3}', "parameter-unknown"),
        (BODY[:-1] + b', "n": 3}', "parameter-unsupported"),
        (BODY.replace(MODEL.encode(), b"gpt-9"), "model-not-found"),
    ],
)
def test_bad_bodies(served: Served, body: bytes, code: str) -> None:
    assert refusal(exchange(served, closing(body)))[1] == code


def test_a_huge_body_is_refused_by_its_length_before_it_is_read(served: Served) -> None:
    reply = exchange(served, head("Expect: 100-continue", length=10**12))
    assert refusal(reply) == (413, "body-too-large")
    assert b"100 Continue" not in reply


def test_a_huge_chunked_body_is_counted_while_it_comes(served: Served) -> None:
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    reply = exchange(served, head("Transfer-Encoding: chunked") + chunk * 12 + b"0\r\n\r\n")
    assert refusal(reply) == (413, "body-too-large")


def test_an_endless_body_ends(served: Served) -> None:
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    with connect(served) as sock:
        sock.sendall(head("Transfer-Encoding: chunked"))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(10_000):  # 312 MiB
                sock.sendall(chunk)
            pytest.fail("the server takes whatever comes")


def test_a_body_in_one_byte_chunks_is_an_ordinary_body(served: Served) -> None:
    chunks = b"".join(b"1\r\n" + bytes([byte]) + b"\r\n" for byte in BODY)
    whole = head("Transfer-Encoding: chunked", "Connection: close") + chunks + b"0\r\n\r\n"
    assert status_of(exchange(served, whole)) == 200


# -- time -----------------------------------------------------------------------------------------


def test_headers_that_never_end(served: Served) -> None:
    with connect(served) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\n")
        started = time.monotonic()
        reply = everything(sock)
    assert refusal(reply) == (408, "http-header-timeout")
    assert time.monotonic() - started < 3


def test_headers_that_drip(served: Served) -> None:
    with connect(served) as sock:
        started = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(200):
                sock.sendall(b"X: y\r\n" if _ else b"GET / HTTP/1.1\r\n")
                time.sleep(0.02)
    assert time.monotonic() - started < 3


def test_a_body_that_drips(served: Served) -> None:
    with connect(served) as sock:
        sock.sendall(head(length=1000))
        started = time.monotonic()
        reply = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - started < 5 and not reply:
                sock.sendall(b"x")
                sock.settimeout(0.02)
                with contextlib.suppress(TimeoutError):
                    reply = sock.recv(65536)
    assert refusal(reply) == (408, "body-timeout")


def test_a_second_request_that_never_ends_on_a_kept_connection(served: Served) -> None:
    with connect(served) as sock:
        sock.sendall(head(length=len(BODY)) + BODY)
        assert answer(sock).startswith(b"HTTP/1.1 200")
        sock.sendall(b"G")
        started = time.monotonic()
        everything(sock)
    assert time.monotonic() - started < 3


def test_a_kept_connection_without_a_request_is_closed(served: Served) -> None:
    with connect(served) as sock:
        sock.sendall(head(length=len(BODY)) + BODY)
        assert answer(sock).startswith(b"HTTP/1.1 200")
        assert everything(sock) == b""


def test_a_client_that_never_reads_loses_its_stream() -> None:
    session = FakeSession(("x" * 4000,) * 100_000)
    with serving(session, limits=LIMITS) as served, connect(served) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = BODY[:-1] + b', "stream": true, "max_tokens": 100000}'
        sock.sendall(head(length=len(body)) + body)
        wait_for(lambda: session.cancelled == 1 or session.running == 1)
        started = time.monotonic()
        wait_for(lambda: session.running == 0, 10)
        assert session.cancelled == 1
        assert time.monotonic() - started < 8
        session.words = ("ok",)
        assert httpx.post(served.url + PATH, content=BODY, headers=JSON).status_code == 200
        assert any("client-too-slow" in line for line in served.lines)


# -- connections ----------------------------------------------------------------------------------


@contextlib.contextmanager
def crowd(served: Served, n: int, data: bytes = b"") -> Iterator[list[socket.socket]]:
    """Hold connections open; those that the server has cut count too."""
    socks: list[socket.socket] = []
    try:
        for _ in range(n):
            sock = socket.create_connection(("127.0.0.1", served.port), timeout=10)
            socks.append(sock)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(data)
        yield socks
    finally:
        for sock in socks:
            sock.close()


def idle_possible() -> int:
    """As many connections as this process may hold, its side of them being half of the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = min(hard, 2 * IDLE_WANTED) if hard != resource.RLIM_INFINITY else 2 * IDLE_WANTED
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, room), hard))
    return min(IDLE_WANTED, room - LIMITS.connections_max - 400)


@pytest.mark.parametrize("data", [b"", b"POST /v1/models HTTP/1.1\r\nHost: loc", head(length=500)])
def test_many_connections_without_a_request_keep_nobody_out(served: Served, data: bytes) -> None:
    for _ in range(3):
        with crowd(served, 3 * LIMITS.connections_max, data):
            reply = httpx.post(served.url + PATH, content=BODY, headers=JSON, timeout=10)
            assert reply.status_code == 200


@pytest.mark.slow
def test_ten_thousand_idle_connections(session: FakeSession) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        n = idle_possible()
        assert n >= 1000, "the limit on descriptors is too low for this test"
        patient = Limits(header_timeout_s=60.0, connections_max=100, grace_s=0.2)
        with serving(session, limits=patient) as served, crowd(served, n):
            for _ in range(5):
                started = time.monotonic()
                reply = httpx.post(served.url + PATH, content=BODY, headers=JSON, timeout=10)
                assert reply.status_code == 200
                assert time.monotonic() - started < 5
            wait_for(lambda: open_descriptors() < n + 2 * patient.connections_max + 100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_when_all_are_busy_a_newcomer_is_told() -> None:
    session = FakeSession(("word ",) * 4000, step_s=0.002)
    limits = Limits(connections_max=3, grace_s=0.1, queue_max=10, queue_per_client_max=10)
    with serving(session, limits=limits) as served:
        with crowd(served, 3, head(length=len(BODY)) + BODY):
            wait_for(lambda: len(session.asked) == 1)
            time.sleep(0.1)
            reply = exchange(served, closing())
            assert refusal(reply) == (503, "connections-full")
            assert b"retry-after" in reply
        wait_for(lambda: session.running == 0)


def test_no_descriptor_is_left_behind(served: Served) -> None:
    exchange(served, closing())
    before = open_descriptors()
    for data in (b"", b"GET", head(length=9) + b"x", closing(b"{"), b"\x16\x03\x01" * 30):
        with crowd(served, 40, data):
            pass
    wait_for(lambda: open_descriptors() <= before + 1)


# -- HTTP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n: empty\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        head("Content-Length: 3", "Content-Length: 4") + b"{}{}",
        head("Content-Length: +5") + b"{}   ",
        head("Content-Length: -1"),
        head("Content-Length: 0x10"),
        head("Content-Length: " + "9" * 30),
        head("Transfer-Encoding: chunked", "Transfer-Encoding: identity") + b"0\r\n\r\n",
        head("Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n",
        head("Transfer-Encoding: xchunked") + b"0\r\n\r\n",
        head("Transfer-Encoding: chunked") + b"zz\r\n\r\n",
        head("Transfer-Encoding: chunked") + b"-1\r\nx\r\n0\r\n\r\n",
        head("Transfer-Encoding: chunked") + b"fffffffffffffffffffff\r\n",
    ],
)
def test_what_is_no_http_is_refused_and_the_connection_closed(served: Served, data: bytes) -> None:
    reply = exchange(served, data)
    assert reply == b"" or status_of(reply) in {400, 408, 431, 501}
    assert reply.count(b"HTTP/1.1 ") <= 1


def test_two_lengths_of_a_body_never_smuggle_a_second_request(served: Served) -> None:
    inner = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    reply = exchange(
        served,
        head("Transfer-Encoding: chunked", "Connection: close", length=len(inner) + 5)
        + b"0\r\n\r\n"
        + inner,
    )
    assert refusal(reply) == (400, "http-ambiguous")
    assert reply.count(b"HTTP/1.1 ") == 1


def test_a_refused_body_is_not_taken_for_the_next_request(served: Served) -> None:
    inner = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    reply = exchange(served, head("Host: evil.example", length=len(inner)) + inner)
    assert reply.count(b"HTTP/1.1 ") == 1
    assert status_of(reply) == 403


def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    reply = exchange(served, one + head(length=len(BODY)) + BODY + one + last)
    assert reply.count(b"HTTP/1.1 200") == 4
    assert reply.index(b'"status":"ok"') < reply.index(b"chat.completion")
    assert reply.rindex(b'"status":"ready"') > reply.rindex(b'"status":"ok"')


def test_requests_piled_up_behind_a_stream_are_bounded() -> None:
    session = FakeSession(("word ",) * 4000, step_s=0.002)
    with serving(session, limits=LIMITS) as served, connect(served) as sock:
        body = BODY[:-1] + b', "stream": true}'
        sock.sendall(head(length=len(body)) + body)
        assert sock.recv(100)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(100):
                sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        wait_for(lambda: session.cancelled == 1)


def test_a_hang_up_behind_pipelined_requests_is_seen() -> None:
    session = FakeSession(("word ",) * 4000, step_s=0.002)
    with serving(session, limits=LIMITS) as served:
        with connect(served) as sock:
            sock.sendall(head(length=len(BODY)) + BODY + b"GET / HTTP/1.1\r\n")
            wait_for(lambda: session.running == 1)
        wait_for(lambda: session.cancelled == 1)


def test_an_upgrade_is_ignored_and_the_request_answered(served: Served) -> None:
    reply = exchange(served, closing(BODY, "Upgrade: websocket", "Sec-WebSocket-Version: 13"))
    assert status_of(reply) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "localhost, evil.example", "8.8.8.8"]
)
def test_rebound_names(served: Served, host: str) -> None:
    reply = exchange(served, closing(BODY, f"Host: {host}"))
    assert refusal(reply) == (403, "host-refused")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1"])
def test_web_pages(served: Served, origin: str) -> None:
    assert refusal(exchange(served, closing(BODY, f"Origin: {origin}"))) == (403, "origin-refused")
    # A form can be sent without a preflight; its type gives it away even without an Origin.
    plain = closing(BODY, "Content-Type: text/plain")
    assert refusal(exchange(served, plain)) == (415, "content-type-unsupported")


def test_an_old_client_without_a_host_is_refused(served: Served) -> None:
    reply = exchange(served, b"GET /healthz HTTP/1.0\r\n\r\n")
    assert refusal(reply) == (403, "host-refused")
