"""Applying an answer that came late: to the very document it was asked about, and once.

Invariants: an answer is never applied to another version than the one it was asked about. The
intent to apply is on disk before the applier is called. Where nobody can tell whether it was
applied before a crash, it is not applied again by itself; the answer is kept and offered.
"""

from __future__ import annotations

import sqlite3
from typing import Protocol

import msgspec

from edgewise.route.offline.clock import Now
from edgewise.route.offline.operation import Entry, Operation, State
from edgewise.route.offline.queue import OfflineQueue
from edgewise.route.offline.rows import (
    entry_of,
    lease_lives,
    new_lease,
    require_row,
    row_of,
)

__all__ = ["Applied", "Applier", "ApplyResult", "NotApplied", "Stale", "apply_answer"]


class Applier(Protocol):
    """The application's side. Its effect and its memory of the key belong in one transaction."""

    def apply(self, operation: Operation, answer: bytes) -> bool:
        """Apply an answer under ``operation.idempotency_key``, if the version still is the one.

        Returns:
            ``False`` when the document has changed under it and nothing was applied.
        """
        ...

    def was_applied(self, operation: Operation) -> bool | None:
        """Return whether an answer was applied under this key; ``None`` when nobody can tell."""
        ...


class Applied(msgspec.Struct, frozen=True, kw_only=True, tag="applied"):
    """The answer is in the document. ``again`` says that it was there before this call."""

    entry: Entry
    again: bool = False


class Stale(msgspec.Struct, frozen=True, kw_only=True, tag="stale"):
    """The document is another now. The answer is kept for the user to look at.

    Attributes:
        entry: The operation.
        asked_version: Version the question was about.
        current_version: Version now; ``None`` when the document is gone.
        answer: The answer; ``None`` once it was erased.
    """

    entry: Entry
    asked_version: str
    current_version: str | None
    answer: bytes | None

    def __repr__(self) -> str:
        return f"Stale(entry={self.entry!r})"


class NotApplied(msgspec.Struct, frozen=True, kw_only=True, tag="not-applied"):
    """There is nothing to apply, or not by this call; ``reason`` says why."""

    entry: Entry
    reason: str


ApplyResult = Applied | Stale | NotApplied


class _Turn(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    token: int
    operation: Operation
    answer: bytes
    crashed_before: bool


def apply_answer(
    queue: OfflineQueue, operation_id: str, applier: Applier, *, current_version: str | None = None
) -> ApplyResult:
    """Apply the answer of an operation, or say why not.

    Args:
        queue: The queue.
        operation_id: Identifier, or its beginning.
        applier: Puts the answer where it belongs.
        current_version: Version of the document now; ``None`` when it is gone. It is not looked
            at where the operation is about no document.

    Raises:
        InputError: there is no such operation.
        ResourceError, IntegrityError: see :class:`StateDatabase`.
        Exception: whatever the applier raised. The next call asks it whether it had applied.
    """
    turn = _take(queue, operation_id, current_version)
    if not isinstance(turn, _Turn):
        return turn
    if turn.crashed_before:
        before = applier.was_applied(turn.operation)
        if before:
            return Applied(entry=_finish(queue, turn, State.APPLIED), again=True)
        if before is None:
            reason = "it may have been applied before a crash, and the application cannot tell"
            entry = _finish(queue, turn, State.UNKNOWN, "maybe-applied", reason)
            return NotApplied(entry=entry, reason=reason)
    try:
        fits = applier.apply(turn.operation, turn.answer)
    except Exception:
        _give_back(queue, turn)
        raise
    if fits:
        return Applied(entry=_finish(queue, turn, State.APPLIED))
    reason = "the document changed while the answer was being applied"
    return _stale(queue, _finish(queue, turn, State.STALE, "stale", reason), None)


def _take(
    queue: OfflineQueue, operation_id: str, current_version: str | None
) -> _Turn | ApplyResult:
    """Record the intent to apply, or return what stands in its way."""
    with queue.database.writing() as connection:
        now = queue.clock.advance(connection)
        row = require_row(connection, operation_id)
        entry = entry_of(row)
        if entry.state is State.APPLIED:
            return Applied(entry=entry, again=True)
        if entry.state is State.STALE:
            return _stale_of(connection, row, current_version)
        crashed = entry.state is State.APPLYING
        if not crashed and entry.state is not State.ANSWERED:
            return NotApplied(entry=entry, reason=entry.reason or f"it is {entry.state}")
        if crashed and lease_lives(row, now):
            return NotApplied(entry=entry, reason="another process applies it at this moment")
        asked = entry.operation.document
        if not crashed and asked is not None and asked.version != current_version:
            reason = "the document has changed since the question was asked"
            if current_version is None:
                reason = "the document is gone"
            _set(connection, row["seq"], now, State.STALE, "stale", reason)
            return _stale_of(connection, row_of(connection, row["seq"]), current_version)
        connection.execute(
            "UPDATE queue_operations SET state = 'applying', token = token + 1, changed_s = ?, "
            "lease_boot_id = ?, lease_boot_s = ?, lease_time_s = ? WHERE seq = ?",
            (now.time_s, *new_lease(now, queue.limits.lease_s), row["seq"]),
        )
        return _Turn(
            seq=row["seq"],
            token=row["token"] + 1,
            operation=entry.operation,
            answer=_answer(connection, row["seq"]) or b"",
            crashed_before=crashed,
        )


def _finish(
    queue: OfflineQueue, turn: _Turn, state: State, code: str = "", reason: str = ""
) -> Entry:
    with queue.database.writing() as connection:
        now = queue.clock.advance(connection)
        row = row_of(connection, turn.seq)
        if row["token"] == turn.token or state is State.APPLIED:
            _set(connection, turn.seq, now, state, code, reason)
        return entry_of(row_of(connection, turn.seq))


def _set(
    connection: sqlite3.Connection, seq: int, now: Now, state: State, code: str, reason: str
) -> None:
    answer = "NULL" if state is State.APPLIED else "answer"
    connection.execute(
        f"UPDATE queue_operations SET state = ?, code = ?, reason = ?, answer = {answer}, "  # noqa: S608
        "token = token + 1, changed_s = ? WHERE seq = ?",
        (state, code, reason, now.time_s, seq),
    )


def _give_back(queue: OfflineQueue, turn: _Turn) -> None:
    """End the turn without a verdict: who comes next asks the applier what it did."""
    with queue.database.writing() as connection:
        queue.clock.advance(connection)
        connection.execute(
            "UPDATE queue_operations SET lease_boot_s = 0, lease_time_s = 0 "
            "WHERE seq = ? AND token = ? AND state = 'applying'",
            (turn.seq, turn.token),
        )


def _stale(queue: OfflineQueue, entry: Entry, current_version: str | None) -> Stale:
    with queue.database.reading() as connection:
        row = require_row(connection, entry.operation.operation_id)
        return _stale_of(connection, row, current_version)


def _stale_of(
    connection: sqlite3.Connection, row: sqlite3.Row, current_version: str | None
) -> Stale:
    entry = entry_of(row)
    asked = entry.operation.document
    return Stale(
        entry=entry,
        asked_version=asked.version if asked else "",
        current_version=current_version,
        answer=_answer(connection, row["seq"]),
    )


def _answer(connection: sqlite3.Connection, seq: int) -> bytes | None:
    found = connection.execute(
        "SELECT answer FROM queue_operations WHERE seq = ?", (seq,)
    ).fetchone()[0]
    return None if found is None else bytes(found)
