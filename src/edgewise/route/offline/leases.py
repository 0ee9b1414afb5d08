"""Leases: who may send which operation now, and what every attempt is recorded as.

Invariants: the intent to send is on disk before the first byte can leave. An operation that may
have happened at a server that does not deduplicate is never sent again by itself. A process whose
lease was taken over changes nothing any more, except by proof that the server acted. Every change
names the token of its lease, so that an old holder's writes miss.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sqlite3
import threading
from collections.abc import Iterable
from typing import Final

import msgspec

from edgewise.errors import EdgewiseError
from edgewise.route.offline.clock import Now, QueueClock
from edgewise.route.offline.operation import Entry, Outgoing, State
from edgewise.route.offline.rows import (
    QueueLimits,
    end,
    entry_of,
    lease_lives,
    new_lease,
    row_of,
    rows_where,
)
from edgewise.route.offline.sending import (
    Answered,
    Attempt,
    MaybeSent,
    NotSent,
    RefusedPermanently,
    RetryLater,
    SendResult,
    short,
)
from edgewise.route.offline.upkeep import again, expire, pause_s, requeue, sweep
from edgewise.store.database import StateDatabase

__all__ = ["Lease", "LeaseKeeper", "Leases"]

_PROOF_COUNTS_NO_MORE: Final = frozenset(
    {State.ANSWERED, State.APPLYING, State.APPLIED, State.STALE}
)
_RESULTS: Final = {
    Answered: "answered",
    RefusedPermanently: "refused",
    RetryLater: "retry-later",
    NotSent: "not-sent",
    MaybeSent: "maybe-sent",
}


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right of one process to send one operation, until it is silent for too long.

    Attributes:
        outgoing: The operation with its payload.
        seq: Its number in the database.
        token: Fencing token; a later lease of the same operation has a greater one.
        lease_s: How long the holder may be silent.
        attempt_s: How long it may take in all.
    """

    outgoing: Outgoing
    seq: int
    token: int
    lease_s: float
    attempt_s: float


class Leases:
    """Gives operations out for sending and takes their results; see :class:`OfflineQueue`."""

    def __init__(
        self,
        database: StateDatabase,
        clock: QueueClock,
        limits: QueueLimits,
        *,
        dice: random.Random | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits
        self._dice = dice or random.SystemRandom()

    def claim(
        self, *, skip_destinations: Iterable[str] = (), skip_seqs: Iterable[int] = ()
    ) -> Lease | None:
        """Lease the operation whose turn it is; ``None`` when none is due.

        The greatest priority goes first, where waiting counts as priority; the older one of two.
        What other processes left behind is taken up, and what has expired is ended.

        Raises:
            ResourceError, IntegrityError: see :class:`StateDatabase`. Nothing is sent then.
        """
        skipped = json.dumps(sorted(set(skip_destinations))), json.dumps(sorted(set(skip_seqs)))
        with self._database.writing() as connection:
            now = self._clock.advance(connection)
            sweep(connection, now, self._limits, self._dice)
            while True:
                found = rows_where(
                    connection,
                    "o.state = 'queued' AND o.not_before_s <= ? "
                    "AND o.destination NOT IN (SELECT value FROM json_each(?)) "
                    "AND o.seq NOT IN (SELECT value FROM json_each(?)) "
                    "ORDER BY o.priority + CAST((? - o.created_s) / ? AS INTEGER) DESC, o.seq "
                    "LIMIT 1",
                    (now.time_s, *skipped, now.time_s, self._limits.ageing_s),
                )
                if not found:
                    return None
                payload = _sound_payload(connection, found[0])
                if payload is not None:
                    return self._lease(connection, found[0], payload, now)
                end(
                    connection,
                    found[0],
                    now,
                    state=State.FAILED,
                    code="payload-damaged",
                    reason="the stored payload has changed since it was queued; it is not sent",
                )

    def _lease(
        self, connection: sqlite3.Connection, row: sqlite3.Row, payload: bytes, now: Now
    ) -> Lease:
        connection.execute(
            "UPDATE queue_operations SET state = 'leased', token = token + 1, code = '', "
            "reason = '', hold = '', changed_s = ?, lease_boot_id = ?, lease_boot_s = ?, "
            "lease_time_s = ? WHERE seq = ?",
            (now.time_s, *new_lease(now, self._limits.lease_s), row["seq"]),
        )
        operation = entry_of(row).operation
        return Lease(
            outgoing=Outgoing(operation=operation, payload=payload),
            seq=row["seq"],
            token=row["token"] + 1,
            lease_s=self._limits.lease_s,
            attempt_s=self._limits.attempt_s,
        )

    def renew(self, lease: Lease) -> bool:
        """Say that the holder is alive; ``False`` when the lease was taken over or has ended."""
        with self._database.writing() as connection:
            now = self._clock.advance(connection)
            changed = connection.execute(
                "UPDATE queue_operations SET lease_boot_id = ?, lease_boot_s = ?, lease_time_s = ?"
                " WHERE seq = ? AND token = ? AND state IN ('leased', 'sending')",
                (*new_lease(now, self._limits.lease_s), lease.seq, lease.token),
            )
            return changed.rowcount == 1

    def begin(self, lease: Lease, *, deduplicates: bool) -> Attempt | Entry:
        """Record the intent to send, after which bytes may leave.

        Args:
            lease: The operation's lease.
            deduplicates: Whether the destination deduplicates, as known now.

        Returns:
            The attempt; or the entry as it stands, where it must not be sent: the lease was
            lost, it has expired, or it may have happened already.

        Raises:
            InputError: the operation was erased (``operation-unknown``).
            ResourceError, IntegrityError: see :class:`StateDatabase`. Nothing may be sent then.
        """
        with self._database.writing() as connection:
            now = self._clock.advance(connection)
            row = row_of(connection, lease.seq)
            if not _holds(row, lease, State.LEASED) or not lease_lives(row, now):
                return entry_of(row)
            if now.time_s >= row["expires_s"]:
                expire(connection, row, now)
                return entry_of(row_of(connection, lease.seq))
            dedupes = bool(row["deduplicates"]) and deduplicates
            if row["at_risk"] and not dedupes:
                end(
                    connection,
                    row,
                    now,
                    state=State.UNKNOWN,
                    code="maybe-sent",
                    reason="the destination does not deduplicate any more",
                )
                return entry_of(row_of(connection, lease.seq))
            number = row["attempts"] + 1
            connection.execute(
                "INSERT INTO queue_attempts(seq, number, token, begun_s, result) "
                "VALUES(?, ?, ?, ?, 'open')",
                (lease.seq, number, lease.token, now.time_s),
            )
            connection.execute(
                "UPDATE queue_operations SET state = 'sending', deduplicates = ?, changed_s = ? "
                "WHERE seq = ?",
                (dedupes, now.time_s, lease.seq),
            )
            return Attempt(
                number=number,
                idempotency_key=row["idempotency_key"],
                time_left_s=self._limits.attempt_s,
            )

    def settle(self, lease: Lease, attempt: Attempt, result: SendResult) -> Entry:
        """Record what became of an attempt, and return how the operation stands then.

        An answer counts whoever brings it and however late: it proves that the server acted. Any
        other result of a holder whose lease was taken over is only noted.

        Raises:
            InputError: the operation was erased (``operation-unknown``).
            ResourceError, IntegrityError: see :class:`StateDatabase`. The operation is then as
                after a crash, and its lease runs out.
        """
        with self._database.writing() as connection:
            now = self._clock.advance(connection)
            row = row_of(connection, lease.seq)
            link = result.link if isinstance(result, NotSent | MaybeSent) else ""
            detail = "" if isinstance(result, Answered) else short(result.reason)
            connection.execute(
                "UPDATE queue_attempts SET result = ?, link = ?, detail = ?, ended_s = ? "
                "WHERE seq = ? AND number = ? AND token = ?",
                (_RESULTS[type(result)], link, detail, now.time_s, lease.seq, attempt.number,
                 lease.token),
            )  # fmt: skip
            if isinstance(result, Answered):
                _keep_answer(connection, row, attempt, result, now)
            elif _holds(row, lease, State.SENDING):
                # What an open attempt may have done is known now.
                self._settle_other(connection, row_of(connection, lease.seq), result, now)
            return entry_of(row_of(connection, lease.seq))

    def _settle_other(
        self,
        connection: sqlite3.Connection,
        row: sqlite3.Row,
        result: RefusedPermanently | RetryLater | NotSent | MaybeSent,
        now: Now,
    ) -> None:
        why = short(result.reason)
        if isinstance(result, RefusedPermanently):
            reason = f"{row['destination']} refused it with status {result.status}: {why}"
            end(connection, row, now, state=State.FAILED, code="refused", reason=reason)
        elif isinstance(result, MaybeSent):
            reason = f"no answer came ({result.link}): {why}"
            if row["deduplicates"]:
                again(connection, row, now, self._limits, self._dice, hold="link", reason=reason)
            else:
                end(connection, row, now, state=State.UNKNOWN, code="maybe-sent", reason=reason)
        elif isinstance(result, RetryLater):
            asks = f"{row['destination']} asks to come again later"
            reason = f"{asks if result.hold == 'server' else 'nothing was sent'}: {why}"
            least = result.after_s if result.after_s and 0 < result.after_s < 1e9 else 0.0
            again(connection, row, now, self._limits, self._dice,
                  hold=result.hold, reason=reason, least_s=least)  # fmt: skip
        else:
            reason = f"it could not be sent ({result.link}): {why}"
            pause = pause_s(row["attempts"] - 1, self._limits, self._dice)
            requeue(connection, row, now, hold="link", reason=reason, delay_s=pause)

    def release(self, lease: Lease, *, hold: str, reason: str, delay_s: float) -> Entry:
        """Put an operation back that nothing was sent of; it is not tried before ``delay_s``."""
        with self._database.writing() as connection:
            now = self._clock.advance(connection)
            row = row_of(connection, lease.seq)
            if _holds(row, lease, State.LEASED):
                requeue(connection, row, now, hold=hold, reason=short(reason), delay_s=delay_s)
            return entry_of(row_of(connection, lease.seq))

    def end(self, lease: Lease, *, state: State, code: str, reason: str) -> Entry:
        """End an operation before anything of this attempt was sent."""
        with self._database.writing() as connection:
            now = self._clock.advance(connection)
            row = row_of(connection, lease.seq)
            if _holds(row, lease, State.LEASED):
                end(connection, row, now, state=state, code=code, reason=short(reason))
            return entry_of(row_of(connection, lease.seq))


class LeaseKeeper:
    """Renews a lease from a thread of its own while an attempt lasts.

    Args:
        leases: Where the lease is from.
        lease: Which one.
    """

    def __init__(self, leases: Leases, lease: Lease) -> None:
        self._leases = leases
        self._lease = lease
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="edgewise-lease", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        pause_s = self._lease.lease_s / 3
        for _ in range(math.ceil(self._lease.attempt_s / pause_s)):
            if self._over.wait(pause_s):
                return
            try:
                if not self._leases.renew(self._lease):
                    return
            except EdgewiseError:
                continue  # a database that is busy now; the lease runs out if it stays so


def _keep_answer(
    connection: sqlite3.Connection,
    row: sqlite3.Row,
    attempt: Attempt,
    result: Answered,
    now: Now,
) -> None:
    digest = hashlib.sha256(result.answer).hexdigest()
    connection.execute(
        "INSERT OR IGNORE INTO queue_receipts VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (row["idempotency_key"], row["operation_id"], row["kind"], row["destination"],
         row["payload_sha256"], attempt.number, result.status, digest,
         short(result.request_id), now.time_s),
    )  # fmt: skip
    if row["state"] in _PROOF_COUNTS_NO_MORE:
        return
    connection.execute(
        "UPDATE queue_operations SET state = 'answered', token = token + 1, answer = ?, "
        "answer_sha256 = ?, payload = NULL, code = '', reason = '', hold = '', changed_s = ? "
        "WHERE seq = ?",
        (result.answer, digest, now.time_s, row["seq"]),
    )


def _holds(row: sqlite3.Row, lease: Lease, state: State) -> bool:
    return bool(row["token"] == lease.token and row["state"] == state)


def _sound_payload(connection: sqlite3.Connection, row: sqlite3.Row) -> bytes | None:
    found = connection.execute(
        "SELECT payload FROM queue_operations WHERE seq = ?", (row["seq"],)
    ).fetchone()[0]
    if not isinstance(found, bytes):
        return None
    return found if hashlib.sha256(found).hexdigest() == row["payload_sha256"] else None
