"""Sockets of the cloud tier: names, connections and TLS, none of which waits for ever.

Every step ends at the ask's deadline, when it is cancelled, or after a silence. This is the only
module on the path of a request that makes a socket.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar

from edgewise.route.cloud import faults
from edgewise.route.cloud.faults import FaultError
from edgewise.route.cloud.waiting import Span

__all__ = ["PlainWire", "TlsWire", "Wire", "connect"]

_PIECE_BYTES = 64 << 10
_Result = TypeVar("_Result")


class Wire(Protocol):
    """A stream of bytes to a peer."""

    def read(self, most: int) -> bytes:
        """Return what came, at most ``most`` bytes; empty at the end."""

    def write(self, data: bytes) -> None:
        """Send all of it."""

    def close(self) -> None:
        """Close the connection at once. May be called twice."""


class PlainWire:
    """A connected socket.

    Args:
        sock: It does not block.
        span: The time there is.
        silence_s: Longest wait for a byte, seconds.
    """

    def __init__(self, sock: socket.socket, span: Span, silence_s: float) -> None:
        self._sock = sock
        self._span = span
        self._silence_s = silence_s

    def read(self, most: int) -> bytes:
        """See :class:`Wire`.

        Raises:
            FaultError: cancelled, past the deadline, or silence.
            OSError: the connection broke.
        """
        while True:
            self._wait(writing=False)
            with contextlib.suppress(BlockingIOError, InterruptedError):
                return self._sock.recv(most)

    def write(self, data: bytes) -> None:
        """See :class:`Wire`.

        Raises:
            FaultError: cancelled, past the deadline, or the peer takes nothing any more.
            OSError: the connection broke.
        """
        rest = memoryview(data)
        while rest:
            self._wait(writing=True)
            with contextlib.suppress(BlockingIOError, InterruptedError):
                rest = rest[self._sock.send(rest[:_PIECE_BYTES]) :]

    def close(self) -> None:
        """See :class:`Wire`."""
        self._sock.close()

    def _wait(self, *, writing: bool) -> None:
        doing = "sending the request" if writing else "waiting for the server"
        self._span.until_ready(self._sock, writing=writing, most_s=self._silence_s, doing=doing)


class TlsWire:
    """TLS over another wire, which may be TLS itself (a proxy that is reached by https).

    Raises:
        FaultError: cancelled, past the deadline, or silence.
        ssl.SSLError: the peer is not trusted, or speaks no TLS.
        OSError: the connection broke.
    """

    def __init__(self, inner: Wire, context: ssl.SSLContext, host: str) -> None:
        self._inner = inner
        self._coming = ssl.MemoryBIO()
        self._going = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._coming, self._going, server_hostname=host)
        self._turn(self._tls.do_handshake)

    def read(self, most: int) -> bytes:
        """See :class:`Wire`. An end that the peer did not announce is an error."""
        try:
            return self._turn(lambda: self._tls.read(most))
        except ssl.SSLZeroReturnError:
            return b""
        except ssl.SSLEOFError:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was cut") from None

    def write(self, data: bytes) -> None:
        """See :class:`Wire`."""
        rest = memoryview(data)
        while rest:
            piece = rest[:_PIECE_BYTES]
            rest = rest[self._turn(lambda piece=piece: self._tls.write(piece)) :]  # type: ignore[misc]

    def close(self) -> None:
        """See :class:`Wire`."""
        self._inner.close()

    def _turn(self, step: Callable[[], _Result]) -> _Result:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush()
                data = self._inner.read(_PIECE_BYTES)
                if data:
                    self._coming.write(data)
                else:
                    self._coming.write_eof()
            except ssl.SSLError:
                with contextlib.suppress(OSError, FaultError):  # the alert, if it still gets there
                    self._flush()
                raise
            else:
                self._flush()
                return result

    def _flush(self) -> None:
        if self._going.pending:
            self._inner.write(self._going.read())


def connect(
    host: str, port: int, span: Span, *, most_s: float, silence_s: float, loopback: bool
) -> PlainWire:
    """Return a connection.

    Args:
        host: Name or address.
        port: Port.
        span: The time there is.
        most_s: Longest time for the name and the connection together, seconds.
        silence_s: Longest wait for a byte later on, seconds.
        loopback: Whether only addresses of this machine may be used, whatever the name says.

    Raises:
        FaultError: the name is unknown, or no address of it takes the connection.
    """
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    addresses = _addresses(host, port, span, most_s)
    if loopback:
        addresses = [one for one in addresses if ipaddress.ip_address(one[1][0]).is_loopback]
    fault = faults.unreachable(where, None)
    for place, (family, address) in enumerate(addresses):
        share_s = most_s / (len(addresses) - place)
        try:
            sock = _connected(family, address, span, share_s)
        except OSError as error:
            fault = faults.unreachable(where, error)
        except FaultError as error:
            span.check()
            fault = error.fault
        else:
            return PlainWire(sock, span, silence_s)
    raise FaultError(fault)


def _addresses(
    host: str, port: int, span: Span, most_s: float
) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    try:
        found = span.run(
            lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM),
            most_s=most_s,
            doing=f"looking up {host}",
        )
    except (OSError, UnicodeError):
        raise FaultError(faults.nameless(host)) from None
    # The fields beyond address and port (flow and scope of IPv6) belong to the address.
    return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc]


def _connected(
    family: socket.AddressFamily, address: tuple[str, int], span: Span, most_s: float
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun = sock.connect_ex(address)
        _require(0 if begun == errno.EINPROGRESS else begun)
        span.until_ready(sock, writing=True, most_s=most_s, doing="connecting")
        _require(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    except BaseException:
        sock.close()
        raise
    return sock


def _require(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))
