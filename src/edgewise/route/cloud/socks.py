"""SOCKS of version 5: a proxy is asked for a connection, and looks the name up itself.

RFC 1928, with names and passwords of RFC 1929. No name is looked up on this device: a destination's
name goes to the proxy as it is, for ``socks5`` as for ``socks5h``. Nothing beyond the proxy's own
reply is read, so the first byte that follows is the destination's.
"""

from __future__ import annotations

import ipaddress
from typing import NoReturn

from edgewise.route.cloud import faults
from edgewise.route.cloud.faults import FaultError
from edgewise.route.cloud.proxies import Proxy
from edgewise.route.cloud.wire import Wire

__all__ = ["open_tunnel"]

_VERSION, _CONNECT = 5, 1
_NOBODY, _PASSWORD, _NONE_OF_THEM = 0, 2, 0xFF
_IPV4, _NAME, _IPV6 = 1, 3, 4
_FIELD_BYTES_MAX = 255
# What it answers with, and whether the same may succeed later.
_REPLIES = {
    1: ("has a general failure", True),
    2: ("does not allow it", False),
    3: ("cannot reach the network", True),
    4: ("cannot reach the host, or does not know its name", True),
    5: ("was refused the connection", True),
    6: ("found the way too long", True),
    7: ("does not open connections", False),
    8: ("takes no such address", False),
}


def open_tunnel(wire: Wire, proxy: Proxy, host: str, port: int) -> None:
    """Have the proxy connect; afterwards the wire is one to the destination.

    Args:
        wire: Connected to the proxy.
        proxy: The proxy.
        host: Name or address of the destination.
        port: Its port.

    Raises:
        FaultError: it does not, or time is over.
        OSError: the connection broke.
    """
    known = proxy.user is not None
    methods = bytes([_NOBODY, _PASSWORD] if known else [_NOBODY])
    wire.write(bytes([_VERSION, len(methods)]) + methods)
    version, method = _take(wire, 2)
    if version != _VERSION:
        _refused("speaks no SOCKS of version 5")
    if method == _PASSWORD and known:
        _sign_in(wire, proxy)
    elif method == _NONE_OF_THEM:
        _refused("wants to know who asks, in a way that is not set here", again=False)
    elif method != _NOBODY:
        _refused("chose what was not offered")
    wire.write(bytes([_VERSION, _CONNECT, 0]) + _address(host) + port.to_bytes(2))
    version, reply, _, kind = _take(wire, 4)
    if version != _VERSION:
        _refused("speaks no SOCKS of version 5")
    if reply:
        words, again = _REPLIES.get(reply, ("gives a reason that nobody knows", True))
        _refused(words, reply=reply, again=again)
    # Where it connected from: it has to be read, and says nothing that is of use.
    if kind not in {_IPV4, _NAME, _IPV6}:
        _refused("gives an address of no known kind")
    _take(wire, {_IPV4: 4, _IPV6: 16}.get(kind) or _take(wire, 1)[0])
    _take(wire, 2)


def _sign_in(wire: Wire, proxy: Proxy) -> None:
    assert proxy.user is not None
    said = b"\x01"
    for part in (proxy.user.encode(), proxy.password.encode()):
        if not 1 <= len(part) <= _FIELD_BYTES_MAX:
            _refused("takes a user and a password of 1 to 255 bytes each", again=False)
        said += bytes([len(part)]) + part
    wire.write(said)
    _, failed = _take(wire, 2)
    if failed:
        _refused("does not know the user or the password", again=False)


def _address(host: str) -> bytes:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        name = host.encode()
        if len(name) > _FIELD_BYTES_MAX:
            _refused("takes no name of more than 255 bytes", again=False)
        return bytes([_NAME, len(name)]) + name
    return bytes([_IPV4 if found.version == 4 else _IPV6]) + found.packed


def _take(wire: Wire, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = wire.read(size - len(data))
        if not piece:
            _refused("hung up")
        data += piece
    return data


def _refused(said: str, *, reply: int | None = None, again: bool = True) -> NoReturn:
    raise FaultError(faults.socks_refused(said, reply=reply, retryable=again))
