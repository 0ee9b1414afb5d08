"""Permits: what a connection to the outside needs, and what only the router gives.

A permit is good for one payload, one destination, once, and for a short time. It is sealed with
a key that exists in one process only, so that one that was altered, made by hand, or taken from
another process is refused; a fork takes neither the key nor the permits along. Who holds the
:class:`PermitGate` can redeem and not mint.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable

import msgspec

from edgewise.core.canonical import canonical_json, digest_of
from edgewise.errors import InputError, IntegrityError
from edgewise.route.destinations import Destination

__all__ = ["PERMIT_LIFETIME_S", "CloudPermit", "PermitGate", "PermitOffice"]

PERMIT_LIFETIME_S = 30.0


class CloudPermit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Leave to send one payload to one destination, once.

    Attributes:
        permit_id: Random name; it is good once.
        destination: Name of the destination.
        origin: Scheme, host and port that may be connected to.
        destination_sha256: Digest of the destination's whole entry: the same name and origin with
            another path, key, proxy or authority is another destination.
        payload_sha256: Digest of the very bytes that may be sent.
        expires_s: On a clock that no change of the date moves, and that goes on while the machine
            sleeps.
        consent: Identifier of the consent that was used; empty where none was needed.
        seal: Keyed digest of all the above.
    """

    permit_id: str
    destination: str
    origin: str
    destination_sha256: str
    payload_sha256: str
    expires_s: float
    consent: str = ""
    seal: bytes = b""


class PermitGate:
    """The side of the office that the cloud client holds: it redeems, and cannot mint."""

    def __init__(self, redeem: Callable[[CloudPermit, Destination, bytes], None]) -> None:
        self._redeem = redeem

    def redeem(self, permit: CloudPermit, destination: Destination, payload: bytes) -> None:
        """Use a permit up for a payload and a destination.

        Raises:
            IntegrityError: it is not this process's own, was altered, was used before, has
                expired, or is for another destination or other bytes (``permit-refused``; the
                context's ``why`` is one of ``altered``, ``expired``, ``destination``,
                ``payload``, ``replayed``). A permit that is refused for where or what it was
                shown with is used up all the same.
        """
        self._redeem(permit, destination, payload)


def _elapsed_s() -> float:
    """Return seconds on a clock that only goes forward, and goes on while the machine sleeps."""
    # Linux has a clock of its own for that; on macOS CLOCK_MONOTONIC goes on and Python's
    # time.monotonic() does not.
    clock = getattr(time, "CLOCK_BOOTTIME", None) or getattr(time, "CLOCK_MONOTONIC", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class PermitOffice:
    """Mints permits and remembers which were used. One per process; it belongs to the router."""

    def __init__(self, *, clock: Callable[[], float] = _elapsed_s) -> None:
        self._clock = clock
        self._forget()
        if hasattr(os, "register_at_fork"):
            forget = weakref.WeakMethod(self._forget)
            os.register_at_fork(after_in_child=lambda: _call(forget))

    @property
    def gate(self) -> PermitGate:
        """Return the side that redeems."""
        return PermitGate(self._redeem)

    def _forget(self) -> None:
        """Begin anew: no permit that was given before is good here."""
        self._key = secrets.token_bytes(32)
        self._open: dict[str, float] = {}
        self._lock = threading.Lock()

    def mint(self, destination: Destination, payload: bytes, *, consent: str = "") -> CloudPermit:
        """Return a permit for these very bytes; the router alone holds an office."""
        now = self._clock()
        permit = CloudPermit(
            permit_id=secrets.token_hex(16),
            destination=destination.name,
            origin=destination.origin,
            destination_sha256=digest_of(destination),
            payload_sha256=hashlib.sha256(payload).hexdigest(),
            expires_s=now + PERMIT_LIFETIME_S,
            consent=consent,
        )
        with self._lock:
            self._open = {name: end for name, end in self._open.items() if end > now}
            self._open[permit.permit_id] = permit.expires_s
        return msgspec.structs.replace(permit, seal=self._seal(permit))

    def _redeem(self, permit: CloudPermit, destination: Destination, payload: bytes) -> None:
        if not self._is_sealed(permit):
            raise _refused("altered", "it is not one that this process's router gave")
        with self._lock:
            known = self._open.pop(permit.permit_id, None)
        if self._clock() >= permit.expires_s:
            raise _refused("expired", f"it was good for {PERMIT_LIFETIME_S:.0f} seconds")
        if known is None:
            raise _refused("replayed", "it has been used before")
        shown = (destination.name, destination.origin, digest_of(destination))
        if (permit.destination, permit.origin, permit.destination_sha256) != shown:
            raise _refused("destination", f"it is for {permit.destination} at {permit.origin}")
        if permit.payload_sha256 != hashlib.sha256(payload).hexdigest():
            raise _refused("payload", "what is to be sent is not what it was given for")

    def _is_sealed(self, permit: object) -> bool:
        # What Python makes is not checked by msgspec: a field may hold anything.
        if type(permit) is not CloudPermit or not isinstance(permit.seal, bytes):
            return False
        try:
            return hmac.compare_digest(self._seal(permit), permit.seal)
        except (InputError, TypeError):
            return False

    def _seal(self, permit: CloudPermit) -> bytes:
        told = msgspec.to_builtins(msgspec.structs.replace(permit, seal=b""))
        return hmac.digest(self._key, canonical_json(told), "sha256")


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    found = method()
    if found is not None:
        found()


def _refused(why: str, words: str) -> IntegrityError:
    return IntegrityError(
        "permit-refused",
        f"this permit allows nothing: {words}",
        context={"why": why},
        hint="ask the router again; a permit is good once, for what it was given for",
    )
