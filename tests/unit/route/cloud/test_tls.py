"""Whom the client trusts, and by which way it goes."""

from __future__ import annotations

import datetime as dt
import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.route.cloud.servers import (
    GOOD,
    KEY,
    PROMPT,
    Authority,
    Desk,
    RawServer,
    at,
    hang,
    raw,
    stream,
    unread,
)

from edgewise.route.cloud import CloudFault
from edgewise.route.cloud.proxies import proxy_for
from edgewise.route.cloud.tls import trusting

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def refused(desk: Desk, context: ssl.SSLContext, ca_file: Path) -> str:
    with RawServer(stream(*GOOD), tls=context).running() as server:
        failure = desk.fails(at(server, ca_file, idempotent=True))
        assert (server.exchanges, server.connections) == ([], 1)
    assert (failure.fault, failure.code) == (CloudFault.TLS, "cloud-tls")
    assert not failure.may_have_acted
    return failure.message


def test_another_servers_certificate(desk: Desk, authority: Authority) -> None:
    said = refused(desk, authority.context("other.example"), authority.file)
    assert "another" in said


def test_an_expired_certificate(desk: Desk, authority: Authority) -> None:
    before = LONG_AGO - dt.timedelta(days=1)
    context = authority.context(not_after=LONG_AGO, not_before=before)
    assert "expired" in refused(desk, context, authority.file)


def test_a_certificate_that_is_not_valid_yet(desk: Desk, authority: Authority) -> None:
    later = dt.datetime.now(tz=dt.UTC) + dt.timedelta(days=300)
    context = authority.context(not_before=later, not_after=later + dt.timedelta(days=1))
    assert "not valid yet" in refused(desk, context, authority.file)


def test_an_authority_that_nobody_trusts(desk: Desk, authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path)
    assert "no authority" in refused(desk, stranger.context(), authority.file)


def test_a_server_that_signed_by_itself(desk: Desk, authority: Authority, tmp_path: Path) -> None:
    alone = Authority(tmp_path).ca
    key = tmp_path / "key.pem"
    alone.private_key_pem.write_to_path(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", key)
    assert "signed" in refused(desk, context, authority.file)


def test_a_server_that_speaks_no_tls(desk: Desk, authority: Authority) -> None:
    answer = unread(raw(b"HTTP/1.1 302 Sign in\r\n\r\n" * 9, then=hang))
    with RawServer(answer).running() as server:
        url = server.url.replace("http:", "https:")
        failure = desk.fails(at(server, authority.file, url=url))
    assert failure.fault is CloudFault.TLS
    assert "sign in to the network" in failure.error["hint"]


def test_the_private_authority_is_the_only_one(
    desk: Desk, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(stranger.file))
    assert refused(desk, stranger.context(), authority.file)


def test_the_environments_authority(
    desk: Desk, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    with RawServer(stream(*GOOD), tls=authority.context()).running() as server:
        assert desk.answers(at(server)).text == "Hello"


@pytest.mark.parametrize("by", ["ca_file", "SSL_CERT_FILE"])
def test_certificates_that_cannot_be_read(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    missing = tmp_path / "missing.pem"
    if by == "SSL_CERT_FILE":
        monkeypatch.setenv(by, str(missing))
    server = RawServer(stream(*GOOD))
    url = server.url.replace("http:", "https:")
    failure = desk.fails(at(server, missing if by == "ca_file" else None, url=url))
    server._socket.close()
    assert failure.fault is CloudFault.TLS
    assert failure.code in {"cloud-ca-unreadable", "ca-bundle-unreadable"}
    assert not failure.may_have_acted


@pytest.mark.parametrize("private", [False, True])
def test_verification_is_on(authority: Authority, private: bool) -> None:
    context = trusting(str(authority.file) if private else None)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_no_key_log_is_written(
    desk: Desk, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "keys.log"
    monkeypatch.setenv("SSLKEYLOGFILE", str(log))
    with RawServer(stream(*GOOD), tls=authority.context()).running() as server:
        desk.answers(at(server, authority.file))
    assert not log.exists()


def test_a_stream_without_framing_that_is_cut_under_tls_is_broken(
    desk: Desk, authority: Authority
) -> None:
    # Whoever cuts a connection on the way can make an unframed answer look whole: the end has to
    # be announced within TLS.
    def cut(exchange: Any) -> None:
        stream(*GOOD[:3])(exchange)
        exchange.sock.shutdown(socket.SHUT_RDWR)

    with RawServer(cut, tls=authority.context()).running() as server:
        failure = desk.fails(at(server, authority.file))
    assert failure.fault is CloudFault.BROKEN_ANSWER
    assert failure.partial_text == "Hello"


# Proxies.


class TunnelProxy:
    """A proxy that opens tunnels to one port, or answers as it is told."""

    def __init__(self, port: int, *, reply: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> None:
        self.heads: list[bytes] = []
        self.passed = b""
        self._target = port
        self._reply = reply

    @contextmanager
    def running(self, tls: ssl.SSLContext | None = None) -> Iterator[str]:
        answer = unread(self._serve)
        with RawServer(answer, tls=tls).running() as server:
            yield server.url.removesuffix("/v1")

    def _serve(self, exchange: Any) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += exchange._some()
        self.heads.append(head)
        exchange.send(self._reply)
        if b" 200 " not in self._reply:
            return
        with socket.create_connection(("127.0.0.1", self._target)) as far:
            self._pass(exchange.sock, far)

    def _pass(self, near: Any, far: socket.socket) -> None:
        while True:
            buffered = isinstance(near, ssl.SSLSocket) and near.pending()
            ready = [near] if buffered else select.select([near, far], [], [], 20)[0]
            for source in ready:
                data = source.recv(1 << 16)
                if not data:
                    return
                self.passed += data if source is near else b""
                (far if source is near else near).sendall(data)


def remote(server: RawServer, authority: Authority, **fields: Any) -> Any:
    """Return a destination that is no loopback: only the proxy knows where it is."""
    url = f"https://far.example:{server.port}/v1"
    return at(server, authority.file, url=url, **fields)


@pytest.mark.parametrize("by", ["policy", "HTTPS_PROXY", "all_proxy"])
def test_a_proxy_sees_the_address_and_nothing_else(
    desk: Desk, authority: Authority, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    context = authority.context("far.example")
    with RawServer(stream(*GOOD), tls=context).running() as server:
        proxy = TunnelProxy(server.port)
        with proxy.running() as address:
            if by != "policy":
                monkeypatch.setenv(by, address.replace("http://", "http://user:pa%20ss@"))
            fields = {"proxy": address} if by == "policy" else {}
            assert desk.answers(remote(server, authority, **fields)).text == "Hello"
    (head,) = proxy.heads
    assert head.startswith(f"CONNECT far.example:{server.port} HTTP/1.1\r\n".encode())
    assert (b"Proxy-Authorization: Basic dXNlcjpwYSBzcw==" in head) == (by != "policy")
    for word in (PROMPT, KEY):
        assert word.encode() not in head + proxy.passed


def test_a_proxy_that_is_reached_by_tls(
    desk: Desk, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    context = authority.context("far.example")
    with (
        RawServer(stream(*GOOD), tls=context).running() as server,
        TunnelProxy(server.port).running(authority.context()) as address,
    ):
        found = desk.answers(remote(server, authority, proxy=address))
    assert found.text == "Hello"


@pytest.mark.parametrize(
    ("reply", "fault", "code"),
    [
        (b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n", CloudFault.OUTAGE, "cloud-proxy-refused"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", CloudFault.OUTAGE, "cloud-proxy-refused"),
        (b"nonsense\r\n\r\n", CloudFault.OUTAGE, "cloud-proxy-refused"),
        (b"HTTP/1.1 200 OK\r\n\r\nand more", CloudFault.OUTAGE, "cloud-proxy-refused"),
        (b"HTTP/1.1 511 Sign in\r\nContent-Length: 0\r\n\r\n", CloudFault.CAPTIVE_PORTAL,
         "cloud-network-sign-in"),
    ],
)  # fmt: skip
def test_a_proxy_that_refuses(
    desk: Desk, authority: Authority, reply: bytes, fault: CloudFault, code: str
) -> None:
    with RawServer(stream(*GOOD), tls=authority.context()).running() as server:
        with TunnelProxy(server.port, reply=reply).running() as address:
            failure = desk.fails(remote(server, authority, proxy=address))
        assert server.connections in {0, 1}
        assert server.exchanges == []
    assert (failure.fault, failure.code) == (fault, code)
    assert not failure.may_have_acted


def test_a_proxy_of_another_kind_is_not_gone_around(
    desk: Desk, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks4://127.0.0.1:9")
    with RawServer(stream(*GOOD), tls=authority.context()).running() as server:
        failure = desk.fails(remote(server, authority))
    assert (failure.code, server.connections) == ("cloud-proxy-unsupported", 0)


def test_where_a_proxy_is_used(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    server = RawServer(stream(*GOOD))
    far = remote(server, authority)
    server._socket.close()
    assert proxy_for(far) is None
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    found = proxy_for(far)
    assert found is not None
    assert (found.host, found.port, found.tls) == ("proxy.example", 3128, False)
    assert proxy_for(at(server)) is None  # this machine is never reached through one
    monkeypatch.setenv("NO_PROXY", "other.example,far.example")
    assert proxy_for(far) is None
