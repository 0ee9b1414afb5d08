"""Detectors of addresses: of mail, of machines, and of the web where they carry credentials."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from edgewise.route.minimise.folding import Folded
from edgewise.route.minimise.spans import Confidence, Kind, Span

__all__ = ["Emails", "MachineAddresses", "Urls"]

_LOCAL_MAX, _DOMAIN_MAX = 64, 253  # RFC 5321, section 4.5.3.1
_LOCAL_MARKS = frozenset("!#$%'*+-.^_`~")
_SPELT_AT = re.compile(
    r"[ ]{0,2}(?:[\[({<][ ]?(?:at|arroba|arobase|chiocciola|apestaartje|\u00e4t)[ ]?[\])}>]"
    r"|(?-i:[ ]AT[ ]))[ ]{0,2}",
    re.IGNORECASE,
)
_SPELT_DOT = (
    r"(?:[ ]?[\[({<][ ]?(?:dot|punkt|point|punto|ponto|punt|\.)[ ]?[\])}>][ ]?"
    r"|[ ](?:dot|DOT)[ ])"
)
_LABEL = r"[^\W_](?:[^\W_]|-(?=[^\W_]|-)){0,62}"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL}){{0,20}}")
_SPELT_DOMAIN = re.compile(rf"{_LABEL}(?:(?:\.|{_SPELT_DOT}){_LABEL}){{0,20}}")
_LETTERS = re.compile(r"[^\W\d_]{2,63}(?=\d)")
_LITERAL = re.compile(r"\[(?:IPv6:)?[0-9A-Fa-f:.]{2,45}\]")
_ROLES = {"git", "hg", "svn"}  # the user part of every address of a repository


class Emails:
    """Addresses of mail, also spelt out as ``(at)`` and ``[dot]``."""

    name = "emails"
    kinds = (Kind.EMAIL,)
    limits = (
        "an e-mail address written in words, split over lines, or without a domain is not found"
    )

    def find(self, text: Folded) -> Iterator[Span]:
        """Yield the addresses of a text."""
        at = text.text.find("@")
        while at >= 0:
            local = _local_start(text.text, at)
            end = _domain_end(text.text, at + 1)
            if local < at and end is not None and not _is_other(text.text, local, at, end):
                yield self._span(text, local, end, Confidence.LIKELY, "form")
            at = text.text.find("@", at + 1)
        for match in _SPELT_AT.finditer(text.text):
            local = _local_start(text.text, match.start())
            domain = _SPELT_DOMAIN.match(text.text, match.end(), match.end() + 2 * _DOMAIN_MAX)
            if local == match.start() or domain is None:
                continue
            plain = re.sub(_SPELT_DOT, ".", domain[0])
            if _top_level(plain):
                yield self._span(text, local, domain.end(), Confidence.LIKELY, "form, spelt out")

    @staticmethod
    def _span(text: Folded, start: int, end: int, confidence: Confidence, by: str) -> Span:
        plain = re.sub(_SPELT_DOT, ".", _SPELT_AT.sub("@", text.text[start:end]))
        return text.span(
            start,
            end,
            Kind.EMAIL,
            confidence=confidence,
            checked_by=by,
            identity=plain.casefold(),
        )


def _local_start(text: str, at: int) -> int:
    if at and text[at - 1] == '"':
        opened = text.rfind('"', max(0, at - _LOCAL_MAX), at - 1)
        return at if opened < 0 or "\n" in text[opened:at] else opened
    start = at
    while start and at - start < _LOCAL_MAX:
        before = text[start - 1]
        if not (before.isalnum() or before in _LOCAL_MARKS):
            break
        start -= 1
    while start < at and text[start] in ".'`*_~-#!":  # quotation and emphasis around it
        start += 1
    return start


def _domain_end(text: str, start: int) -> int | None:
    literal = _LITERAL.match(text, start)
    if literal:
        return literal.end()
    domain = _DOMAIN.match(text, start, start + _DOMAIN_MAX)
    if domain is None:
        return None
    if _top_level(domain[0]):
        return domain.end()
    head, _, top = domain[0].rpartition(".")
    letters = _LETTERS.match(top)  # a number may follow without a space
    return start + len(head) + 1 + letters.end() if head and letters else None


def _top_level(domain: str) -> bool:
    head, _, top = domain.rpartition(".")
    named = top.isalpha() or top.casefold().startswith("xn--")
    return bool(head) and len(top) >= 2 and named


def _is_other(text: str, local: int, at: int, end: int) -> bool:
    """Return whether it is the user part of a URL, or of a repository's address."""
    if text.endswith("://", 0, local):
        return True
    return text[local:at].lower() in _ROLES and text.startswith((":", "/"), end)


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{1,20}\Z")
_URL_REST = re.compile(r"[^\s\"'<>`]{0,4096}")


class Urls:
    """Web and database addresses with a user or password in them; they are replaced whole."""

    name = "urls"
    kinds = (Kind.URL,)
    limits = "an identifier in the path of a web address is found only where its own form shows it"

    def find(self, text: Folded) -> Iterator[Span]:
        """Yield the addresses of a text that carry credentials."""
        at = text.text.find("://")
        while at >= 0:
            rest = _URL_REST.match(text.text, at + 3)
            assert rest is not None
            scheme = _SCHEME.search(text.text[max(0, at - 21) : at])
            authority = re.split(r"[/?#]", rest[0], maxsplit=1)[0]
            user, sign, host = authority.rpartition("@")
            name, colon, password = user.partition(":")
            secret = bool(colon and password) or (
                bool(name) and name.lower() not in {*_ROLES, "www", "anonymous"}
            )
            if scheme and sign and host and secret:
                end = at + 3 + len(rest[0].rstrip(".,;:!?)]}*"))
                yield text.span(
                    at - len(scheme[0]),
                    end,
                    Kind.URL,
                    confidence=Confidence.LIKELY,
                    checked_by="form",
                    identity=text.text[at - len(scheme[0]) : end],
                )
                at = end - 1
            at = text.text.find("://", at + 1)


_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]{2,39}(?:\d{1,3}(?:\.\d{1,3}){3})?(?![\w:]|\.\w)")
_MAC = re.compile(
    r"(?<![\w:\-])[0-9A-Fa-f]{2}([:\-])[0-9A-Fa-f]{2}(?:\1[0-9A-Fa-f]{2}){4}(?![\w:\-])"
    r"|(?<![\w.])[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}(?![\w.])"
)
_VERSION = re.compile(r"(?:version|release|build|\bv|firmware|kapitel|section|chapter) ?[:=]? ?\Z")


class MachineAddresses:
    """IPv4, IPv6 and MAC addresses; those that every machine has for itself are none."""

    name = "machine addresses"
    kinds = (Kind.IP, Kind.MAC)
    limits = (
        "an IPv4 address has the form of some version numbers; after words such as "
        "'version' it is taken for one"
    )

    def find(self, text: Folded) -> Iterator[Span]:
        """Yield the addresses of a text."""
        for match in _IPV4.finditer(text.text):
            if _is_address(match[0]) and not _VERSION.search(text.before(match.start(), 16)):
                yield self._span(text, match, Kind.IP, "ipaddress")
        for match in _IPV6.finditer(text.text):
            if match[0].count(":") >= 2 and _is_long(match[0]) and _is_address(match[0]):
                yield self._span(text, match, Kind.IP, "ipaddress")
        for match in _MAC.finditer(text.text):
            digits = re.sub(r"[:.\-]", "", match[0])
            if len(set(digits.lower())) > 1:
                yield self._span(text, match, Kind.MAC, "form")

    @staticmethod
    def _span(text: Folded, match: re.Match[str], kind: Kind, by: str) -> Span:
        identity = match[0].lower()
        if kind is Kind.IP:
            identity = str(ipaddress.ip_address(match[0]))
        return text.span(
            match.start(),
            match.end(),
            kind,
            confidence=Confidence.LIKELY,
            checked_by=by,
            identity=identity,
        )


def _is_long(written: str) -> bool:
    """Return whether it is no ``a::b`` of a programming language."""
    groups = [group for group in written.split(":") if group]
    return len(groups) >= 3 or (
        len(groups) == 2
        and any(len(group) >= 3 for group in groups)
        and any(c.isdigit() for c in written)
    )


def _is_address(written: str) -> bool:
    try:
        address = ipaddress.ip_address(written)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or written == "255.255.255.255")
