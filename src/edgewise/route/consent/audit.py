"""The audit of consents: a chain of rows that is only ever added to.

Each row holds the digest of the row before it. A row names its scope, and the terms that a grant
is for, by salted digests; their texts and the salt lie apart, so that they can be erased while the
chain stays whole.
What is in force now (``consent_open``) and where the chain ends (``consent_mark``) follow from the
chain; :mod:`~edgewise.route.consent.checking` derives both again and compares.

The chain shows what was changed in it. It cannot show that the whole database was replaced by an
older or a freshly made one; a head that was kept elsewhere can.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from edgewise.core.canonical import canonical_json, digest_of
from edgewise.errors import IntegrityError
from edgewise.route.consent.scopes import ConsentScope
from edgewise.route.destinations import Terms

__all__ = [
    "GENESIS",
    "SCHEMA",
    "AuditEvent",
    "AuditRow",
    "Mark",
    "OpenDecision",
    "append",
    "damaged",
    "new_salt",
    "read_mark",
    "read_rows",
    "require_end",
    "salted_digest",
    "typed_row",
]

GENESIS = "0" * 64
_ENDS = "event IN ('used', 'revoke', 'expire', 'replace')"
_BEGINS = "event IN ('grant', 'deny')"

SCHEMA = (
    f"""
    CREATE TABLE consent_scopes(
        digest TEXT NOT NULL PRIMARY KEY,
        salt BLOB NOT NULL,
        feature TEXT NOT NULL,
        data_class TEXT NOT NULL,
        destination TEXT NOT NULL,
        purpose TEXT NOT NULL,
        UNIQUE(feature, data_class, destination, purpose)
    );
    CREATE TABLE consent_audit(
        seq INTEGER PRIMARY KEY,
        at_ms INTEGER NOT NULL,
        event TEXT NOT NULL,
        scope TEXT NOT NULL,
        decision TEXT NOT NULL,
        once INTEGER NOT NULL,
        until_ms INTEGER,
        origin TEXT NOT NULL,
        previous TEXT NOT NULL UNIQUE,
        digest TEXT NOT NULL
    );
    CREATE UNIQUE INDEX consent_begin ON consent_audit(decision) WHERE {_BEGINS};
    CREATE UNIQUE INDEX consent_end ON consent_audit(decision) WHERE {_ENDS};
    CREATE INDEX consent_ends_of_scope ON consent_audit(scope, seq) WHERE {_ENDS};
    CREATE INDEX consent_erasures ON consent_audit(scope) WHERE event = 'erase';
    CREATE TABLE consent_open(
        decision TEXT NOT NULL PRIMARY KEY,
        scope TEXT NOT NULL REFERENCES consent_scopes(digest),
        event TEXT NOT NULL,
        once INTEGER NOT NULL,
        until_ms INTEGER,
        seq INTEGER NOT NULL
    );
    CREATE INDEX consent_open_of_scope ON consent_open(scope);
    CREATE TABLE consent_mark(
        id INTEGER PRIMARY KEY CHECK(id = 1),
        floor_ms INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        digest TEXT NOT NULL
    );
    INSERT INTO consent_mark VALUES(1, 0, 0, '{GENESIS}');
    CREATE TRIGGER consent_audit_unchanged BEFORE UPDATE ON consent_audit BEGIN
        SELECT RAISE(ABORT, 'a row of the audit is never changed');
    END;
    CREATE TRIGGER consent_audit_kept BEFORE DELETE ON consent_audit BEGIN
        SELECT RAISE(ABORT, 'a row of the audit is never removed');
    END;
    CREATE TRIGGER consent_scope_unchanged BEFORE UPDATE ON consent_scopes BEGIN
        SELECT RAISE(ABORT, 'a scope is never changed');
    END;
    CREATE TRIGGER consent_scope_kept BEFORE DELETE ON consent_scopes
    WHEN NOT EXISTS(
        SELECT 1 FROM consent_audit WHERE scope = old.digest AND event = 'erase'
    ) BEGIN
        SELECT RAISE(ABORT, 'a scope is removed by an erasure only');
    END;
    CREATE TRIGGER consent_mark_kept BEFORE DELETE ON consent_mark BEGIN
        SELECT RAISE(ABORT, 'the mark is never removed');
    END;
    """,  # noqa: S608 - of constants
    """
    ALTER TABLE consent_audit ADD COLUMN terms TEXT NOT NULL DEFAULT '';
    ALTER TABLE consent_open ADD COLUMN terms TEXT NOT NULL DEFAULT '';
    CREATE TABLE consent_terms(
        digest TEXT NOT NULL PRIMARY KEY,
        scope TEXT NOT NULL REFERENCES consent_scopes(digest),
        terms TEXT NOT NULL
    );
    CREATE INDEX consent_terms_of_scope ON consent_terms(scope);
    CREATE TRIGGER consent_terms_unchanged BEFORE UPDATE ON consent_terms BEGIN
        SELECT RAISE(ABORT, 'terms are never changed');
    END;
    CREATE TRIGGER consent_terms_kept BEFORE DELETE ON consent_terms
    WHEN NOT EXISTS(
        SELECT 1 FROM consent_audit WHERE scope = old.scope AND event = 'erase'
    ) BEGIN
        SELECT RAISE(ABORT, 'terms are removed by an erasure only');
    END;
    """,
)


class AuditEvent(StrEnum):
    """What happened.

    ``GRANT`` and ``DENY`` begin a decision. ``USED`` (a one-time grant was used), ``REVOKE``,
    ``EXPIRE`` and ``REPLACE`` (of a denial, by a later decision) end one; each decision ends once.
    ``USE`` is one use of a standing grant. ``ERASE`` is about a scope, ``TRUST_CLOCK`` about the
    clock.
    """

    GRANT = "grant"
    DENY = "deny"
    USE = "use"
    USED = "used"
    REVOKE = "revoke"
    EXPIRE = "expire"
    REPLACE = "replace"
    ERASE = "erase"
    TRUST_CLOCK = "trust-clock"

    @property
    def begins(self) -> bool:
        """Return whether a decision begins with it."""
        return self in {AuditEvent.GRANT, AuditEvent.DENY}

    @property
    def ends(self) -> bool:
        """Return whether a decision ends with it."""
        return self in {
            AuditEvent.USED,
            AuditEvent.REVOKE,
            AuditEvent.EXPIRE,
            AuditEvent.REPLACE,
        }


class AuditRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the chain.

    Attributes:
        seq: Its number, from 1 on, without gaps.
        at_ms: The device's clock then, milliseconds since 1970; it may go back between rows.
        event: What happened.
        scope: Salted digest of the scope; empty for an event about no scope.
        decision: Which decision; empty for an event about none.
        once: Whether the decision is good for one use.
        until_ms: When the decision ends by itself.
        origin: Through what the user acted; empty for what the ledger did by itself.
        terms: Salted digest of the destination's terms that a grant is for; empty elsewhere, and
            for grants of before they were kept.
        previous: Digest of the row before, 64 zeros for the first.
        digest: SHA-256 of the canonical JSON of all the above, with this field empty.
    """

    seq: int
    at_ms: int
    event: AuditEvent
    scope: str
    decision: str
    once: bool
    until_ms: int | None
    origin: str
    previous: str
    digest: str = ""
    terms: str = ""

    def computed(self) -> str:
        """Return the digest that the row must have."""
        told = msgspec.to_builtins(msgspec.structs.replace(self, digest=""))
        if not self.terms:  # it counts where there are any: rows of before have none
            del told["terms"]
        return digest_of(told)


class OpenDecision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision that has begun and not ended; ``seq`` is the row it began with.

    ``terms`` is as in the row; empty for a denial, which is about the scope whatever is declared.
    """

    decision: str
    scope: str
    event: AuditEvent
    once: bool
    until_ms: int | None
    seq: int
    terms: str = ""


class Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the chain ends, and the highest time that the ledger has seen (its floor)."""

    floor_ms: int
    seq: int
    digest: str


Row = TypeVar("Row", bound=msgspec.Struct)


def typed_row(row: sqlite3.Row, kind: type[Row]) -> Row:
    """Return a row of the database as a value.

    Raises:
        IntegrityError: a column holds what the ledger never wrote.
    """
    told: dict[str, Any] = dict(row)
    if "once" in told:
        told["once"] = told["once"] != 0
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        raise damaged(f"a row cannot be read: {error}") from error


def damaged(why: str) -> IntegrityError:
    """Return the error of a ledger that contradicts itself."""
    return IntegrityError(
        "consent-ledger-damaged",
        f"the ledger of consents contradicts itself: {why}",
        hint="`edgewise consent verify` lists what is wrong; put a backup in its place, or move "
        "the state database away: consents are then asked for again",
    )


def salted_digest(value: ConsentScope | Terms, salt: bytes) -> str:
    """Return what the audit names a scope or a destination's terms by.

    Without the salt it cannot be found by guessing.
    """
    return hashlib.sha256(salt + canonical_json(value)).hexdigest()


def new_salt() -> bytes:
    """Return a fresh salt, 32 bytes."""
    return secrets.token_bytes(32)


def read_mark(connection: sqlite3.Connection) -> Mark:
    """Return the mark.

    Raises:
        IntegrityError: it is gone or unreadable.
    """
    row = connection.execute("SELECT floor_ms, seq, digest FROM consent_mark").fetchone()
    if row is None:
        raise damaged("its mark is gone")
    return typed_row(row, Mark)


def read_rows(connection: sqlite3.Connection) -> Iterator[AuditRow]:
    """Yield the rows of the chain, in order.

    Raises:
        IntegrityError: a row holds what the ledger never wrote.
    """
    for row in connection.execute("SELECT * FROM consent_audit ORDER BY seq"):
        yield typed_row(row, AuditRow)


def require_end(connection: sqlite3.Connection) -> Mark:
    """Return the mark, which must name the last row of the chain.

    Raises:
        IntegrityError: it names another.
    """
    mark = read_mark(connection)
    last = connection.execute(
        "SELECT seq, digest FROM consent_audit ORDER BY seq DESC LIMIT 1"
    ).fetchone()
    if (mark.seq, mark.digest) != ((0, GENESIS) if last is None else tuple(last)):
        raise damaged("its audit does not end where it was left")
    return mark


def append(
    connection: sqlite3.Connection,
    event: AuditEvent,
    *,
    at_ms: int,
    scope: str = "",
    decision: str = "",
    once: bool = False,
    until_ms: int | None = None,
    origin: str = "",
    terms: str = "",
) -> AuditRow:
    """Add a row to the chain, within a transaction that writes; return it.

    Raises:
        IntegrityError: the chain does not end where its mark says.
    """
    mark = require_end(connection)
    row = AuditRow(
        seq=mark.seq + 1,
        at_ms=at_ms,
        event=event,
        scope=scope,
        decision=decision,
        once=once,
        until_ms=until_ms,
        origin=origin,
        previous=mark.digest,
        terms=terms,
    )
    row = msgspec.structs.replace(row, digest=row.computed())
    connection.execute(
        "INSERT INTO consent_audit VALUES(:seq, :at_ms, :event, :scope, :decision, :once, "
        ":until_ms, :origin, :previous, :digest, :terms)",
        {**msgspec.structs.asdict(row), "event": str(event)},
    )
    connection.execute(
        "UPDATE consent_mark SET seq = ?, digest = ? WHERE id = 1", (row.seq, row.digest)
    )
    return row
