"""The offline queue of a home: what may wait for the cloud, durably, and how it stands.

Invariants: only operations that the policy declared delay-safe come in; local-only data never
does. What :meth:`OfflineQueue.enqueue` said is queued is on disk and is never lost, whoever is
killed when. Every operation ends in a final state with a reason.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterable

import msgspec

from edgewise.route.offline.admission import (
    Queued,
    Reason,
    Refused,
    insert,
    key_digest,
    known_key,
    policy_reasons,
    quota_reasons,
)
from edgewise.route.offline.clock import Now, QueueClock
from edgewise.route.offline.leases import Leases
from edgewise.route.offline.operation import (
    RETRYABLE,
    Draft,
    Entry,
    Operation,
    State,
)
from edgewise.route.offline.rows import (
    QueueLimits,
    Receipt,
    end,
    entry_of,
    receipt_of,
    require_row,
    row_of,
    rows_where,
)
from edgewise.route.offline.schema import COMPONENT, STEPS
from edgewise.route.offline.upkeep import forget, sweep
from edgewise.store.database import StateDatabase
from edgewise.store.home import Home

__all__ = ["STORE_ALLOWED", "Change", "OfflineQueue", "Queued", "Reason", "Refused"]

STORE_ALLOWED = frozenset({"public", "personal"})


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a person's wish came to.

    Attributes:
        done: Whether it was fulfilled.
        entry: How the operation stands now, or stood before it was erased.
        reason: Why not, where it was not.
    """

    done: bool
    entry: Entry
    reason: Reason | None = None


class OfflineQueue:
    """The queue of one home, for any number of processes at once.

    Args:
        home: Whose queue.
        delay_safe: Kinds of operations that the policy lets wait.
        store_allowed: Data classes whose payloads may lie in a file on this device. ``sensitive``
            is in it only where the caller puts it; ``local-only`` counts never.
        limits: Bounds.
        clock: Clocks, for tests.
        dice: Chance in pauses, for tests.
    """

    def __init__(
        self,
        home: Home,
        *,
        delay_safe: frozenset[str] = frozenset(),
        store_allowed: frozenset[str] = STORE_ALLOWED,
        limits: QueueLimits | None = None,
        clock: QueueClock | None = None,
        dice: random.Random | None = None,
    ) -> None:
        self.limits = limits or QueueLimits()
        self.database = StateDatabase(home, COMPONENT, STEPS)
        self.clock = clock or QueueClock()
        self.dice = dice or random.SystemRandom()
        self._delay_safe = delay_safe
        self._store_allowed = store_allowed

    @property
    def leases(self) -> Leases:
        """Return the side that gives operations out for sending."""
        return Leases(self.database, self.clock, self.limits, dice=self.dice)

    def enqueue(self, draft: Draft) -> Queued | Refused:
        """Queue an operation; it is on disk when this returns.

        The same key with the same payload is the same operation, so that an application that was
        killed may simply ask again.

        Raises:
            ResourceError, IntegrityError: see :class:`StateDatabase`. Nothing was queued then, or
                it is found under its key.
        """
        reasons = policy_reasons(
            draft,
            delay_safe=self._delay_safe,
            store_allowed=self._store_allowed,
            limits=self.limits,
        )
        if reasons:
            return Refused(reasons=reasons)
        with self.database.writing() as connection:
            now = self.clock.advance(connection)
            sweep(connection, now, self.limits, self.dice)
            known = known_key(connection, draft)
            if known is not None:
                return known
            reasons = quota_reasons(connection, draft, self.limits)
            if reasons:
                return Refused(reasons=reasons)
            return Queued(entry=insert(connection, draft, now))

    def entries(self, states: Iterable[State] | None = None) -> tuple[Entry, ...]:
        """Return operations, oldest first; all of them, or those in some states.

        Raises:
            ResourceError, IntegrityError: see :class:`StateDatabase`.
        """
        wanted = frozenset(State if states is None else states)
        with self.database.reading() as connection:
            rows = rows_where(connection, "1 ORDER BY o.seq")
            return tuple(entry_of(row) for row in rows if row["state"] in wanted)

    def entry(self, operation_id: str) -> Entry:
        """Return one operation, by its identifier or the beginning of one.

        Raises:
            InputError: there is none (``operation-unknown``) or more than one
                (``operation-ambiguous``).
            ResourceError, IntegrityError: see :class:`StateDatabase`.
        """
        with self.database.reading() as connection:
            return entry_of(require_row(connection, operation_id))

    def answer(self, operation_id: str) -> bytes | None:
        """Return the stored answer; ``None`` when there is none, or it was applied.

        Raises:
            InputError: see :meth:`entry`.
            ResourceError, IntegrityError: see :class:`StateDatabase`.
        """
        with self.database.reading() as connection:
            row = require_row(connection, operation_id)
            found = connection.execute(
                "SELECT answer FROM queue_operations WHERE seq = ?", (row["seq"],)
            ).fetchone()[0]
            return None if found is None else bytes(found)

    def now(self) -> Now:
        """Return the queue's time, and how far the machine's clock is from it."""
        with self.database.reading() as connection:
            return self.clock.look(connection)

    def next_due_s(self) -> float | None:
        """Return in how many seconds the next queued operation may be tried; ``None`` if none."""
        with self.database.reading() as connection:
            found = connection.execute(
                "SELECT min(not_before_s) FROM queue_operations WHERE state = 'queued'"
            ).fetchone()[0]
            if found is None:
                return None
            return max(0.0, float(found) - self.clock.look(connection).time_s)

    def wake(self) -> int:
        """Let what waits for the link be tried now: the link is back. Return how many.

        Raises:
            ResourceError, IntegrityError: see :class:`StateDatabase`.
        """
        with self.database.writing() as connection:
            self.clock.advance(connection)
            return connection.execute(
                "UPDATE queue_operations SET not_before_s = 0 "
                "WHERE state = 'queued' AND hold = 'link' AND not_before_s > 0"
            ).rowcount

    def wake_agreed(self, agreed: Callable[[Operation], bool]) -> int:
        """Let what waits for a consent that stands by now be tried now. Return how many.

        Args:
            agreed: Says whether consent for an operation stands.

        Raises:
            ResourceError, IntegrityError: see :class:`StateDatabase`.
        """
        with self.database.reading() as connection:
            now = self.clock.look(connection)
            rows = rows_where(
                connection,
                "o.state = 'queued' AND o.hold = 'consent' AND o.not_before_s > ?",
                (now.time_s,),
            )
        due = [row["seq"] for row in rows if agreed(entry_of(row).operation)]
        if not due:
            return 0
        with self.database.writing() as connection:
            marks = ", ".join("?" * len(due))
            return connection.execute(
                "UPDATE queue_operations SET not_before_s = 0 "  # noqa: S608 - marks only
                f"WHERE state = 'queued' AND hold = 'consent' AND seq IN ({marks})",
                due,
            ).rowcount

    def tidy(self) -> None:
        """End what has expired and take up what dead processes left; nothing is sent.

        Raises:
            ResourceError, IntegrityError: see :class:`StateDatabase`.
        """
        with self.database.writing() as connection:
            sweep(connection, self.clock.advance(connection), self.limits, self.dice)

    def cancel(self, operation_id: str) -> Change:
        """End an operation before it is sent.

        Raises:
            InputError: see :meth:`entry`.
            ResourceError, IntegrityError: see :class:`StateDatabase`.
        """
        with self.database.writing() as connection:
            now = self.clock.advance(connection)
            sweep(connection, now, self.limits, self.dice)
            row = require_row(connection, operation_id)
            if row["state"] not in {State.QUEUED, State.LEASED}:
                words = f"it is {row['state']}; only what is not sent yet can be cancelled"
                return _not_done(row, "not-waiting", words)
            end(
                connection,
                row,
                now,
                state=State.CANCELLED,
                code="cancelled",
                reason="a person cancelled it",
            )
            return Change(done=True, entry=entry_of(row_of(connection, row["seq"])))

    def retry(self, operation_id: str, *, accept_duplicate: bool = False) -> Change:
        """Put an operation that failed, was declined or is unknown back into the queue.

        Args:
            operation_id: Identifier, or its beginning.
            accept_duplicate: Send it although it may have happened and the server does not
                deduplicate: it can then happen twice.

        Raises:
            InputError: see :meth:`entry`.
            ResourceError, IntegrityError: see :class:`StateDatabase`.
        """
        with self.database.writing() as connection:
            now = self.clock.advance(connection)
            sweep(connection, now, self.limits, self.dice)
            row = require_row(connection, operation_id)
            if row["state"] == State.QUEUED:
                connection.execute(
                    "UPDATE queue_operations SET not_before_s = 0 WHERE seq = ?", (row["seq"],)
                )
                return Change(done=True, entry=entry_of(row_of(connection, row["seq"])))
            if row["state"] not in RETRYABLE or not row["payload_kept"]:
                words = f"it is {row['state']}, and its payload is kept no more"
                if row["state"] not in RETRYABLE:
                    words = f"it is {row['state']}; only failed, declined and unknown ones can be"
                return _not_done(row, "not-retryable", words)
            if row["at_risk"] and not row["deduplicates"] and not accept_duplicate:
                words = (
                    f"it may have happened, and {row['destination']} does not deduplicate: "
                    "sent again, it can happen twice"
                )
                return _not_done(row, "may-happen-twice", words)
            connection.execute(
                "UPDATE queue_attempts SET accepted = 1 WHERE seq = ? AND ?",
                (row["seq"], accept_duplicate),
            )
            connection.execute(
                "UPDATE queue_operations SET state = 'queued', token = token + 1, code = '', "
                "reason = '', hold = '', tries = 0, not_before_s = 0, changed_s = ? "
                "WHERE seq = ?",
                (now.time_s, row["seq"]),
            )
            return Change(done=True, entry=entry_of(row_of(connection, row["seq"])))

    def erase(self, operation_id: str) -> Change:
        """Remove an ended operation with its payload and answer. Its receipt stays.

        Raises:
            InputError: see :meth:`entry`.
            ResourceError, IntegrityError: see :class:`StateDatabase`.
        """
        with self.database.writing() as connection:
            now = self.clock.advance(connection)
            row = require_row(connection, operation_id)
            entry = entry_of(row)
            if not entry.final and entry.state is not State.ANSWERED:
                return _not_done(row, "not-ended", f"it is {entry.state}; cancel it first")
            forget(connection, row, now)
            return Change(done=True, entry=entry)

    def receipts(self) -> tuple[Receipt, ...]:
        """Return the receipts, oldest first.

        Raises:
            ResourceError, IntegrityError: see :class:`StateDatabase`.
        """
        with self.database.reading() as connection:
            rows = connection.execute(
                "SELECT * FROM queue_receipts ORDER BY received_s, idempotency_key"
            )
            return tuple(receipt_of(row) for row in rows)

    def erase_receipts(self, *, before_s: float) -> int:
        """Remove receipts that are older than a time of the queue's clock; return how many.

        That their keys were used stays known, as digests.

        Raises:
            ResourceError, IntegrityError: see :class:`StateDatabase`.
        """
        with self.database.writing() as connection:
            now = self.clock.advance(connection)
            keys = connection.execute(
                "SELECT idempotency_key FROM queue_receipts WHERE received_s < ?", (before_s,)
            ).fetchall()
            connection.executemany(
                "INSERT OR IGNORE INTO queue_spent_keys VALUES(?, ?)",
                [(key_digest(row[0]), now.time_s) for row in keys],
            )
            connection.execute("DELETE FROM queue_receipts WHERE received_s < ?", (before_s,))
            return len(keys)


def _not_done(row: sqlite3.Row, code: str, words: str) -> Change:
    return Change(done=False, entry=entry_of(row), reason=Reason(code=code, words=words))
