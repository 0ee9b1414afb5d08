"""What consent is given for, and what the router is told about it: values only.

A scope is one feature, one data class, one destination and one purpose. It covers itself and
nothing else: there are no wildcards, and no scope contains another.
"""

from __future__ import annotations

import datetime as dt
from enum import StrEnum

import msgspec

from edgewise.core.request import DataClass
from edgewise.errors import InputError
from edgewise.route.destinations import Terms

__all__ = [
    "ConsentScope",
    "ConsentState",
    "ConsentVerdict",
    "Grant",
    "Origin",
    "require_consentable",
]

_CHARACTERS_MAX = {"feature": 100, "data_class": 100, "destination": 200, "purpose": 1000}


class Origin(StrEnum):
    """Through what the user decided."""

    CLI = "cli"
    API = "api"
    WEB = "web"


class ConsentScope(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, order=True
):
    """What one consent is about. Two scopes are the same when all four texts are equal.

    Attributes:
        feature: The feature that asks.
        data_class: How far its data may travel by itself.
        destination: Name of the destination in the policy's allow-list.
        purpose: Why data goes there, in the words the user is shown.

    Raises:
        InputError: a text is empty, too long, no valid Unicode, has space around it, or has a
            ``*`` (``consent-scope-invalid``).
    """

    feature: str
    data_class: str
    destination: str
    purpose: str

    def __post_init__(self) -> None:
        for name, longest in _CHARACTERS_MAX.items():
            why = _flaw(getattr(self, name), longest)
            if why:
                raise InputError(
                    "consent-scope-invalid",
                    f"the {name} of this consent {why}",
                    context={"field": name},
                    hint="name one feature, data class, destination and purpose, each in full",
                )


def _flaw(text: object, longest: int) -> str:
    if not isinstance(text, str):
        return f"is of type {type(text).__name__}, not a text"
    if not text.strip():
        return "is empty"
    if text != text.strip():
        return "has space around it"
    if len(text) > longest:
        return f"has {len(text)} characters; {longest} are allowed"
    if "*" in text:
        return "has a *, and a consent is for one thing only"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "is not valid Unicode"
    return ""


def require_consentable(scope: ConsentScope) -> None:
    """Refuse a scope that no consent can open.

    Raises:
        InputError: its data is ``local-only`` (``consent-local-only``).
    """
    if scope.data_class == DataClass.LOCAL_ONLY:
        raise InputError(
            "consent-local-only",
            "local-only data stays on this device; no consent sends it anywhere",
            hint="give the request another data class if its data may leave",
        )


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One approval.

    Attributes:
        id: Random name.
        scope: What it is for.
        terms: What the user was told of the destination; it is for nothing else.
        once: Whether its first use ends it.
        expires_at: From when on it is good for nothing; ``None`` for a one-time grant without.
        granted_at: By the device's clock.
        origin: Through what it was given.
    """

    id: str
    scope: ConsentScope
    terms: Terms
    once: bool
    expires_at: dt.datetime | None
    granted_at: dt.datetime
    origin: Origin


class ConsentVerdict(StrEnum):
    """What stands for a scope. All but ``GRANTED`` mean that nothing may be sent for it.

    ``ABSENT``: nobody was asked, or it was erased. ``CHANGED``: the user agreed, and the
    destination is declared otherwise by now, or nobody kept what the user was told of it.
    ``DENIED``: the user said no. ``EXPIRED``, ``REVOKED`` and ``USED``: the latest decision is
    over, and how. ``UNREADABLE``: it cannot be told, since the ledger cannot be read or the clock
    is not to be trusted.
    """

    GRANTED = "granted"
    DENIED = "denied"
    ABSENT = "absent"
    CHANGED = "changed"
    EXPIRED = "expired"
    REVOKED = "revoked"
    USED = "used"
    UNREADABLE = "unreadable"


class ConsentState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the ledger says about a scope at one moment; an input of the router.

    Reading it uses nothing up, so it is no licence: what is sent needs
    :meth:`~edgewise.route.consent.ledger.ConsentLedger.consume` as well.

    Attributes:
        scope: What was asked about; a state of another scope says nothing about this one.
        verdict: What stands.
        reason: The same in words.
        grant: The decision behind the verdict, where there is one; always for ``granted``.
        code: For ``unreadable``, the code of what is wrong; else empty.
    """

    scope: ConsentScope
    verdict: ConsentVerdict
    reason: str
    grant: str = ""
    code: str = ""

    def __post_init__(self) -> None:
        if self.verdict is ConsentVerdict.GRANTED and not self.grant:
            raise InputError(
                "consent-state-invalid",
                "a state says that consent is granted, and names no grant",
                hint="take it from ConsentLedger.state",
            )
