"""Between the queue and who sends: what a sender is given, and what it may answer.

A queue entry is no licence. Before every attempt the drainer asks for authorisation again, and
what it gets (a permit, in the end) is handed to the sender for that attempt only.

Every ``reason`` is stored and shown. It never quotes what was sent or answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol

import msgspec

from edgewise.route.offline.link import LinkState
from edgewise.route.offline.operation import Outgoing

__all__ = [
    "Answered",
    "Attempt",
    "Authorisation",
    "Authorise",
    "DeclinedSending",
    "MaybeSent",
    "NeedsConsent",
    "NotSent",
    "Permitted",
    "RefusedPermanently",
    "RetryLater",
    "SendResult",
    "Sender",
    "short",
    "sound_authorisation",
    "sound_result",
]

_DETAIL_MAX: Final = 200


class Permitted(msgspec.Struct, frozen=True, kw_only=True):
    """It may be sent now.

    Attributes:
        licence: Whatever the sender needs for this one attempt, such as a permit.
        deduplicates: Whether the destination still acts once per key. What the queue believed
            when the operation came in counts no longer than this says so.
    """

    licence: Any = None
    deduplicates: bool = True

    def __repr__(self) -> str:
        return f"Permitted(deduplicates={self.deduplicates})"


class DeclinedSending(msgspec.Struct, frozen=True, kw_only=True):
    """It may not be sent: ``reason`` says why; ``final`` ends it whatever the settings say."""

    reason: str
    final: bool = False


class NeedsConsent(msgspec.Struct, frozen=True, kw_only=True):
    """The user has to be asked first."""

    reason: str = "consent is needed"


Authorisation = Permitted | DeclinedSending | NeedsConsent
Authorise = Callable[[Outgoing], Authorisation]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, whose intent is on disk.

    Attributes:
        number: 1 for the first.
        idempotency_key: The same for every attempt of the operation.
        time_left_s: The attempt is over after this many seconds, one way or the other.
        licence: What the authorisation gave.
    """

    number: int
    idempotency_key: str
    time_left_s: float
    licence: Any = None

    def __repr__(self) -> str:
        return f"Attempt(number={self.number}, time_left_s={self.time_left_s:.0f})"


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The server acted, and this is its answer.

    Attributes:
        status: Status of the answer.
        answer: Its bytes.
        request_id: The server's own name for the request; empty where it gave none.
    """

    status: int
    answer: bytes
    request_id: str = ""

    def __repr__(self) -> str:
        return f"Answered(status={self.status}, answer=<{len(self.answer)} bytes>)"


class RefusedPermanently(msgspec.Struct, frozen=True, kw_only=True):
    """The server said that it did nothing, and will not do it another time either."""

    status: int
    reason: str


class RetryLater(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing was done now, and it may be tried again after ``after_s`` seconds.

    ``hold`` says who wants to wait: the ``server`` (429, 503 with ``Retry-After``), or this device,
    whose limit of ``spending`` is reached.
    """

    after_s: float | None = None
    reason: str = ""
    hold: Literal["server", "spending"] = "server"


class NotSent(msgspec.Struct, frozen=True, kw_only=True):
    """Not one byte of the request left. ``link`` says how the way was found."""

    link: LinkState
    reason: str = ""


class MaybeSent(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes left and no usable answer came. The server may have acted.

    So is every status of 500 and above other than a 503 that the server itself explains, and
    every page that is not what the destination answers with.
    """

    link: LinkState
    reason: str = ""


SendResult = Answered | RefusedPermanently | RetryLater | NotSent | MaybeSent


class Sender(Protocol):
    """Sends one operation once. It has no retries of its own, and never another key."""

    def send(self, outgoing: Outgoing, *, attempt: Attempt) -> SendResult:
        """Return what became of one attempt.

        An exception counts as :class:`MaybeSent`: nobody can tell how far it came.
        """
        ...


def short(text: str) -> str:
    """Return a server's or a library's words as they may be stored and shown: cut, on one line."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown if len(shown) <= _DETAIL_MAX else f"{shown[:_DETAIL_MAX]}…"


def sound_result(result: Any) -> SendResult:
    """Return a sender's result, or what one that is none comes to: nobody can tell."""
    if isinstance(result, SendResult) and _sound(result):
        return result
    reason = f"the sender answered with a {type(result).__name__} that cannot be read"
    return MaybeSent(link=LinkState.ONLINE, reason=reason)


def sound_authorisation(given: Any) -> Authorisation:
    """Return an authorisation, or a decline in the place of what is none."""
    if isinstance(given, Authorisation) and _sound(given):
        return given
    return DeclinedSending(reason=f"a {type(given).__name__} that allows nothing was given")


def _sound(value: msgspec.Struct) -> bool:
    """Return whether all fields are what they are declared as: Python checks none of them."""
    told = {name: getattr(value, name) for name in value.__struct_fields__}
    try:
        msgspec.convert(told, type(value), builtin_types=(bytes,))
    except msgspec.ValidationError:
        return False
    return getattr(value, "status", 200) in range(100, 1000)
