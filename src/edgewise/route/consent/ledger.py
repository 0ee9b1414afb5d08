"""The ledger of consents: what the user agreed to and refused, and every use of it.

Invariants: a one-time grant is used once, whatever processes race or die; what cannot be read
opens nothing; a consent that was told to be expired is never told to be granted again, also when
the clock goes back; the audit is only ever added to.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Callable, Iterator

import msgspec

from edgewise.errors import EdgewiseError, InputError, ResourceError
from edgewise.route.consent.audit import SCHEMA, AuditEvent
from edgewise.route.consent.checking import AuditCheck, check
from edgewise.route.consent.judging import CLOCK_SKEWED, Moment
from edgewise.route.consent.moments import from_clock, from_datetime, to_datetime
from edgewise.route.consent.scopes import (
    ConsentScope,
    ConsentState,
    ConsentVerdict,
    Grant,
    Origin,
    require_consentable,
)
from edgewise.route.consent.telling import ConsentExport, LedgerEntry, read_entries, read_export
from edgewise.route.consent.turn import Turn
from edgewise.route.destinations import Terms
from edgewise.store.database import StateDatabase
from edgewise.store.home import Home

__all__ = ["STANDING_DAYS_MAX", "ConsentLedger", "Erasure"]

# Specified: a standing consent is asked for again after a year at the latest.
STANDING_DAYS_MAX = 366
_HASTY_S = 0.1


class Erasure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an erasure did.

    Attributes:
        scopes: How many scopes' texts and salts were removed.
        ended: How many decisions that were in force ended with it.
        log_emptied: Whether SQLite's write-ahead log was emptied too. While another process reads,
            it is not; the log then holds the texts until that process is done.
    """

    scopes: int
    ended: int
    log_emptied: bool


class ConsentLedger:
    """The ledger of one home. Making the object touches nothing.

    Unless said otherwise, every method raises what the state database raises: ``ResourceError``
    (``database-locked``, ``database-not-writable``) and ``IntegrityError`` (``database-damaged``,
    ``database-newer``), and ``IntegrityError`` (``consent-ledger-damaged``) for a ledger that
    contradicts itself. Nothing is changed then.

    Args:
        home: Whose ledger.
        clock: Seconds since 1970; the device's clock, which may be wrong.
        busy_timeout_s: How long another process's transaction is waited for, seconds.
    """

    def __init__(
        self,
        home: Home,
        *,
        clock: Callable[[], float] = time.time,
        busy_timeout_s: float = 10.0,
    ) -> None:
        self._database = StateDatabase(home, "consent", SCHEMA, busy_timeout_s=busy_timeout_s)
        self._hasty = StateDatabase(
            home, "consent", SCHEMA, busy_timeout_s=min(busy_timeout_s, _HASTY_S)
        )
        self._clock = clock

    # -- deciding

    def grant(
        self,
        scope: ConsentScope,
        terms: Terms,
        *,
        origin: Origin,
        once: bool = True,
        expires_at: dt.datetime | None = None,
        standing_allowed: bool = False,
    ) -> Grant:
        """Record that the user agrees; return the grant. A denial of the same scope ends.

        Args:
            scope: To what.
            terms: What the user was told of the destination; it is good for nothing else.
            origin: Through what the user said so.
            once: Whether it is for one use. What is for more is a standing consent, and needs a
                date.
            expires_at: When it ends by itself.
            standing_allowed: Whether the policy allows standing consent for this scope.

        Raises:
            InputError: the data is local-only (``consent-local-only``), the terms are another
                destination's (``consent-scope-invalid``), the policy does not allow standing
                consent (``consent-standing-forbidden``), or the date is missing, over,
                without a time zone or too far (``consent-date-invalid``).
            ResourceError: there is a date, and the clock is not to be trusted
                (``consent-clock-skewed``).
        """
        require_consentable(scope)
        if terms.name != scope.destination:
            raise InputError(
                "consent-scope-invalid",
                f"the consent is for {scope.destination!r}, and the terms are {terms.name!r}'s",
                context={"field": "destination"},
                hint="take the terms of the destination that the scope names",
            )
        if not once and not standing_allowed:
            raise InputError(
                "consent-standing-forbidden",
                "the policy allows consent for one use only here",
                hint="give it for one use, or let the policy allow consent until a date",
            )
        with self._writing() as turn:
            until_ms = _until(expires_at, turn.moment, standing=not once)
            self._end_opened(turn, scope, AuditEvent.DENY, AuditEvent.REPLACE, origin)
            grant = turn.begin(
                scope,
                AuditEvent.GRANT,
                once=once,
                until_ms=until_ms,
                origin=str(origin),
                terms=terms,
            )
        return Grant(
            id=grant,
            scope=scope,
            terms=terms,
            once=once,
            expires_at=None if until_ms is None else to_datetime(until_ms),
            granted_at=to_datetime(turn.moment.now_ms),
            origin=origin,
        )

    def deny(self, scope: ConsentScope, *, origin: Origin) -> str:
        """Record that the user says no; return the decision's name.

        Every grant of the scope ends. The denial stands until it is revoked, erased, or followed
        by a grant.
        """
        with self._writing() as turn:
            self._end_opened(turn, scope, AuditEvent.GRANT, AuditEvent.REVOKE, origin)
            self._end_opened(turn, scope, AuditEvent.DENY, AuditEvent.REPLACE, origin)
            return turn.begin(scope, AuditEvent.DENY, once=False, until_ms=None, origin=str(origin))

    def revoke(self, what: ConsentScope | str, *, origin: Origin) -> int:
        """Take back the decisions of a scope, or the one of a name; return how many stood.

        Raises:
            InputError: there was never a decision of that name (``consent-not-found``).
        """
        with self._writing() as turn:
            if isinstance(what, str):
                one = turn.decision(what)
                stood = [] if one is None else [one]
            else:
                digest = turn.digest_of(what)
                stood = [] if digest is None else turn.opened(digest)
            for one in stood:
                turn.end(one, AuditEvent.REVOKE, origin=str(origin))
        return len(stood)

    def find(self, beginning: str) -> str:
        """Return the name of the one decision whose name begins so, whatever became of it.

        Raises:
            InputError: there is none (``consent-not-found``) or more than one
                (``consent-ambiguous``).
        """
        with self._database.reading() as connection:
            return Turn(connection, self._now_ms(None)).find(beginning)

    def expire(self, now: float | None = None) -> int:
        """End what is over by the clock; return how many decisions ended.

        Everything that writes does so too. The time is kept: dates that have been reached stay
        reached when the clock goes back.
        """
        with self._transaction(now) as turn:
            return turn.settle()

    # -- using

    def state(self, scope: ConsentScope, terms: Terms, now: float | None = None) -> ConsentState:
        """Return what stands for a scope. It raises nothing, and uses nothing up.

        What cannot be read is ``unreadable``. All that it may write is the end of a consent whose
        date it finds reached, and the time.

        Args:
            scope: Which.
            terms: How the destination is declared now.
            now: Seconds since 1970; the ledger's clock by default.
        """
        try:
            with self._database.reading() as connection:
                turn = Turn(connection, self._now_ms(now))
                state = turn.state(scope, terms)
                digest = turn.digest_of(scope)
                due = digest is not None and bool(turn.due(digest))
            if due:
                self.expire(now)
            elif turn.moment.to_keep:
                self._keep_time(turn.moment)
        except EdgewiseError as error:
            return ConsentState(
                scope=scope,
                verdict=ConsentVerdict.UNREADABLE,
                reason=f"the ledger of consents cannot be read: {error.message}",
                code=error.code,
            )
        return state

    def moment(self, now: float | None = None) -> Moment | None:
        """Return the time by the clock and the highest that was seen; ``None``: it is unreadable.

        It raises nothing. It keeps the time.
        """
        try:
            with self._database.reading() as connection:
                moment = Turn(connection, self._now_ms(now)).moment
        except EdgewiseError:
            return None
        if moment.to_keep:
            self._keep_time(moment)
        return moment

    def consume(self, scope: ConsentScope, terms: Terms) -> str:
        """Use a consent to a destination as it is declared now; return the grant's name once that
        is on disk.

        A one-time grant is over then, also when this process dies before it uses the answer. A
        standing grant stays, and its use is in the audit.

        Raises:
            InputError: no consent stands for this scope (``consent-not-usable``; the context's
                ``verdict`` says what does).
            ResourceError: there is one with a date, and the clock is not to be trusted
                (``consent-clock-skewed``).
        """
        require_consentable(scope)
        with self._writing() as turn:
            state = turn.state(scope, terms)
            if state.verdict is ConsentVerdict.GRANTED:
                grant = turn.decision(state.grant)
                assert grant is not None
                turn.use(grant)
        # Raised here, so that what ended by the clock is kept.
        if state.code == CLOCK_SKEWED:
            raise _clock_skewed(turn.moment)
        if state.verdict is not ConsentVerdict.GRANTED:
            raise InputError(
                "consent-not-usable",
                f"no consent stands for this: {state.reason}",
                context={"verdict": str(state.verdict), "scope": msgspec.to_builtins(scope)},
                hint="ask the user; nothing may be sent without",
            )
        return state.grant

    # -- telling

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Return every decision there was, oldest first, with what became of it."""
        with self._writing() as turn:  # what it tells to be over has ended
            return read_entries(turn)

    def export(self) -> ConsentExport:
        """Return all that the ledger holds, for the user to keep or take elsewhere."""
        with self._writing() as turn:
            return read_export(turn)

    def verify(self, head: str | None = None) -> AuditCheck:
        """Return whether the audit is whole, and all else follows from it.

        Args:
            head: A head that was kept earlier, ``SEQ:DIGEST``; the audit must go through it.

        Raises:
            InputError: the head is none (``consent-head-invalid``).
        """
        with self._database.reading() as connection:
            return check(Turn(connection, self._now_ms(None)), head)

    # -- erasing, and the clock

    def erase(self, scope: ConsentScope | None, *, origin: Origin) -> Erasure:
        """Remove what the ledger knows about a scope, or about all (``None``).

        The texts and the salt are overwritten in the database, and the write-ahead log is emptied.
        The audit keeps that something was decided, used and erased, and when; what it was about
        cannot be found from it any more. Decisions that were in force end.
        """
        with self._writing() as turn:
            wanted = list(turn.scopes().values()) if scope is None else [scope]
            ended = [turn.erase(one, origin=str(origin)) for one in wanted]
        known = [count for count in ended if count is not None]
        return Erasure(scopes=len(known), ended=sum(known), log_emptied=self._database.empty_log())

    def trust_clock(self, *, origin: Origin) -> int:
        """Take the clock as right again after it was wrong; return how many decisions ended.

        The clock's highest time is forgotten. So that nothing comes to life again by that, every
        decision with a date ends.
        """
        with self._writing() as turn:
            return turn.trust_clock(origin=str(origin))

    # -- transactions

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Turn]:
        with self._transaction(None) as turn:
            turn.settle()
            yield turn

    @contextlib.contextmanager
    def _transaction(self, now: float | None) -> Iterator[Turn]:
        with self._database.writing() as connection:
            # The clock is read under the lock: the order of rows is the order of readings.
            yield Turn(connection, self._now_ms(now))

    def _keep_time(self, moment: Moment) -> None:
        # What cannot be kept now is kept by the next that reads; nobody waits for it.
        with contextlib.suppress(EdgewiseError), self._hasty.writing() as connection:
            Turn(connection, moment.now_ms).settle()

    def _now_ms(self, now: float | None) -> int:
        return from_clock(self._clock() if now is None else now)

    def _end_opened(
        self, turn: Turn, scope: ConsentScope, which: AuditEvent, event: AuditEvent, origin: Origin
    ) -> None:
        digest = turn.digest_of(scope)
        for one in turn.opened(digest) if digest is not None else ():
            if one.event is which:
                turn.end(one, event, origin=str(origin))


def _until(expires_at: dt.datetime | None, moment: Moment, *, standing: bool) -> int | None:
    if expires_at is None:
        if standing:
            raise _date_invalid("a consent for more than one use needs a date on which it ends")
        return None
    if expires_at.tzinfo is None:
        raise _date_invalid("the date has no time zone")
    until_ms = from_datetime(expires_at)
    if moment.skewed:
        raise _clock_skewed(moment)
    if moment.over(until_ms):
        raise _date_invalid("the date is over")
    if until_ms > moment.now_ms + STANDING_DAYS_MAX * 86_400_000:
        raise _date_invalid(f"the date is more than {STANDING_DAYS_MAX} days away")
    return until_ms


def _date_invalid(why: str) -> InputError:
    return InputError(
        "consent-date-invalid",
        f"this consent cannot be recorded: {why}",
        hint=f"name a date within the next {STANDING_DAYS_MAX} days",
    )


def _clock_skewed(moment: Moment) -> ResourceError:
    return ResourceError(
        "consent-clock-skewed",
        f"the clock says {to_datetime(moment.now_ms):%Y-%m-%d %H:%M} UTC, and was at "
        f"{to_datetime(moment.floor_ms):%Y-%m-%d %H:%M} before: no date can be held against it",
        context={"now_ms": moment.now_ms, "floor_ms": moment.floor_ms},
        hint="set the clock; if it is right now and was wrong before, `edgewise consent "
        "trust-clock` ends every consent with a date and starts anew",
    )
