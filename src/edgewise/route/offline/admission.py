"""Admission to the queue: what may wait, what is there already, and what is too much."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from typing import Final

import msgspec

from edgewise.route.offline.clock import Now
from edgewise.route.offline.operation import Draft, Entry, State, is_local_only
from edgewise.route.offline.rows import QueueLimits, entry_of, row_of, rows_where

__all__ = [
    "Queued",
    "Reason",
    "Refused",
    "insert",
    "key_digest",
    "known_key",
    "policy_reasons",
    "quota_reasons",
]

# What makes two drafts under one key the same operation.
_SAME: Final = (
    "kind", "destination", "payload_sha256", "document", "prompt_version", "schema_version",
    "destination_sha256", "apply_to",
)  # fmt: skip


class Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why something is not done: a stable word and a sentence."""

    code: str
    words: str


class Queued(msgspec.Struct, frozen=True, kw_only=True, tag="queued"):
    """The operation is on disk. ``again`` says that it was there before, under the same key."""

    entry: Entry
    again: bool = False


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The operation was not queued, and nothing of it was written."""

    reasons: tuple[Reason, ...]


def policy_reasons(
    draft: Draft, *, delay_safe: frozenset[str], store_allowed: frozenset[str], limits: QueueLimits
) -> tuple[Reason, ...]:
    """Return why the policy does not let an operation wait; nothing is written to find out."""
    found = []
    if draft.kind not in delay_safe:
        words = f"the policy does not let {draft.kind!r} operations wait"
        found.append(Reason(code="not-delay-safe", words=words))
    if is_local_only(draft.data_class):
        words = "local-only data never leaves, so it does not wait to leave"
        found.append(Reason(code="local-only", words=words))
    elif draft.data_class not in store_allowed:
        words = f"{draft.data_class} data may not be kept in a file here"
        found.append(Reason(code="data-class-not-stored", words=words))
    if len(draft.payload) > limits.payload_bytes_max:
        words = (
            f"the payload has {len(draft.payload)} bytes; {limits.payload_bytes_max} are allowed"
        )
        found.append(Reason(code="payload-too-large", words=words))
    if draft.lifetime_s > limits.lifetime_max_s:
        words = (
            f"it would wait for {draft.lifetime_s:.0f} seconds; "
            f"{limits.lifetime_max_s:.0f} are allowed"
        )
        found.append(Reason(code="lifetime-too-long", words=words))
    return tuple(found)


def quota_reasons(
    connection: sqlite3.Connection, draft: Draft, limits: QueueLimits
) -> tuple[Reason, ...]:
    """Return which bounds of the queue an operation would pass."""
    count, size = connection.execute(
        "SELECT count(*), total(coalesce(length(payload), 0) + coalesce(length(answer), 0)) "
        "FROM queue_operations WHERE payload IS NOT NULL OR answer IS NOT NULL"
    ).fetchone()
    found = []
    if count >= limits.count_max:
        words = f"the queue holds {count} operations, as many as it may"
        found.append(Reason(code="queue-full-count", words=words))
    if size + len(draft.payload) > limits.bytes_max:
        words = f"the queue holds {size:.0f} bytes; {limits.bytes_max} are allowed"
        found.append(Reason(code="queue-full-bytes", words=words))
    return tuple(found)


def known_key(connection: sqlite3.Connection, draft: Draft) -> Queued | Refused | None:
    """Return what a key that was used before makes of a draft."""
    key = draft.idempotency_key
    if key is None:
        return None
    rows = rows_where(connection, "o.idempotency_key = ?", (key,))
    if rows:
        before = entry_of(rows[0])
        if all(getattr(draft, name) == getattr(before.operation, name) for name in _SAME):
            return Queued(entry=before, again=True)
        words = "its idempotency key is that of another operation"
        return Refused(reasons=(Reason(code="key-used", words=words),))
    receipt = connection.execute(
        "SELECT 1 FROM queue_receipts WHERE idempotency_key = ?", (key,)
    ).fetchone()
    if receipt is not None:
        words = "an operation with this idempotency key was done; see its receipt"
        return Refused(reasons=(Reason(code="already-done", words=words),))
    spent = connection.execute(
        "SELECT 1 FROM queue_spent_keys WHERE key_sha256 = ?", (key_digest(key),)
    ).fetchone()
    if spent is not None:
        words = "an operation with this idempotency key may have been sent, and was erased"
        return Refused(reasons=(Reason(code="key-spent", words=words),))
    return None


def insert(connection: sqlite3.Connection, draft: Draft, now: Now) -> Entry:
    """Write a draft as a queued operation."""
    document = draft.document
    told = {
        "operation_id": secrets.token_hex(8),
        "idempotency_key": draft.idempotency_key or secrets.token_hex(16),
        "kind": draft.kind,
        "destination": draft.destination,
        "deduplicates": draft.deduplicates,
        "feature": draft.feature,
        "purpose": draft.purpose,
        "data_class": draft.data_class,
        "priority": draft.priority,
        "created_s": now.time_s,
        "expires_s": now.time_s + draft.lifetime_s,
        "document_id": document and document.document_id,
        "document_version": document and document.version,
        "prompt_version": draft.prompt_version,
        "schema_version": draft.schema_version,
        "destination_sha256": draft.destination_sha256,
        "apply_to": draft.apply_to,
        "payload": draft.payload,
        "payload_sha256": draft.payload_sha256,
        "payload_bytes": len(draft.payload),
        "state": State.QUEUED,
        "changed_s": now.time_s,
    }
    names, marks = ", ".join(told), ", ".join("?" * len(told))
    inserted = connection.execute(
        f"INSERT INTO queue_operations({names}) VALUES({marks})",
        tuple(told.values()),
    )
    assert inserted.lastrowid is not None
    return entry_of(row_of(connection, inserted.lastrowid))


def key_digest(key: str) -> str:
    """Return what stays of a key when nothing else does."""
    return hashlib.sha256(key.encode("ascii")).hexdigest()
