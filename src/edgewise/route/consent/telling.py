"""The ledger as a person reads it: its decisions, and all of it as one value."""

from __future__ import annotations

import datetime as dt
from enum import StrEnum

import msgspec

from edgewise.route.consent.audit import AuditEvent, AuditRow, damaged, read_rows
from edgewise.route.consent.moments import to_datetime
from edgewise.route.consent.scopes import ConsentScope
from edgewise.route.consent.terms import all_terms
from edgewise.route.consent.turn import Turn
from edgewise.route.destinations import Terms

__all__ = ["ConsentExport", "EntryState", "LedgerEntry", "read_entries", "read_export"]


class EntryState(StrEnum):
    """Where a decision is: in force, or how it ended.

    ``GRANTED`` and ``DENIED`` are in force. ``UNREADABLE`` has a date, and the clock went back.
    ``REPLACED`` is a denial that a later decision followed.
    """

    GRANTED = "granted"
    DENIED = "denied"
    USED = "used"
    REVOKED = "revoked"
    EXPIRED = "expired"
    REPLACED = "replaced"
    UNREADABLE = "unreadable"


_ENDED = {
    AuditEvent.USED: EntryState.USED,
    AuditEvent.REVOKE: EntryState.REVOKED,
    AuditEvent.EXPIRE: EntryState.EXPIRED,
    AuditEvent.REPLACE: EntryState.REPLACED,
}


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One decision.

    Attributes:
        id: Its name.
        kind: ``grant`` or ``deny``.
        state: Where it is.
        scope: What it is about; ``None`` once that was erased.
        once: Whether it is good for one use.
        expires_at: When it ends by itself.
        decided_at: When it was made, by the device's clock then.
        origin: Through what.
        terms: What the user was told of the destination and agreed to; ``None`` for a denial, once
            that was erased, and for grants of before it was kept, which cover nothing.
        uses: How often it was used.
        ended_at: When it ended.
    """

    id: str
    kind: AuditEvent
    state: EntryState
    scope: ConsentScope | None
    once: bool
    expires_at: dt.datetime | None
    decided_at: dt.datetime
    origin: str
    terms: Terms | None = None
    uses: int = 0
    ended_at: dt.datetime | None = None

    @property
    def in_force(self) -> bool:
        """Return whether it stands."""
        return self.state in {EntryState.GRANTED, EntryState.DENIED}


class ConsentExport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that the ledger holds, but for the salts.

    Attributes:
        exported_at: When, by the device's clock.
        time_floor: The highest time that the ledger has seen.
        head: Where the audit ends, ``SEQ:DIGEST``. Kept elsewhere, it shows later whether what
            came before was changed.
        scopes: What is consented to, by the digest that the audit names it by.
        decisions: Every decision, oldest first.
        audit: Every row of the chain.
    """

    schema_version: int = 1
    exported_at: dt.datetime
    time_floor: dt.datetime
    head: str
    scopes: dict[str, ConsentScope]
    decisions: tuple[LedgerEntry, ...]
    audit: tuple[AuditRow, ...]


def read_entries(turn: Turn) -> tuple[LedgerEntry, ...]:
    """Return every decision, oldest first."""
    return _entries(turn, list(read_rows(turn.connection)), turn.scopes())


def read_export(turn: Turn) -> ConsentExport:
    """Return all that the ledger holds."""
    rows, scopes = list(read_rows(turn.connection)), turn.scopes()
    return ConsentExport(
        exported_at=to_datetime(turn.moment.now_ms),
        time_floor=to_datetime(turn.moment.effective_ms),
        head=turn.head,
        scopes=scopes,
        decisions=_entries(turn, rows, scopes),
        audit=tuple(rows),
    )


def _entries(
    turn: Turn, rows: list[AuditRow], scopes: dict[str, ConsentScope]
) -> tuple[LedgerEntry, ...]:
    found: dict[str, LedgerEntry] = {}
    terms = {digest: told for digest, (_, told) in all_terms(turn.connection).items()}
    for row in rows:
        if row.event.begins:
            found[row.decision] = _begun(turn, row, scopes, terms.get(row.terms))
        elif row.decision:
            entry = found.get(row.decision)
            if entry is None:
                raise damaged("its audit tells of a decision that nobody made")
            found[row.decision] = _followed(entry, row)
    return tuple(found.values())


def _begun(
    turn: Turn, row: AuditRow, scopes: dict[str, ConsentScope], terms: Terms | None
) -> LedgerEntry:
    state = EntryState.DENIED
    if row.event is AuditEvent.GRANT:
        state = EntryState.GRANTED
        if row.until_ms is not None and turn.moment.skewed:
            state = EntryState.UNREADABLE
    return LedgerEntry(
        id=row.decision,
        kind=row.event,
        state=state,
        scope=scopes.get(row.scope),
        once=row.once,
        expires_at=None if row.until_ms is None else to_datetime(row.until_ms),
        decided_at=to_datetime(row.at_ms),
        origin=row.origin,
        terms=terms,
    )


def _followed(entry: LedgerEntry, row: AuditRow) -> LedgerEntry:
    used = row.event in {AuditEvent.USE, AuditEvent.USED}
    entry = msgspec.structs.replace(entry, uses=entry.uses + used)
    if not row.event.ends:
        return entry
    return msgspec.structs.replace(entry, state=_ENDED[row.event], ended_at=to_datetime(row.at_ms))
