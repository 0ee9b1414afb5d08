"""Rows of the queue's tables as values, and the changes of state that several parts make."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from edgewise.errors import InputError, IntegrityError
from edgewise.route.offline.clock import Now
from edgewise.route.offline.operation import (
    RETRYABLE,
    DocumentVersion,
    Entry,
    Operation,
    State,
)

__all__ = [
    "QueueLimits",
    "Receipt",
    "end",
    "entry_of",
    "lease_lives",
    "new_lease",
    "receipt_of",
    "require_row",
    "row_of",
    "rows_where",
]

_MAYBE: Final = """EXISTS(SELECT 1 FROM queue_attempts a WHERE a.seq = o.seq
    AND a.result IN ('open', 'lost', 'maybe-sent')"""
# Payload and answer are read only where they are needed.
_SELECT: Final = f"""SELECT o.seq, o.operation_id, o.idempotency_key, o.kind, o.destination,
    o.deduplicates, o.feature, o.purpose, o.data_class, o.priority, o.created_s, o.expires_s,
    o.document_id, o.document_version, o.prompt_version, o.schema_version, o.payload_sha256,
    o.destination_sha256, o.apply_to, o.payload_bytes, o.state, o.code, o.reason, o.hold,
    o.not_before_s, o.tries, o.token,
    o.lease_boot_id, o.lease_boot_s, o.lease_time_s, o.answer_sha256, o.changed_s,
    o.payload IS NOT NULL AS payload_kept, o.answer IS NOT NULL AS answer_kept,
    (SELECT count(*) FROM queue_attempts a WHERE a.seq = o.seq) AS attempts,
    {_MAYBE}) AS maybe, {_MAYBE} AND a.accepted = 0) AS at_risk
    FROM queue_operations o"""  # noqa: S608 - constants only


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of a queue.

    Attributes:
        count_max: Operations whose payload or answer is kept.
        bytes_max: Bytes of payloads and answers together.
        payload_bytes_max: Bytes of one payload.
        lifetime_max_s: Longest lifetime an operation may ask for.
        tries_max: Attempts that may have reached the server, or that it refused for now.
        lease_s: How long a process may be silent before another takes its operation over.
        attempt_s: How long one attempt may last; afterwards its lease is not renewed.
        ageing_s: A waiting operation rises by one priority in this time, without end.
        backoff_s: First pause after a try; it doubles, up to ``backoff_max_s``.
        backoff_max_s: Longest pause that the queue makes by itself.
        history_s: How long a final operation stays in the list once nothing of it is kept.
    """

    count_max: int = 1000
    bytes_max: int = 64 << 20
    payload_bytes_max: int = 1 << 20
    lifetime_max_s: float = 7 * 86400.0
    tries_max: int = 12
    lease_s: float = 60.0
    attempt_s: float = 600.0
    ageing_s: float = 600.0
    backoff_s: float = 2.0
    backoff_max_s: float = 3600.0
    history_s: float = 30 * 86400.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 < getattr(self, name) < 1e15:
                raise InputError(
                    "operation-invalid",
                    f"{name} of the queue's limits is {getattr(self, name)!r}; it is above 0",
                    context={"field": name},
                    hint="set it to a number above 0, or leave it out",
                )


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Proof that a server acted: kept when the operation itself is gone.

    Attributes:
        idempotency_key: Under which it acted.
        operation_id: For which operation.
        kind: Of what kind.
        destination: Where.
        payload_sha256: Digest of what was sent.
        attempt: Which attempt brought the answer.
        status: Status of the answer.
        answer_sha256: Digest of the answer.
        request_id: The server's own name for the request; may be empty.
        received_s: When it was written, seconds since 1970 on the queue's clock.
    """

    idempotency_key: str
    operation_id: str
    kind: str
    destination: str
    payload_sha256: str
    attempt: int
    status: int
    answer_sha256: str
    request_id: str
    received_s: float


def rows_where(
    connection: sqlite3.Connection, where: str, values: tuple[object, ...] = ()
) -> list[sqlite3.Row]:
    """Return the rows that match a clause made of constants, without payloads and answers."""
    return connection.execute(f"{_SELECT} WHERE {where}", values).fetchall()


def row_of(connection: sqlite3.Connection, seq: int) -> sqlite3.Row:
    """Return one row.

    Raises:
        InputError: it was erased meanwhile (``operation-unknown``).
    """
    found = rows_where(connection, "o.seq = ?", (seq,))
    if not found:
        raise _unknown("this operation")
    return found[0]


def require_row(connection: sqlite3.Connection, operation_id: str) -> sqlite3.Row:
    """Return the row of an operation, by its identifier or the beginning of one.

    Raises:
        InputError: there is none (``operation-unknown``) or more than one
            (``operation-ambiguous``).
    """
    head = operation_id.replace("\\", "").replace("%", "").replace("_", "")
    found = rows_where(connection, "o.operation_id LIKE ? ORDER BY o.seq LIMIT 2", (f"{head}%",))
    if not found or head != operation_id or not head:
        raise _unknown(f"{operation_id[:80]!r}")
    if len(found) > 1 and found[0]["operation_id"] != operation_id:
        raise InputError(
            "operation-ambiguous",
            f"several queued operations begin with {operation_id!r}",
            context={"operation": operation_id},
            hint="give more of the identifier",
        )
    return found[0]


def entry_of(row: sqlite3.Row) -> Entry:
    """Return a row as an entry.

    Raises:
        IntegrityError: it holds what the queue never writes (``database-damaged``).
    """
    try:
        document = None
        if row["document_id"] is not None:
            document = DocumentVersion(
                document_id=row["document_id"], version=row["document_version"]
            )
        told = {name: row[name] for name in Operation.__struct_fields__ if name != "document"}
        told["deduplicates"] = bool(told["deduplicates"])
        return Entry(
            operation=msgspec.convert({**told, "document": document}, Operation),
            state=State(row["state"]),
            code=row["code"],
            reason=row["reason"],
            hold=row["hold"],
            not_before_s=row["not_before_s"],
            attempts=row["attempts"],
            tries=row["tries"],
            may_have_happened=bool(row["maybe"]),
            answer_sha256=row["answer_sha256"],
            answer_kept=bool(row["answer_kept"]),
            changed_s=row["changed_s"],
        )
    except (ValueError, InputError) as error:
        raise IntegrityError(
            "database-damaged",
            f"operation number {row['seq']} of the queue cannot be read",
            context={"seq": row["seq"]},
            hint="put a backup in its place, or move it away",
        ) from error


def receipt_of(row: sqlite3.Row) -> Receipt:
    """Return a row of the receipts."""
    return Receipt(**{name: row[name] for name in Receipt.__struct_fields__})


def new_lease(now: Now, lease_s: float) -> tuple[str, float, float]:
    """Return run of the machine, end on its own clock, and end on the queue's clock."""
    return now.boot_id, now.boot_s + lease_s, now.time_s + lease_s


def lease_lives(row: sqlite3.Row, now: Now) -> bool:
    """Return whether the process that holds a lease may still be at work.

    Within one run of the machine its own clock decides, which no change of the date moves; a
    process of an earlier run is dead. Where a run has no name, the queue's clock decides.
    """
    if row["lease_boot_id"] and now.boot_id:
        same_run = row["lease_boot_id"] == now.boot_id
        return bool(same_run and now.boot_s < row["lease_boot_s"])
    return bool(now.time_s < row["lease_time_s"])


def end(
    connection: sqlite3.Connection,
    row: sqlite3.Row,
    now: Now,
    *,
    state: State,
    code: str,
    reason: str,
) -> None:
    """End an operation without an answer.

    Where an attempt may have reached the server, the truth is that it may have happened, whatever
    ended it: the state is then ``unknown``, and the reason keeps what ended it.
    """
    if row["maybe"]:
        state = State.UNKNOWN
        reason = f"it may have happened at {row['destination']}: {reason}"
    payload = "payload" if state in RETRYABLE else "NULL"
    connection.execute(
        "UPDATE queue_operations SET state = ?, code = ?, reason = ?, hold = '', "  # noqa: S608
        f"token = token + 1, changed_s = ?, payload = {payload} WHERE seq = ?",
        (state, code, reason, now.time_s, row["seq"]),
    )


def _unknown(what: str) -> InputError:
    return InputError(
        "operation-unknown",
        f"the queue has no operation {what}",
        context={"operation": what},
        hint="see `edgewise queue list --all`",
    )
