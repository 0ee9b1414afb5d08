"""What the queue does by itself: taking up what dead processes left, expiry, pauses, forgetting.

It happens within the transaction of whoever uses the queue; there is no process of its own.
"""

from __future__ import annotations

import hashlib
import random
import sqlite3

from edgewise.route.offline.clock import Now
from edgewise.route.offline.operation import State
from edgewise.route.offline.rows import QueueLimits, end, lease_lives, rows_where

__all__ = ["again", "expire", "forget", "pause_s", "requeue", "sweep"]


def sweep(
    connection: sqlite3.Connection, now: Now, limits: QueueLimits, dice: random.Random
) -> None:
    """Take up what dead processes left, end what has expired, and drop what is of no use."""
    for row in rows_where(connection, "o.state IN ('leased', 'sending')"):
        if not lease_lives(row, now):
            _take_up(connection, row, now, limits, dice)
    for row in rows_where(connection, "o.state = 'queued' AND o.expires_s <= ?", (now.time_s,)):
        expire(connection, row, now)
    connection.execute(
        "UPDATE queue_operations SET payload = NULL WHERE payload IS NOT NULL AND expires_s <= ? "
        "AND state NOT IN ('leased', 'sending')",
        (now.time_s,),
    )
    gone = rows_where(
        connection,
        "o.payload IS NULL AND o.answer IS NULL AND o.changed_s <= ? AND o.state IN "
        "('applied', 'stale', 'expired', 'failed', 'unknown', 'incompatible', 'declined', "
        "'cancelled')",
        (now.time_s - limits.history_s,),
    )
    for row in gone:
        forget(connection, row, now)


def forget(connection: sqlite3.Connection, row: sqlite3.Row, now: Now) -> None:
    """Remove an operation; a key that may have been seen by a server is never used again."""
    if row["attempts"]:
        digest = hashlib.sha256(row["idempotency_key"].encode("ascii")).hexdigest()
        connection.execute(
            "INSERT OR IGNORE INTO queue_spent_keys VALUES(?, ?)", (digest, now.time_s)
        )
    connection.execute("DELETE FROM queue_operations WHERE seq = ?", (row["seq"],))


def again(
    connection: sqlite3.Connection,
    row: sqlite3.Row,
    now: Now,
    limits: QueueLimits,
    dice: random.Random,
    *,
    hold: str,
    reason: str,
    least_s: float = 0.0,
) -> None:
    """Let an operation be tried again after a pause, or end it where the bound is reached."""
    tries = row["tries"] + 1
    if tries >= limits.tries_max:
        ended = f"{tries} tries were made; the last: {reason}"
        end(connection, row, now, state=State.FAILED, code="tries-exhausted", reason=ended)
        return
    connection.execute("UPDATE queue_operations SET tries = ? WHERE seq = ?", (tries, row["seq"]))
    pause = max(least_s, pause_s(tries - 1, limits, dice))
    requeue(connection, row, now, hold=hold, reason=reason, delay_s=pause)


def _take_up(
    connection: sqlite3.Connection,
    row: sqlite3.Row,
    now: Now,
    limits: QueueLimits,
    dice: random.Random,
) -> None:
    """Decide about an operation whose holder is gone, by how far it may have come."""
    connection.execute(
        "UPDATE queue_attempts SET result = 'lost', ended_s = ? WHERE seq = ? AND result = 'open'",
        (now.time_s, row["seq"]),
    )
    if row["state"] == State.SENDING and not row["deduplicates"]:
        reason = "the process ended while it was being sent, and the destination does not "
        end(connection, row, now, state=State.UNKNOWN, code="maybe-sent",
            reason=f"{reason}deduplicate")  # fmt: skip
        return
    reason = "the process that held it ended"
    again(connection, row, now, limits, dice, hold="", reason=reason)


def requeue(
    connection: sqlite3.Connection,
    row: sqlite3.Row,
    now: Now,
    *,
    hold: str,
    reason: str,
    delay_s: float,
) -> None:
    """Put an operation back; it is not tried before ``delay_s`` seconds have gone by."""
    connection.execute(
        "UPDATE queue_operations SET state = 'queued', token = token + 1, hold = ?, reason = ?, "
        "not_before_s = ?, changed_s = ? WHERE seq = ?",
        (hold, reason, now.time_s + max(0.0, delay_s), now.time_s, row["seq"]),
    )


def expire(connection: sqlite3.Connection, row: sqlite3.Row, now: Now) -> None:
    """End an operation whose time is up."""
    reason = "it was not answered before it expired"
    end(connection, row, now, state=State.EXPIRED, code="expired", reason=reason)


def pause_s(tries: int, limits: QueueLimits, dice: random.Random) -> float:
    """Return a pause that doubles with every try; half of it is by chance.

    Source: exponential backoff with "equal jitter", M. Brooker, AWS Architecture Blog, 2015.
    """
    full = min(limits.backoff_max_s, limits.backoff_s * 2.0 ** min(tries, 40))
    return full / 2 + dice.uniform(0, full / 2)
