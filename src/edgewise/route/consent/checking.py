"""Whether the ledger is whole: the chain, and all that must follow from it."""

from __future__ import annotations

import re

import msgspec

from edgewise.errors import InputError, IntegrityError
from edgewise.route.consent.audit import (
    GENESIS,
    AuditEvent,
    AuditRow,
    OpenDecision,
    read_rows,
    typed_row,
)
from edgewise.route.consent.turn import Turn, opening

__all__ = ["AuditCheck", "check"]

_HEAD = re.compile(r"(0|[1-9][0-9]{0,15}):([0-9a-f]{64})")
_PROBLEMS_MAX = 20


class AuditCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of a check.

    Attributes:
        intact: Whether nothing is wrong.
        rows: How many rows the audit has.
        head: Where it ends, ``SEQ:DIGEST``.
        problems: What is wrong, in words; the first twenty.
    """

    intact: bool
    rows: int
    head: str
    problems: tuple[str, ...]


def check(turn: Turn, head: str | None = None) -> AuditCheck:
    """Return whether the ledger is whole.

    Args:
        turn: A transaction that reads.
        head: A head that was kept earlier; the audit must go through it.

    Raises:
        InputError: the head is none (``consent-head-invalid``).
    """
    replay = _Replay(_parse(head))
    try:
        for row in read_rows(turn.connection):
            replay.take(row)
    except IntegrityError as error:
        replay.problems.append(error.message)
    replay.finish(turn)
    return AuditCheck(
        intact=not replay.problems,
        rows=replay.seq,
        head=turn.head,
        problems=tuple(replay.problems[:_PROBLEMS_MAX]),
    )


def _parse(head: str | None) -> tuple[int, str] | None:
    if head is None:
        return None
    match = _HEAD.fullmatch(head)
    if match is None:
        raise InputError(
            "consent-head-invalid",
            f"{head!r} is no head of an audit",
            hint="it is SEQ:DIGEST, as `edgewise consent export` and `verify` print it",
        )
    return int(match[1]), match[2]


class _Replay:
    """The chain, read from its beginning; what it says is in force."""

    def __init__(self, kept: tuple[int, str] | None) -> None:
        self.seq, self.digest = 0, GENESIS
        self.problems: list[str] = []
        self._kept = kept
        self._met = kept is None or kept == (0, GENESIS)
        self._open: dict[str, OpenDecision] = {}
        self._known: set[str] = set()
        self._named: set[str] = set()
        self._erased: set[str] = set()
        self._terms: dict[str, str] = {}  # digest of terms: digest of the scope
        self._floor_ms = 0

    def take(self, row: AuditRow) -> None:
        """Add a row."""
        if row.seq != self.seq + 1:
            self._say(row, f"it follows row {self.seq}")
        if row.previous != self.digest:
            self._say(row, "it does not follow from the row before")
        if row.digest != row.computed():
            self._say(row, "it was changed")
        self.seq, self.digest = row.seq, row.digest
        self._met = self._met or (self.seq, self.digest) == self._kept
        self._floor_ms = max(self._floor_ms, row.at_ms)
        if row.event is AuditEvent.TRUST_CLOCK:
            self._floor_ms = row.at_ms
        elif row.event is AuditEvent.ERASE:
            self._erased.add(row.scope)
        else:
            self._decide(row)

    def finish(self, turn: Turn) -> None:
        """Hold against the chain what the database keeps beside it."""
        if not self._met:
            self.problems.append("the audit does not go through the head that was kept")
        if turn.head != f"{self.seq}:{self.digest}":
            self.problems.append("the audit does not end where it was left")
        if turn.moment.floor_ms < self._floor_ms:
            self.problems.append("the highest time that was seen was set back")
        self._finish_open(turn)
        self._finish_scopes(turn)
        self._finish_terms(turn)

    def _decide(self, row: AuditRow) -> None:
        self._named.add(row.scope)
        if row.scope in self._erased:
            self._say(row, "it is about a scope that was erased")
        if row.event.begins:
            if row.decision in self._known:
                self._say(row, "its decision was made before")
            self._known.add(row.decision)
            if row.terms:
                self._terms[row.terms] = row.scope
            self._open[row.decision] = opening(row)
            return
        one = self._open.get(row.decision)
        if one is None or (one.scope, one.once, one.until_ms) != (
            row.scope,
            row.once,
            row.until_ms,
        ):
            self._say(row, "its decision was not in force")
        elif row.event in {AuditEvent.USE, AuditEvent.USED}:
            self._use(row, one)
        if row.event.ends:
            self._open.pop(row.decision, None)

    def _use(self, row: AuditRow, one: OpenDecision) -> None:
        if one.event is not AuditEvent.GRANT:
            self._say(row, "a denial was used")
        if one.once is not (row.event is AuditEvent.USED):
            self._say(row, "a one-time grant was used as a standing one, or the other way round")
        if one.until_ms is not None and one.until_ms <= max(row.at_ms, self._floor_ms):
            self._say(row, "a grant was used after its end")

    def _finish_open(self, turn: Turn) -> None:
        kept: dict[str, OpenDecision] = {}
        try:
            for found in turn.connection.execute("SELECT * FROM consent_open").fetchall():
                one = typed_row(found, OpenDecision)
                kept[one.decision] = one
        except IntegrityError as error:
            self.problems.append(error.message)
        for name in sorted({*kept, *self._open}):
            if kept.get(name) != self._open.get(name):
                self.problems.append(f"decision {name} is not in force as its audit says")

    def _finish_scopes(self, turn: Turn) -> None:
        try:
            scopes = turn.scopes()
            for scope in scopes.values():
                turn.digest_of(scope)
        except IntegrityError as error:
            self.problems.append(error.message)
            return
        for digest in sorted(self._erased & set(scopes)):
            self.problems.append(f"scope {digest[:12]} was erased, and is there")
        for digest in sorted(self._named - self._erased - set(scopes)):
            self.problems.append(f"scope {digest[:12]} is gone, and was not erased")
        for digest in sorted(set(scopes) - self._named):
            self.problems.append(f"scope {digest[:12]} is there, and nothing was decided about it")

    def _finish_terms(self, turn: Turn) -> None:
        try:
            kept = turn.terms()
        except IntegrityError as error:
            self.problems.append(error.message)
            return
        wanted = {one: scope for one, scope in self._terms.items() if scope not in self._erased}
        for digest in sorted({*wanted, *kept}):
            if digest not in kept:
                self.problems.append(f"terms {digest[:12]} are gone, and were not erased")
            elif wanted.get(digest) != kept[digest]:
                self.problems.append(f"terms {digest[:12]} are there, and no consent is for them")

    def _say(self, row: AuditRow, why: str) -> None:
        self.problems.append(f"row {row.seq} ({row.event}): {why}")
