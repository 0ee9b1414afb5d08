"""Destinations outside the device: the allow-list of a policy, one entry each."""

from __future__ import annotations

import re
from enum import StrEnum
from urllib.parse import SplitResult, urlsplit

import msgspec

from edgewise.core.canonical import digest_of
from edgewise.errors import InputError

__all__ = ["PROXY_SCHEMES", "Basis", "Destination", "Price", "Terms"]

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
PROXY_SCHEMES = frozenset({"http", "https", "socks5", "socks5h"})
_PORTS = {"https": 443, "http": 80}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ADDRESS = re.compile(r"[!-\[\]-~]{1,2048}")  # printable ASCII without space and backslash
_HOST = re.compile(r"[0-9a-z][0-9a-z._-]*|[0-9a-f:.]+")
_MODEL = re.compile(r"[!-~]{1,256}")


class Basis(StrEnum):
    """On what ground data may be processed at a destination.

    ``NONE`` is what an entry has that declares none; nothing is sent there.
    """

    CONSENT = "consent"
    CONTRACT = "contract"
    LEGITIMATE_INTEREST = "legitimate-interest"
    LEGAL_OBLIGATION = "legal-obligation"
    NONE = "none"


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Declared price of a destination, in units of ``currency`` per million tokens."""

    currency: str
    input_per_million: float
    output_per_million: float
    daily_limit: float

    def __post_init__(self) -> None:
        amounts = (self.input_per_million, self.output_per_million, self.daily_limit)
        if not all(0 <= amount < 1e12 for amount in amounts):
            raise _invalid("its price", "prices and the limit are amounts of 0 or more")
        if not _NAME.fullmatch(self.currency):
            raise _invalid("its price", "it needs a currency, such as EUR")


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user is told of a destination and agrees to: who, where, what, what for and how long.

    ``fields`` are those of a request that the policy lets leave for it. Timeouts, prices and the
    name of a key are no part of it. See :class:`Destination`.
    """

    name: str
    url: str
    model: str
    purpose: str
    region: str
    retention_days: int | None
    basis: Basis
    fields: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the canonical form."""
        return digest_of(self)

    def differences(self, now: Terms) -> str:
        """Return in words what of these terms is another now; empty where nothing is."""
        before, after = (msgspec.to_builtins(terms) for terms in (self, now))
        return "; ".join(
            f"{label} was {_shown(before[field])}, is {_shown(after[field])}"
            for field, label in _LABELS.items()
            if before[field] != after[field]
        )


_LABELS = {
    "name": "the name",
    "url": "the address",
    "model": "the model",
    "purpose": "the purpose",
    "region": "the region",
    "retention_days": "the days it is kept",
    "basis": "the basis",
    "fields": "what may be sent",
}


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(value) or "nothing"
    return "undeclared" if value is None or value == "" else repr(value)


class Destination(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that may be given data.

    Attributes:
        name: Name that rules, consents and permits refer to: 1 to 64 letters, digits, dots, dashes
            and underscores.
        url: Base address of its OpenAI-compatible API; ``https``, or ``http`` on loopback. A name
            beyond ASCII is written in its ASCII form (``xn--…``), which shows lookalikes.
        model: Model that is asked for there.
        purpose: Why data goes there, in words the user is shown.
        region: Where it is processed, as declared by its operator.
        retention_days: How long it is kept there, as declared; ``None`` when nobody declared it.
        basis: On what ground.
        secret: Name of the key, in the system's keyring or an environment variable.
        timeout_s: Longest silence while an answer is awaited, seconds.
        connect_timeout_s: Longest time to connect, seconds.
        retries: Further attempts; only where ``idempotent``.
        idempotent: Whether the server honours ``Idempotency-Key``.
        ca_file: Certificates of a private authority, as PEM.
        proxy: Address of a proxy, without credentials; ``None`` takes the environment's.
        max_tokens_field: Under which name the server takes the limit of tokens: ``max_tokens``,
            or ``max_completion_tokens`` as OpenAI's reasoning models want it.
        price: What it costs and how much may be spent a day.
    """

    name: str
    url: str
    model: str
    purpose: str = ""
    region: str = ""
    retention_days: int | None = None
    basis: Basis = Basis.NONE
    secret: str | None = None
    timeout_s: float = 60.0
    connect_timeout_s: float = 10.0
    retries: int = 2
    idempotent: bool = False
    ca_file: str | None = None
    proxy: str | None = None
    max_tokens_field: str = "max_tokens"
    price: Price | None = None

    def __post_init__(self) -> None:
        who = f"the destination {self.name[:80]!r}"
        if not _NAME.fullmatch(self.name) or not _MODEL.fullmatch(self.model):
            raise _invalid(who, "it needs a name of letters and digits, and a model")
        if self.secret is not None and not _NAME.fullmatch(self.secret):
            raise _invalid(who, "its secret is the name of a key: letters, digits, ., - and _")
        self._check_address(who)
        self._check_proxy(who)
        if not (0 < self.timeout_s <= 3600 and 0 < self.connect_timeout_s <= 600):
            raise _invalid(who, "its timeouts are above 0 and at most an hour (10 minutes)")
        if not 0 <= self.retries <= 10:
            raise _invalid(who, "it is tried again 0 to 10 times")
        if self.retention_days is not None and self.retention_days < 0:
            raise _invalid(who, "its retention_days is negative")
        if self.ca_file == "":
            raise _invalid(who, "its ca_file names no file")
        if self.max_tokens_field not in {"max_tokens", "max_completion_tokens"}:
            raise _invalid(who, "max_tokens_field is max_tokens or max_completion_tokens")

    def _check_address(self, who: str) -> None:
        parts = _split(self.url)
        if parts is None or "@" in parts.netloc or "?" in self.url or "#" in self.url:
            raise _invalid(who, "its url is not a plain address of a server")
        local = parts.hostname in _LOOPBACK
        if parts.scheme != "https" and not (parts.scheme == "http" and local):
            raise _invalid(who, "its url is not https; http is for this machine only")

    def _check_proxy(self, who: str) -> None:
        if self.proxy is None:
            return
        parts = _split(self.proxy)
        if parts is None or parts.scheme not in PROXY_SCHEMES:
            raise _invalid(who, "its proxy is none of http, https, socks5h and socks5")
        if "@" in parts.netloc:
            raise _invalid(who, "credentials of a proxy do not belong in a policy; set HTTPS_PROXY")

    def terms(self, fields: tuple[str, ...]) -> Terms:
        """Return what a user agrees to, where these fields of a request leave for it."""
        return Terms(
            name=self.name,
            url=self.url,
            model=self.model,
            purpose=self.purpose,
            region=self.region,
            retention_days=self.retention_days,
            basis=self.basis,
            fields=tuple(sorted(fields)),
        )

    @property
    def scheme(self) -> str:
        """Return ``https`` or ``http``."""
        return urlsplit(self.url).scheme

    @property
    def host(self) -> str:
        """Return the host, in lower case and without brackets."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Return the port, also where the url leaves it out."""
        return urlsplit(self.url).port or _PORTS[self.scheme]

    @property
    def authority(self) -> str:
        """Return ``host:port``, with brackets around an address of IPv6."""
        return f"{self._shown_host}:{self.port}"

    @property
    def host_header(self) -> str:
        """Return what the ``Host`` header says: without the port where it is the scheme's own."""
        return self._shown_host if self.port == _PORTS[self.scheme] else self.authority

    @property
    def is_loopback(self) -> bool:
        """Return whether it is on this machine."""
        return self.host in _LOOPBACK

    @property
    def origin(self) -> str:
        """Return scheme, host and port: where a permit allows a connection to."""
        return f"{self.scheme}://{self.authority}"

    @property
    def _shown_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def _split(address: str) -> SplitResult | None:
    """Return the parts of an address, ``None`` where it has none or a reader may err about it."""
    if not _ADDRESS.fullmatch(address):
        return None
    try:
        parts = urlsplit(address)
        return parts if parts.port != 0 and _HOST.fullmatch(parts.hostname or "") else None
    except ValueError:
        return None


def _invalid(what: str, why: str) -> InputError:
    return InputError(
        "destination-invalid", f"{what} cannot be used: {why}", hint="mend it in the policy"
    )
