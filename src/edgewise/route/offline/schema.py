"""Tables of the queue in the state database. A step is never changed once it was released."""

from __future__ import annotations

from typing import Final

__all__ = ["COMPONENT", "STEPS"]

COMPONENT: Final = "queue"

_FIRST: Final = """
CREATE TABLE queue_clock(
    id INTEGER PRIMARY KEY CHECK (id = 1),
    time_s REAL NOT NULL, boot_s REAL NOT NULL, boot_id TEXT NOT NULL
);
CREATE TABLE queue_operations(
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    operation_id TEXT NOT NULL UNIQUE,
    idempotency_key TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL, destination TEXT NOT NULL,
    deduplicates INTEGER NOT NULL CHECK (deduplicates IN (0, 1)),
    feature TEXT NOT NULL, purpose TEXT NOT NULL,
    data_class TEXT NOT NULL CHECK (data_class <> 'local-only'),
    priority INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 9),
    created_s REAL NOT NULL, expires_s REAL NOT NULL,
    document_id TEXT, document_version TEXT, prompt_version TEXT, schema_version TEXT,
    payload BLOB, payload_sha256 TEXT NOT NULL, payload_bytes INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'leased', 'sending', 'answered', 'applying',
        'applied', 'stale', 'expired', 'failed', 'unknown', 'incompatible', 'declined',
        'cancelled')),
    code TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '', hold TEXT NOT NULL DEFAULT '',
    not_before_s REAL NOT NULL DEFAULT 0,
    tries INTEGER NOT NULL DEFAULT 0,
    token INTEGER NOT NULL DEFAULT 0,
    lease_boot_id TEXT NOT NULL DEFAULT '', lease_boot_s REAL NOT NULL DEFAULT 0,
    lease_time_s REAL NOT NULL DEFAULT 0,
    answer BLOB, answer_sha256 TEXT,
    changed_s REAL NOT NULL
);
CREATE INDEX queue_by_state ON queue_operations(state, not_before_s);
CREATE TABLE queue_attempts(
    seq INTEGER NOT NULL REFERENCES queue_operations(seq) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    token INTEGER NOT NULL,
    begun_s REAL NOT NULL, ended_s REAL,
    result TEXT NOT NULL CHECK (result IN ('open', 'lost', 'answered', 'refused', 'retry-later',
        'not-sent', 'maybe-sent')),
    link TEXT NOT NULL DEFAULT '', detail TEXT NOT NULL DEFAULT '',
    accepted INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (seq, number)
) WITHOUT ROWID;
CREATE TABLE queue_receipts(
    idempotency_key TEXT PRIMARY KEY,
    operation_id TEXT NOT NULL, kind TEXT NOT NULL, destination TEXT NOT NULL,
    payload_sha256 TEXT NOT NULL, attempt INTEGER NOT NULL,
    status INTEGER NOT NULL, answer_sha256 TEXT NOT NULL, request_id TEXT NOT NULL,
    received_s REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE queue_spent_keys(key_sha256 TEXT PRIMARY KEY, spent_s REAL NOT NULL) WITHOUT ROWID;
"""

_SECOND: Final = """
ALTER TABLE queue_operations ADD COLUMN destination_sha256 TEXT;
ALTER TABLE queue_operations ADD COLUMN apply_to TEXT;
"""

STEPS: Final = (_FIRST, _SECOND)
