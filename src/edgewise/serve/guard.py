"""Who may speak to the server: by the Host, the Origin and the token of a request.

A web page that a user visits can send requests to a server on the same machine. It cannot choose
the Host header (so a name that was rebound to 127.0.0.1 is seen), and it cannot leave the Origin
header out. Both are checked before anything else is read.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from edgewise.errors import InputError

__all__ = ["Guard", "is_loopback", "valid_origin"]

_PORT = re.compile(r":\d{1,5}\Z")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")
_TOKEN_CHARACTERS_MIN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The rules of one server.

    Attributes:
        host: What the server listens on, as it was given.
        token: What a client has to know; ``None`` lets every local process in.
        origins: Web origins that may call.
    """

    host: str
    token: str | None = None
    origins: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.token is None:
            if not is_loopback(self.host):
                raise InputError(
                    "token-required",
                    f"{self.host} can be reached from other machines, and there is no token",
                    hint="set EDGEWISE_API_TOKEN, give --token-file, or listen on 127.0.0.1",
                )
            return
        if len(self.token) < _TOKEN_CHARACTERS_MIN or not self.token.isascii():
            raise InputError(
                "token-weak",
                f"the token has fewer than {_TOKEN_CHARACTERS_MIN} characters, or others than "
                "ASCII's",
                hint='make one: python -c "import secrets; print(secrets.token_urlsafe(32))"',
            )

    def check_host(self, host: str | None) -> None:
        """Refuse a request for another server.

        Raises:
            InputError: the Host header is missing, or names neither this machine nor the
                address that the server listens on.
        """
        name = _host_name(host or "")
        if name and (name == self.host.lower() or is_loopback(name) or self._own_address(name)):
            return
        raise InputError(
            "host-refused",
            "the Host header does not name this server",
            hint=f"call it by {self.host} or localhost",
        )

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse what a web page sends, unless its origin was allowed.

        Raises:
            InputError: the request comes from a web page that may not call.
        """
        origin = headers.get("origin")
        cross = headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
        if (origin is None and not cross) or (origin is not None and origin in self.origins):
            return
        raise InputError(
            "origin-refused",
            "web pages may not call this server",
            hint="allow the page's origin: edgewise serve --allow-origin",
        )

    def check_token(self, authorization: str | None) -> None:
        """Refuse a request without the token, where there is one.

        Raises:
            InputError: the token is missing or wrong.
        """
        if self.token is None:
            return
        scheme, _, given = (authorization or "").partition(" ")
        known = hmac.compare_digest(given.strip().encode(), self.token.encode())
        if scheme.lower() != "bearer" or not known:
            raise InputError(
                "token-refused",
                "the token is missing or wrong",
                hint="send the header Authorization: Bearer TOKEN",
            )

    def check_page(self, headers: Mapping[str, str], peer: str, *, sends: bool) -> None:
        """Refuse what no browser on this machine sends from this server's own pages.

        A page has no token: whoever opens one knows its address. A form says where it comes from.

        Args:
            headers: The request's headers; the Host header has been checked.
            peer: Address of the other side.
            sends: Whether it sends something, such as a form.

        Raises:
            InputError: the other side is on another machine (``page-refused``), or the request
                comes from another page (``origin-refused``).
        """
        host = headers.get("host", "").lower()
        if not is_loopback(peer) or not is_loopback(_host_name(host)):
            raise InputError(
                "page-refused",
                "this page is for browsers on this machine only",
                hint="open it on the machine that the server runs on, by 127.0.0.1",
            )
        origin = headers.get("origin")
        other = headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
        if other or (origin != f"http://{host}" if sends else origin is not None):
            raise InputError(
                "origin-refused",
                "this page takes nothing from other pages",
                hint="open the question itself in a browser and answer there",
            )

    def _own_address(self, name: str) -> bool:
        """Whether it listens everywhere and is called by an address: that cannot be rebound."""
        try:
            everywhere = ipaddress.ip_address(self.host).is_unspecified
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return everywhere


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own and reached from nowhere else."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def valid_origin(text: str) -> str:
    """Return a web origin as browsers write it.

    Raises:
        InputError: it is none.
    """
    origin = text.rstrip("/").lower()
    if not _ORIGIN.fullmatch(origin):
        raise InputError(
            "origin-invalid",
            f"{text!r} is no web origin",
            hint="write scheme and host, such as https://app.example or http://localhost:3000",
        )
    return origin


def _host_name(host: str) -> str:
    name = _PORT.sub("", host).lower()
    if name.startswith("[") and name.endswith("]"):
        return name[1:-1]
    return name
