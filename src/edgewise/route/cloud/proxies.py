"""Which proxy leads to a destination, if one does."""

from __future__ import annotations

import base64
import urllib.request
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from edgewise.route.cloud import faults
from edgewise.route.cloud.faults import FaultError
from edgewise.route.destinations import PROXY_SCHEMES, Destination

__all__ = ["Proxy", "proxy_for"]

_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A proxy that is asked for a tunnel.

    Attributes:
        scheme: How it is spoken to: ``http``, ``https``, ``socks5`` or ``socks5h``.
        host: Its host.
        port: Its port.
        user: Whom it knows here; shown nowhere. ``None`` where it asks for nobody.
        password: The password; shown nowhere.
    """

    scheme: str
    host: str
    port: int
    user: str | None = field(default=None, repr=False)
    password: str = field(default="", repr=False)

    @property
    def tls(self) -> bool:
        """Return whether the connection to it is TLS itself."""
        return self.scheme == "https"

    @property
    def socks(self) -> bool:
        """Return whether it speaks SOCKS of version 5."""
        return self.scheme in {"socks5", "socks5h"}

    @property
    def authorization(self) -> bytes | None:
        """Return the value of ``Proxy-Authorization``."""
        if self.user is None:
            return None
        return b"Basic " + base64.b64encode(f"{self.user}:{self.password}".encode())


def proxy_for(destination: Destination) -> Proxy | None:
    """Return the proxy for a destination, ``None`` for a direct connection.

    The destination's own comes first, then the environment's (``HTTPS_PROXY``, ``ALL_PROXY`` and
    ``NO_PROXY``) or, where it names none, the system's. This machine is never reached through one.

    Raises:
        FaultError: the proxy is of a kind that cannot be used. It is not gone around.
    """
    if destination.is_loopback:
        return None
    if destination.proxy is not None:
        return _read(destination.proxy)
    found = urllib.request.getproxies()
    address = found.get("https") or found.get("all") or _socks(found.get("socks"))
    if not address or urllib.request.proxy_bypass(destination.authority):
        return None
    return _read(address)


def _socks(address: str | None) -> str | None:
    """Return the address under which a SOCKS proxy is meant: macOS names it with ``http``."""
    if not address:
        return None
    bare = address.removeprefix("http://")
    return bare if "://" in bare else f"socks5h://{bare}"


def _read(address: str) -> Proxy:
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        port = parts.port
    except ValueError:
        port = None
        parts = parts._replace(netloc="")
    if parts.scheme not in PROXY_SCHEMES or not parts.hostname:
        raise FaultError(faults.proxy_unsupported(parts.scheme if parts.hostname else "unreadable"))
    return Proxy(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        user=None if parts.username is None else unquote(parts.username),
        password=unquote(parts.password or ""),
    )
