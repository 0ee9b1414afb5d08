"""Draining: one operation after the other is authorised anew, recorded, sent and settled.

Invariants: nothing is sent that was not authorised for this attempt, and nothing whose intent is
not on disk. No operation, and no fault of a sender, keeps the others from their turn. The drainer
opens no connection; the sender does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import msgspec

from edgewise.errors import EdgewiseError, InputError, ResourceError
from edgewise.route.offline.leases import Lease, LeaseKeeper
from edgewise.route.offline.link import LinkState
from edgewise.route.offline.operation import Entry, Operation, State
from edgewise.route.offline.queue import OfflineQueue
from edgewise.route.offline.sending import (
    Attempt,
    Authorisation,
    Authorise,
    DeclinedSending,
    MaybeSent,
    NeedsConsent,
    NotSent,
    Permitted,
    Sender,
    SendResult,
    sound_authorisation,
    sound_result,
)

__all__ = ["Compatible", "DrainReport", "DrainSettings", "Drainer"]

# Each waits as long as the database's own time for locks. An answer in hand is worth it.
_SETTLE_TRIES: Final = 3


class Compatible(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Versions that whoever drains can take an answer for.

    Attributes:
        prompts: Prompt versions.
        schemas: Versions of the answer's schema.
    """

    prompts: frozenset[str] = frozenset()
    schemas: frozenset[str] = frozenset()

    def flaw(self, operation: Operation) -> str | None:
        """Return why an operation is none of this version's, or ``None``."""
        prompt, schema = operation.prompt_version, operation.schema_version
        if prompt is not None and prompt not in self.prompts:
            return f"it was made from prompt version {prompt}, which this version does not take"
        if schema is not None and schema not in self.schemas:
            return f"it expects answer schema {schema}, which this version does not take"
        return None


class DrainSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How operations that may not be sent are treated.

    Attributes:
        declined_ends: Whether a decline ends an operation; otherwise it waits and asks again.
        ask_again_s: Pause before consent or a declined route is asked for again.
    """

    declined_ends: bool = False
    ask_again_s: float = 300.0


class DrainReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one pass came to.

    Attributes:
        handled: Every operation that had its turn, as it stood afterwards.
        links: Destinations that could not be reached, and how the way was found.
        next_due_s: Seconds until the next queued operation may be tried; ``None`` if none waits.
        clock_skew_s: How far the machine's clock is behind the queue's.
    """

    handled: tuple[Entry, ...]
    links: dict[str, LinkState]
    next_due_s: float | None
    clock_skew_s: float

    @property
    def unknown(self) -> tuple[Entry, ...]:
        """Return the operations of this pass of which the user must be told: they may have
        happened, and are not sent again.
        """
        return tuple(entry for entry in self.handled if entry.state is State.UNKNOWN)


class Drainer:
    """Sends what is due. Any number of drainers, in any number of processes, share one queue.

    Args:
        queue: The queue.
        sender: Sends one operation once.
        authorise: Route, consent and permit for one attempt, asked before each. What it raises
            is a decline that waits.
        compatible: Versions that the caller takes answers for.
        settings: See :class:`DrainSettings`.
    """

    def __init__(
        self,
        queue: OfflineQueue,
        sender: Sender,
        authorise: Authorise,
        *,
        compatible: Compatible | None = None,
        settings: DrainSettings | None = None,
    ) -> None:
        self._queue = queue
        self._leases = queue.leases
        self._sender = sender
        self._authorise = authorise
        self._compatible = compatible or Compatible()
        self._settings = settings or DrainSettings()

    def drain(
        self, *, limit: int | None = None, stop: Callable[[], bool] = lambda: False
    ) -> DrainReport:
        """Give every operation that is due one turn, and return what became of each.

        A destination that could not be reached is left alone for the rest of the pass.

        Args:
            limit: Most operations to handle.
            stop: Asked before each operation.

        Raises:
            ResourceError, IntegrityError: see :class:`StateDatabase`. What was being sent is then
                as after a crash.
        """
        handled: list[Entry] = []
        links: dict[str, LinkState] = {}
        seen: set[int] = set()
        while (limit is None or len(seen) < limit) and not stop():
            lease = self._leases.claim(skip_destinations=links, skip_seqs=seen)
            if lease is None:
                break
            seen.add(lease.seq)
            with contextlib.suppress(InputError):  # cancelled and erased while it had its turn
                handled.append(self._turn(lease, links))
        return DrainReport(
            handled=tuple(handled),
            links=links,
            next_due_s=self._queue.next_due_s(),
            clock_skew_s=self._queue.now().skew_s,
        )

    def _turn(self, lease: Lease, links: dict[str, LinkState]) -> Entry:
        operation = lease.outgoing.operation
        flaw = self._compatible.flaw(operation)
        if flaw is not None:
            return self._leases.end(
                lease, state=State.INCOMPATIBLE, code="incompatible", reason=flaw
            )
        with LeaseKeeper(self._leases, lease):
            permitted = self._permitted(lease)
            if not isinstance(permitted, Permitted):
                return self._hold(lease, permitted)
            attempt = self._leases.begin(lease, deduplicates=permitted.deduplicates)
            if isinstance(attempt, Entry):
                return attempt
            given = msgspec.structs.replace(attempt, licence=permitted.licence)
            result = self._sent(lease, given)
            if isinstance(result, NotSent | MaybeSent) and result.link is not LinkState.ONLINE:
                links[operation.destination] = result.link
            return self._settled(lease, attempt, result)

    def _settled(self, lease: Lease, attempt: Attempt, result: SendResult) -> Entry:
        """Write a result down; a database that is only busy is waited for some times."""
        for _ in range(_SETTLE_TRIES - 1):
            try:
                return self._leases.settle(lease, attempt, result)
            except ResourceError as error:
                if not error.retryable:
                    raise
        return self._leases.settle(lease, attempt, result)

    def _permitted(self, lease: Lease) -> Authorisation:
        try:
            return sound_authorisation(self._authorise(lease.outgoing))
        except EdgewiseError as error:
            return DeclinedSending(reason=f"{error.code}: nothing could be authorised")
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is sent for it
            return DeclinedSending(reason=f"{type(error).__name__}: nothing could be authorised")

    def _hold(self, lease: Lease, why: DeclinedSending | NeedsConsent) -> Entry:
        if isinstance(why, DeclinedSending) and (why.final or self._settings.declined_ends):
            return self._leases.end(lease, state=State.DECLINED, code="declined", reason=why.reason)
        hold = "consent" if isinstance(why, NeedsConsent) else "declined"
        return self._leases.release(
            lease, hold=hold, reason=why.reason, delay_s=self._settings.ask_again_s
        )

    def _sent(self, lease: Lease, attempt: Attempt) -> SendResult:
        try:
            return sound_result(self._sender.send(lease.outgoing, attempt=attempt))
        except Exception as error:  # noqa: BLE001 - how far it came, nobody can tell
            # Not its words: a library's message may quote what was sent.
            return MaybeSent(link=LinkState.ONLINE, reason=f"{type(error).__name__} was raised")
        except BaseException as error:
            result = MaybeSent(link=LinkState.ONLINE, reason=f"{type(error).__name__} ended it")
            self._leases.settle(lease, attempt, result)
            raise
