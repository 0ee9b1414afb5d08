"""The link as it was met: the states of a flaky network, told from what one attempt saw.

None of them is an exception: a queue lives with all of them. The judgement is a pure function of
what was seen, and says of an attempt the one thing that counts: may the server have got it?
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

__all__ = ["CLOCK_TOLERATED_S", "LinkEvidence", "LinkState", "TlsFlaw", "link_state"]

CLOCK_TOLERATED_S: Final = 300.0


class LinkState(StrEnum):
    """How the way to a destination was found.

    ``OFFLINE``: no name server, no route, or nothing listens. ``CAPTIVE_PORTAL``: somebody else
    answers with a page or sends us elsewhere. ``HALF_OPEN``: the connection stands, and nothing
    comes back. ``DNS_LIES``: the name leads to a machine that is not the destination.
    ``CLOCK_SKEWED``: the two clocks differ so far that certificates or expiries cannot be judged.
    """

    ONLINE = "online"
    OFFLINE = "offline"
    CAPTIVE_PORTAL = "captive-portal"
    HALF_OPEN = "half-open"
    DNS_LIES = "dns-lies"
    CLOCK_SKEWED = "clock-skewed"


class TlsFlaw(StrEnum):
    """Why a certificate was not accepted."""

    NOT_YET_VALID = "not-yet-valid"
    EXPIRED = "expired"
    OTHER_HOST = "other-host"
    UNTRUSTED = "untrusted"


class LinkEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one attempt saw.

    Attributes:
        resolved: Whether the name was found; ``None`` where none was asked for.
        connected: Whether a connection was made.
        tls: Why its certificate was refused, if it was; then nothing was sent.
        bytes_sent: Bytes of the request that were handed to the system after the handshake.
        status: Status of the answer; ``None`` when none came.
        content_type: Of the answer.
        expected_type: What the destination answers with.
        other_origin: Whether the answer sends us to another host.
        clock_off_s: Our clock less the server's ``Date``, where it sent one.
    """

    resolved: bool | None = None
    connected: bool = False
    tls: TlsFlaw | None = None
    bytes_sent: int = 0
    status: int | None = None
    content_type: str = ""
    expected_type: str = "application/json"
    other_origin: bool = False
    clock_off_s: float | None = None

    @property
    def maybe_received(self) -> bool:
        """Return whether the server may have got the request.

        Also when a page came back: it can be the portal's, and it can be an error page that a
        gateway put over an answer of the server.
        """
        return self.bytes_sent > 0


def link_state(seen: LinkEvidence) -> LinkState:
    """Return the state of the link that explains what was seen."""
    if seen.tls in {TlsFlaw.NOT_YET_VALID, TlsFlaw.EXPIRED}:
        return LinkState.CLOCK_SKEWED
    if seen.tls is not None:
        # A host of another name, or of an authority nobody trusts, stands in the way.
        return LinkState.DNS_LIES if seen.tls is TlsFlaw.OTHER_HOST else LinkState.CAPTIVE_PORTAL
    if not seen.connected:
        return LinkState.OFFLINE
    if seen.status is None:
        return LinkState.HALF_OPEN
    page = seen.content_type.partition(";")[0].strip().lower() not in {"", seen.expected_type}
    if seen.status == 511 or seen.other_origin or (page and seen.status < 400):
        return LinkState.CAPTIVE_PORTAL  # 511: RFC 6585, section 6
    if seen.clock_off_s is not None and abs(seen.clock_off_s) > CLOCK_TOLERATED_S:
        return LinkState.CLOCK_SKEWED
    return LinkState.ONLINE
