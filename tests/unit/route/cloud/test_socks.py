"""SOCKS proxies: asked by name, never gone around, and every way in which they fail."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.unit.route.cloud.servers import (
    GOOD,
    KEY,
    PROMPT,
    Authority,
    Desk,
    Exchange,
    RawServer,
    at,
    hang,
    stream,
    unread,
)
from tests.unit.route.cloud.test_tls import TunnelProxy, remote

from edgewise.route.cloud import CancelToken, CloudFault
from edgewise.route.cloud.faults import FaultError
from edgewise.route.cloud.proxies import proxy_for
from edgewise.route.destinations import Destination

CONNECTED = b"\x05\x00\x00\x01\x7f\x00\x00\x01\x04\x38"


class SocksProxy(TunnelProxy):
    """A SOCKS proxy of RFC 1928 that opens tunnels to one port, whoever is asked for."""

    def __init__(
        self,
        port: int,
        *,
        user: bytes | None = None,
        password: bytes = b"",
        connected: bytes = CONNECTED,
        bytewise: bool = False,
    ) -> None:
        super().__init__(port)
        self.asked: list[tuple[int, bytes, int]] = []
        self._user, self._password, self._connected = user, password, connected
        self._bytewise = bytewise

    @contextmanager
    def running(self, tls: Any = None) -> Iterator[str]:
        with RawServer(unread(self._serve), tls=tls).running() as server:
            yield f"127.0.0.1:{server.port}"

    def _serve(self, exchange: Exchange) -> None:
        def take(size: int) -> bytes:
            data = b""
            while len(data) < size:
                piece = exchange.sock.recv(size - len(data))
                if not piece:
                    raise ConnectionResetError
                data += piece
            return data

        def say(data: bytes) -> None:
            for piece in [data[i : i + 1] for i in range(len(data))] if self._bytewise else [data]:
                exchange.sock.sendall(piece)

        version, count = take(2)
        assert version == 5
        methods = take(count)
        wanted = 0 if self._user is None else 2
        if wanted not in methods:
            say(b"\x05\xff")
            return
        say(bytes([5, wanted]))
        if wanted:
            assert take(1) == b"\x01"
            user = take(take(1)[0])
            right = (user, take(take(1)[0])) == (self._user, self._password)
            say(b"\x01\x00" if right else b"\x01\x01")
            if not right:
                return
        version, command, reserved, kind = take(4)
        assert (version, command, reserved) == (5, 1, 0)
        host = take({1: 4, 4: 16}.get(kind) or take(1)[0])
        self.asked.append((kind, host, int.from_bytes(take(2))))
        say(self._connected)
        if self._connected[1] == 0:
            with socket.create_connection(("127.0.0.1", self._target)) as far:
                self._pass(exchange.sock, far)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return every name that is looked up on this device."""
    found: list[str] = []
    real = socket.getaddrinfo

    def watched(host: Any, *args: Any, **options: Any) -> Any:
        found.append(str(host))
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", watched)
    return found


@pytest.mark.parametrize("scheme", ["socks5h", "socks5"])
@pytest.mark.parametrize("by", ["policy", "ALL_PROXY", "https_proxy", "SOCKS_PROXY"])
def test_the_proxy_is_given_the_name_and_sees_tls(
    desk: Desk,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    lookups: list[str],
    by: str,
    scheme: str,
) -> None:
    with RawServer(stream(*GOOD), tls=authority.context("far.example")).running() as server:
        proxy = SocksProxy(server.port)
        with proxy.running() as address:
            fields = {"proxy": f"{scheme}://{address}"} if by == "policy" else {}
            if by != "policy":
                monkeypatch.setenv(by, f"{scheme}://{address}")
            assert desk.answers(remote(server, authority, **fields)).text == "Hello"
    assert proxy.asked == [(3, b"far.example", server.port)]
    assert set(lookups) == {"127.0.0.1"}
    for word in (PROMPT, KEY):
        assert word.encode() not in proxy.passed


@pytest.mark.parametrize(
    ("host", "kind", "packed"),
    [
        ("192.0.2.7", 1, bytes([192, 0, 2, 7])),
        ("[2001:db8::1]", 4, socket.inet_pton(socket.AF_INET6, "2001:db8::1")),
    ],
)
def test_an_address_is_sent_as_one(
    desk: Desk, authority: Authority, host: str, kind: int, packed: bytes
) -> None:
    context = authority.context(host.strip("[]"))
    with RawServer(stream(*GOOD), tls=context).running() as server:
        proxy = SocksProxy(server.port)
        with proxy.running() as address:
            url = f"https://{host}:{server.port}/v1"
            place = at(server, authority.file, url=url, proxy=f"socks5h://{address}")
            assert desk.answers(place).text == "Hello"
    assert proxy.asked == [(kind, packed, server.port)]


@pytest.mark.parametrize(
    "connected",
    [
        b"\x05\x00\x00\x04" + bytes(16) + b"\x00\x50",
        b"\x05\x00\x00\x03\x0bnear.exampl\x00\x50",
        b"\x05\x00\x00\x03\x00\x00\x50",
    ],
    ids=["ipv6", "name", "empty-name"],
)
def test_where_it_connected_from_may_be_told_in_any_form_and_byte_by_byte(
    desk: Desk, authority: Authority, connected: bytes
) -> None:
    with RawServer(stream(*GOOD), tls=authority.context("far.example")).running() as server:
        proxy = SocksProxy(server.port, connected=connected, bytewise=True)
        with proxy.running() as address:
            found = desk.answers(remote(server, authority, proxy=f"socks5h://{address}"))
    assert found.text == "Hello"


def test_a_user_and_a_password_are_given_where_they_are_asked_for(
    desk: Desk, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RawServer(stream(*GOOD), tls=authority.context("far.example")).running() as server:
        for user in (b"us\xc3\xa9r", None):
            proxy = SocksProxy(server.port, user=user, password=b"pa ss:@")
            with proxy.running() as address:
                monkeypatch.setenv("ALL_PROXY", f"socks5h://us%C3%A9r:pa%20ss%3A%40@{address}")
                assert desk.answers(remote(server, authority)).text == "Hello"


@pytest.mark.parametrize("given", ["", "user:canary-wrong@", f"user:{'x' * 256}@", "user@"])
def test_a_proxy_that_does_not_know_who_asks(
    desk: Desk, authority: Authority, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    with RawServer(stream(*GOOD), tls=authority.context("far.example")).running() as server:
        proxy = SocksProxy(server.port, user=b"user", password=b"right")
        with proxy.running() as address:
            monkeypatch.setenv("ALL_PROXY", f"socks5h://{given}{address}")
            failure = desk.fails(remote(server, authority))
        assert server.connections == 0
    assert (failure.code, failure.retryable) == ("cloud-proxy-refused", False)
    assert (failure.may_have_acted, failure.attempts) == (False, 1)
    assert "canary" not in str(failure.error)
    assert "user:" not in str(failure.error)
    assert proxy.asked == []


@pytest.mark.parametrize("reply", [*range(1, 10), 255])
def test_every_code_of_refusal(desk: Desk, authority: Authority, reply: int) -> None:
    with RawServer(stream(*GOOD), tls=authority.context("far.example")).running() as server:
        proxy = SocksProxy(server.port, connected=bytes([5, reply]) + CONNECTED[2:])
        with proxy.running() as address:
            failure = desk.fails(remote(server, authority, proxy=f"socks5h://{address}"))
        assert server.connections == 0
    assert (failure.fault, failure.code) == (CloudFault.OUTAGE, "cloud-proxy-refused")
    assert failure.error["context"] == {"reply": reply}
    assert failure.retryable is (reply not in {2, 7, 8})
    assert not failure.may_have_acted


def sending(*replies: bytes) -> Callable[[Exchange], None]:
    """Answer each message with the next of the replies, and hang up."""

    def answer(exchange: Exchange) -> None:
        for reply in replies:
            exchange.sock.recv(4096)
            exchange.send(reply)

    return unread(answer)


@pytest.mark.parametrize(
    "replies",
    [
        (),
        (b"",),
        (b"\x05",),
        (b"\x04\x00",),
        (b"\x05\x01",),
        (b"\x05\x02",),  # a password was not offered
        (b"HTTP/1.1 400 Bad Request\r\n\r\n",),
        (b"\x05\x00", b""),
        (b"\x05\x00", b"\x05\x00\x00"),
        (b"\x05\x00", b"\x04\x5a\x00\x01\x00\x00\x00\x00\x00\x00"),
        (b"\x05\x00", b"\x05\x00\x00\x02\x00\x00\x00\x00\x00\x00"),
        (b"\x05\x00", b"\x05\x00\x00\x03\xffshort"),
        (b"\x05\x00", CONNECTED[:-1]),
    ],
    ids=str,
)
def test_a_proxy_that_speaks_something_else_or_hangs_up(
    desk: Desk, authority: Authority, replies: tuple[bytes, ...]
) -> None:
    with RawServer(sending(*replies)).running() as server:
        address = f"socks5h://127.0.0.1:{server.port}"
        failure = desk.fails(remote(server, authority, proxy=address))
    assert failure.fault is CloudFault.OUTAGE
    assert failure.code in {"cloud-proxy-refused", "cloud-interrupted"}
    assert not failure.may_have_acted


def test_what_comes_after_the_reply_is_the_destinations(desk: Desk, authority: Authority) -> None:
    """A proxy that answers as the destination meets TLS, which it cannot pass."""
    reply = CONNECTED + b"HTTP/1.1 200 OK\r\n\r\n"
    with RawServer(sending(b"\x05\x00", reply)).running() as server:
        address = f"socks5h://127.0.0.1:{server.port}"
        failure = desk.fails(remote(server, authority, proxy=address))
    assert failure.fault in {CloudFault.TLS, CloudFault.OUTAGE}
    assert not failure.may_have_acted


@pytest.mark.parametrize("replies", [(), (b"\x05\x00",), (b"\x05\x00", CONNECTED[:5])], ids=str)
def test_a_silent_proxy_ends_at_the_deadline_or_when_cancelled(
    desk: Desk, authority: Authority, replies: tuple[bytes, ...]
) -> None:
    def answer(exchange: Exchange) -> None:
        for reply in replies:
            exchange.sock.recv(4096)
            exchange.send(reply)
        hang(exchange)

    with RawServer(unread(answer)).running() as server:
        place = remote(server, authority, proxy=f"socks5h://127.0.0.1:{server.port}")
        assert desk.fails(place, deadline_s=0.5).code == "cloud-deadline"
        token = CancelToken()
        threading.Timer(0.2, token.cancel).start()
        assert desk.fails(place, cancel=token).code == "cloud-cancelled"
        quiet = remote(server, authority, proxy=f"socks5h://127.0.0.1:{server.port}", timeout_s=0.3)
        assert desk.fails(quiet).code == "cloud-silent"


def test_a_proxy_that_is_not_there(desk: Desk, authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = RawServer(stream(*GOOD))
    server._socket.close()
    failure = desk.fails(remote(server, authority, proxy=f"socks5h://127.0.0.1:{port}"))
    assert (failure.code, failure.may_have_acted) == ("cloud-unreachable", False)


FAR = Destination(name="far", url="https://far.example/v1", model="m")


@pytest.mark.parametrize(
    ("set_to", "scheme", "port"),
    [
        ({"socks": "http://10.0.0.1:1081"}, "socks5h", 1081),  # as macOS tells it
        ({"socks": "10.0.0.1"}, "socks5h", 1080),
        ({"all": "socks5://10.0.0.1"}, "socks5", 1080),
        ({"socks": "http://10.0.0.1", "https": "http://10.0.0.1"}, "http", 80),
    ],
)
def test_what_the_system_says(
    monkeypatch: pytest.MonkeyPatch, set_to: dict[str, str], scheme: str, port: int
) -> None:
    monkeypatch.setattr("urllib.request.getproxies", lambda: set_to)
    found = proxy_for(FAR)
    assert found is not None
    assert (found.scheme, found.host, found.port) == (scheme, "10.0.0.1", port)


@pytest.mark.parametrize("scheme", ["socks", "socks4", "socks4a", "ftp", "quic"])
def test_other_kinds_are_not_gone_around(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"all": f"{scheme}://u:canary@h:1"})
    with pytest.raises(FaultError) as caught:
        proxy_for(FAR)
    error = caught.value.fault.error
    assert error.code == "cloud-proxy-unsupported"
    assert "socks5h" in str(error.hint)
    assert "canary" not in str(error.to_dict())


def test_a_proxy_does_not_show_its_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"all": "socks5h://me:canary@h:1"})
    assert "canary" not in repr(proxy_for(FAR))
