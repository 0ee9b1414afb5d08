"""What stands for a scope, as a pure function of what the ledger holds and what time it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from edgewise.route.consent.audit import AuditEvent, AuditRow, OpenDecision
from edgewise.route.consent.moments import to_datetime
from edgewise.route.consent.scopes import ConsentScope, ConsentState, ConsentVerdict

__all__ = ["CLOCK_SKEWED", "CLOCK_TOLERANCE_MS", "Moment", "judge"]

CLOCK_SKEWED: Final = "consent-clock-skewed"
# Declared: time servers correct a running clock by seconds; two minutes leave room for that.
CLOCK_TOLERANCE_MS: Final = 120_000
# Chosen: to read keeps the time when it is that much later than the latest that was kept, so that
# many readings cost one write, and a clock set back brings back no more than this.
_KEPT_EVERY_MS: Final = 10_000


class Moment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the clock says, and the highest time that the ledger has seen."""

    now_ms: int
    floor_ms: int

    @property
    def effective_ms(self) -> int:
        """Return the time that dates are held against: it never goes back."""
        return max(self.now_ms, self.floor_ms)

    @property
    def skewed(self) -> bool:
        """Return whether the clock went back so far that nobody knows how late it is."""
        return self.now_ms < self.floor_ms - CLOCK_TOLERANCE_MS

    @property
    def to_keep(self) -> bool:
        """Return whether whoever only reads keeps the time too."""
        return self.now_ms >= self.floor_ms + _KEPT_EVERY_MS

    def over(self, until_ms: int | None) -> bool:
        """Return whether a date has been reached."""
        return until_ms is not None and until_ms <= self.effective_ms


def judge(
    scope: ConsentScope,
    opened: Sequence[OpenDecision],
    last_end: AuditRow | None,
    moment: Moment,
    uncovered: Mapping[str, str] = MappingProxyType({}),
) -> ConsentState:
    """Return what stands for a scope.

    Of several grants, the one is named that is used first: one-time grants before standing ones,
    what ends sooner before what ends later, older before newer.

    Args:
        scope: Which.
        opened: Its decisions that have not ended.
        last_end: The latest end of one of its decisions.
        moment: The time.
        uncovered: Why a grant is not for the destination as it is declared now; an empty text for
            one that is.
    """
    grants = sorted(
        (one for one in opened if one.event is AuditEvent.GRANT),
        key=lambda one: (not one.once, one.until_ms is None, one.until_ms or 0, one.seq),
    )
    standing = [one for one in grants if not moment.over(one.until_ms)]
    live = [one for one in standing if not uncovered.get(one.decision)]
    usable = [one for one in live if one.until_ms is None or not moment.skewed]
    if usable:
        return _granted(scope, usable[0])
    if live:
        return ConsentState(
            scope=scope,
            verdict=ConsentVerdict.UNREADABLE,
            reason="the clock went back, so whether the consent still stands cannot be told",
            grant=live[0].decision,
            code=CLOCK_SKEWED,
        )
    if standing:
        latest = max(standing, key=lambda one: one.seq)
        return ConsentState(
            scope=scope,
            verdict=ConsentVerdict.CHANGED,
            reason=uncovered[latest.decision],
            grant=latest.decision,
        )
    if grants:
        return _over(scope, AuditEvent.EXPIRE, grants[0].decision, grants[0].until_ms)
    for one in opened:
        return ConsentState(
            scope=scope,
            verdict=ConsentVerdict.DENIED,
            reason="the user said no",
            grant=one.decision,
        )
    if last_end is None:
        return ConsentState(
            scope=scope, verdict=ConsentVerdict.ABSENT, reason="the user was not asked yet"
        )
    return _over(scope, last_end.event, last_end.decision, last_end.until_ms)


def _granted(scope: ConsentScope, grant: OpenDecision) -> ConsentState:
    until = f", until {_date(grant.until_ms)}" if grant.until_ms is not None else ""
    how = "once" if grant.once else "for every use"
    return ConsentState(
        scope=scope,
        verdict=ConsentVerdict.GRANTED,
        reason=f"the user agreed, {how}{until}",
        grant=grant.decision,
    )


def _over(
    scope: ConsentScope, event: AuditEvent, decision: str, until_ms: int | None
) -> ConsentState:
    if event is AuditEvent.EXPIRE:
        verdict, reason = ConsentVerdict.EXPIRED, f"the consent ended on {_date(until_ms)}"
    elif event is AuditEvent.USED:
        verdict, reason = ConsentVerdict.USED, "the consent was for one use, and was used"
    else:
        verdict, reason = ConsentVerdict.REVOKED, "the decision was taken back"
    return ConsentState(scope=scope, verdict=verdict, reason=reason, grant=decision)


def _date(moment_ms: int | None) -> str:
    return "" if moment_ms is None else f"{to_datetime(moment_ms):%Y-%m-%d %H:%M} UTC"
