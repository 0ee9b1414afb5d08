"""One transaction of the ledger: what is read and written in it, at one moment."""

from __future__ import annotations

import secrets
import sqlite3

from edgewise.errors import InputError
from edgewise.route.consent import audit
from edgewise.route.consent.audit import AuditEvent, AuditRow, OpenDecision, damaged, typed_row
from edgewise.route.consent.judging import Moment, judge
from edgewise.route.consent.scopes import ConsentScope, ConsentState
from edgewise.route.consent.terms import TermsKept, all_terms
from edgewise.route.destinations import Terms

__all__ = ["Turn", "opening"]

_OPEN = "SELECT decision, scope, event, once, until_ms, seq, terms FROM consent_open"


class Turn:
    """A transaction of the ledger.

    Every method raises ``IntegrityError`` (``consent-ledger-damaged``) for what contradicts the
    audit, and sqlite's errors, which the state database turns into typed ones.

    Args:
        connection: With an open transaction; one that writes, for the methods that write.
        now_ms: What the clock says.
    """

    def __init__(self, connection: sqlite3.Connection, now_ms: int) -> None:
        self.connection = connection
        self.moment = Moment(now_ms=now_ms, floor_ms=audit.read_mark(connection).floor_ms)

    # -- reading

    @property
    def head(self) -> str:
        """Return where the audit ends, ``SEQ:DIGEST``."""
        mark = audit.read_mark(self.connection)
        return f"{mark.seq}:{mark.digest}"

    def digest_of(self, scope: ConsentScope) -> str | None:
        """Return what the audit names a scope by; ``None`` for one that it does not know."""
        return self._known(scope)[0]

    def _known(self, scope: ConsentScope) -> tuple[str | None, bytes]:
        row = self.connection.execute(
            "SELECT digest, salt FROM consent_scopes WHERE feature = ? AND data_class = ? "
            "AND destination = ? AND purpose = ?",
            (scope.feature, scope.data_class, scope.destination, scope.purpose),
        ).fetchone()
        if row is None:
            return None, b""
        digest, salt = row
        if not isinstance(salt, bytes) or audit.salted_digest(scope, salt) != digest:
            raise damaged("a scope is not the one that its digest names")
        return str(digest), salt

    def opened(self, digest: str) -> list[OpenDecision]:
        """Return the decisions of a scope that have not ended, each held against the audit."""
        rows = self.connection.execute(f"{_OPEN} WHERE scope = ? ORDER BY seq", (digest,))
        return [self._audited(typed_row(row, OpenDecision)) for row in rows.fetchall()]

    def decision(self, decision: str) -> OpenDecision | None:
        """Return a decision that has not ended; ``None`` for one that has.

        Raises:
            InputError: there was never one of that name (``consent-not-found``).
        """
        row = self.connection.execute(f"{_OPEN} WHERE decision = ?", (decision,)).fetchone()
        if row is not None:
            return self._audited(typed_row(row, OpenDecision))
        if self._row(decision, "event IN ('grant', 'deny')") is None:
            raise _not_found(decision)
        return None

    def find(self, beginning: str) -> str:
        """Return the name of the one decision that begins so.

        Raises:
            InputError: there is none (``consent-not-found``) or more than one
                (``consent-ambiguous``).
        """
        # "~" comes after all digits and letters. What is no beginning of a name finds nothing.
        rows = self.connection.execute(
            "SELECT decision FROM consent_audit WHERE event IN ('grant', 'deny') "
            "AND decision >= ? AND decision < ? LIMIT 2",
            (beginning, f"{beginning}~"),
        ).fetchall()
        if not rows or not beginning:
            raise _not_found(beginning)
        if len(rows) > 1:
            raise InputError(
                "consent-ambiguous",
                f"several decisions begin with {beginning!r}",
                context={"decision": beginning},
                hint="give more of the name",
            )
        return str(rows[0]["decision"])

    def state(self, scope: ConsentScope, terms: Terms) -> ConsentState:
        """Return what stands for a scope while a destination is declared so."""
        audit.require_end(self.connection)
        digest, salt = self._known(scope)
        if digest is None:
            return judge(scope, (), None, self.moment)
        row = self.connection.execute(
            "SELECT * FROM consent_audit WHERE scope = ? "
            "AND event IN ('used', 'revoke', 'expire', 'replace') ORDER BY seq DESC LIMIT 1",
            (digest,),
        ).fetchone()
        last_end = None if row is None else typed_row(row, AuditRow)
        opened = self.opened(digest)
        kept = TermsKept(self.connection, digest, salt)
        uncovered = {
            one.decision: kept.why_not(one, terms)
            for one in opened
            if one.event is AuditEvent.GRANT
        }
        return judge(scope, opened, last_end, self.moment, uncovered)

    def due(self, digest: str | None = None) -> list[OpenDecision]:
        """Return the decisions whose date has been reached: of a scope, or all."""
        rows = self.connection.execute(
            f"{_OPEN} WHERE until_ms <= ? AND (? IS NULL OR scope = ?) ORDER BY seq",
            (self.moment.effective_ms, digest, digest),
        )
        return [typed_row(row, OpenDecision) for row in rows.fetchall()]

    # -- writing

    def settle(self) -> int:
        """Keep the time as the floor, and end what is due by it. Return how many ended."""
        self.connection.execute(
            "UPDATE consent_mark SET floor_ms = ? WHERE id = 1", (self.moment.effective_ms,)
        )
        due = self.due()
        for one in due:
            self.end(one, AuditEvent.EXPIRE)
        return len(due)

    def begin(
        self,
        scope: ConsentScope,
        event: AuditEvent,
        *,
        once: bool,
        until_ms: int | None,
        origin: str,
        terms: Terms | None = None,
    ) -> str:
        """Begin a decision about a scope; return its name. A grant is for some terms."""
        digest, salt = self._known(scope)
        if digest is None:
            digest, salt = self._new_scope(scope)
        kept = TermsKept(self.connection, digest, salt)
        told = "" if terms is None else kept.keep(terms)
        decision = secrets.token_hex(8)
        row = self._append(
            event,
            scope=digest,
            decision=decision,
            once=once,
            until_ms=until_ms,
            origin=origin,
            terms=told,
        )
        self.connection.execute(
            "INSERT INTO consent_open VALUES(?, ?, ?, ?, ?, ?, ?)",
            (decision, digest, str(event), once, until_ms, row.seq, told),
        )
        return decision

    def use(self, decision: OpenDecision) -> None:
        """Record a use of a grant; a one-time grant ends with it."""
        if decision.once:
            self.end(decision, AuditEvent.USED)
        else:
            self._record(decision, AuditEvent.USE, "")

    def end(self, decision: OpenDecision, event: AuditEvent, *, origin: str = "") -> None:
        """End a decision."""
        gone = self.connection.execute(
            "DELETE FROM consent_open WHERE decision = ?", (decision.decision,)
        )
        if gone.rowcount != 1:
            raise damaged("a decision that was open is gone")
        self._record(decision, event, origin)

    def erase(self, scope: ConsentScope, *, origin: str) -> int | None:
        """Remove a scope's texts and salt. Return how many decisions that ended.

        ``None`` when nothing is known about the scope.
        """
        digest = self.digest_of(scope)
        if digest is None:
            return None
        opened = self.opened(digest)
        for one in opened:
            self.end(one, AuditEvent.REVOKE, origin=origin)
        self._append(AuditEvent.ERASE, scope=digest, origin=origin)
        self.connection.execute("DELETE FROM consent_terms WHERE scope = ?", (digest,))
        self.connection.execute("DELETE FROM consent_scopes WHERE digest = ?", (digest,))
        return len(opened)

    def trust_clock(self, *, origin: str) -> int:
        """Take the clock as right, and end every decision with a date. Return how many."""
        rows = self.connection.execute(f"{_OPEN} WHERE until_ms IS NOT NULL ORDER BY seq")
        dated = [typed_row(row, OpenDecision) for row in rows.fetchall()]
        for one in dated:
            self.end(one, AuditEvent.EXPIRE, origin=origin)
        self._append(AuditEvent.TRUST_CLOCK, origin=origin)
        self.connection.execute(
            "UPDATE consent_mark SET floor_ms = ? WHERE id = 1", (self.moment.now_ms,)
        )
        return len(dated)

    def scopes(self) -> dict[str, ConsentScope]:
        """Return the scopes that were not erased, by their digests."""
        rows = self.connection.execute(
            "SELECT digest, feature, data_class, destination, purpose FROM consent_scopes"
        ).fetchall()
        found: dict[str, ConsentScope] = {}
        for row in rows:
            told = dict(row)
            digest = told.pop("digest")
            try:
                found[str(digest)] = ConsentScope(**told)
            except InputError as error:
                raise damaged(f"a scope cannot be read: {error.message}") from error
        return found

    def terms(self) -> dict[str, str]:
        """Return which terms are kept for which scope, each by its digest, which is checked."""
        salts = dict(self.connection.execute("SELECT digest, salt FROM consent_scopes").fetchall())
        found = all_terms(self.connection)
        for digest, (scope, told) in found.items():
            salt = salts.get(scope)
            if not isinstance(salt, bytes) or audit.salted_digest(told, salt) != digest:
                raise damaged("what a consent is for is not what its digest names")
        return {digest: scope for digest, (scope, _) in found.items()}

    # -- the audit

    def _new_scope(self, scope: ConsentScope) -> tuple[str, bytes]:
        salt = audit.new_salt()
        digest = audit.salted_digest(scope, salt)
        self.connection.execute(
            "INSERT INTO consent_scopes VALUES(?, ?, ?, ?, ?, ?)",
            (digest, salt, scope.feature, scope.data_class, scope.destination, scope.purpose),
        )
        return digest, salt

    def _audited(self, one: OpenDecision) -> OpenDecision:
        begun = self._row(one.decision, "event IN ('grant', 'deny')")
        if begun is None or begun.digest != begun.computed() or one != opening(begun):
            raise damaged("a decision is not the one that its audit tells of")
        if self._row(one.decision, "event IN ('used', 'revoke', 'expire', 'replace')"):
            raise damaged("a decision is open that has ended by its audit")
        return one

    def _row(self, decision: str, events: str) -> AuditRow | None:
        # The words are those of the partial indexes, so that these are used.
        row = self.connection.execute(
            f"SELECT * FROM consent_audit WHERE decision = ? AND {events}",  # noqa: S608 - ours
            (decision,),
        ).fetchone()
        return None if row is None else typed_row(row, AuditRow)

    def _record(self, decision: OpenDecision, event: AuditEvent, origin: str) -> None:
        self._append(
            event,
            scope=decision.scope,
            decision=decision.decision,
            once=decision.once,
            until_ms=decision.until_ms,
            origin=origin,
        )

    def _append(
        self,
        event: AuditEvent,
        *,
        origin: str,
        scope: str = "",
        decision: str = "",
        once: bool = False,
        until_ms: int | None = None,
        terms: str = "",
    ) -> AuditRow:
        return audit.append(
            self.connection,
            event,
            at_ms=self.moment.now_ms,
            scope=scope,
            decision=decision,
            once=once,
            until_ms=until_ms,
            origin=origin,
            terms=terms,
        )


def opening(begun: AuditRow) -> OpenDecision:
    """Return the decision that a row of the audit begins."""
    return OpenDecision(
        decision=begun.decision,
        scope=begun.scope,
        event=begun.event,
        once=begun.once,
        until_ms=begun.until_ms,
        seq=begun.seq,
        terms=begun.terms,
    )


def _not_found(decision: str) -> InputError:
    return InputError(
        "consent-not-found",
        f"the ledger has no decision {decision!r}",
        hint="`edgewise consent list` names them all",
    )
