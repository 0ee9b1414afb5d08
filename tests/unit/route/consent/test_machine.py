"""The ledger against a model that a person can read, over many sequences of events."""

from __future__ import annotations

import datetime as dt
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.unit.route.consent.consents import SCOPE, Clock, ledger, terms_of

from edgewise.errors import EdgewiseError
from edgewise.route.consent import Origin

SCOPES = (
    SCOPE,
    msgspec.structs.replace(SCOPE, destination="other"),
    msgspec.structs.replace(SCOPE, purpose="Answer a letter."),
)
CLI = Origin.CLI
scopes = st.sampled_from(SCOPES)
seconds = st.sampled_from([60, 3600, 86_400])
steps = st.sampled_from([1, 60, 3600, 86_400, 400 * 86_400, -1, -60, -120, -121, -3600, -90_000])


@dataclass
class Decision:
    name: str
    scope: object
    yes: bool
    once: bool
    until: float | None
    end: str = ""


class Ledger(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.real = ledger(Path(self.folder.name), self.clock)
        self.decisions: list[Decision] = []
        self.ends: list[Decision] = []
        self.floor = 0.0
        self.heads: list[str] = []

    # -- the model

    def settle(self) -> None:
        """What everything that writes does first."""
        self.floor = max(self.floor, self.clock.seconds)
        for one in self.standing():
            if one.until is not None and one.until <= self.floor:
                self.end(one, "expired")

    def standing(self, scope: object = None) -> list[Decision]:
        return [d for d in self.decisions if not d.end and scope in {None, d.scope}]

    def end(self, one: Decision, how: str) -> None:
        one.end = how
        self.ends.append(one)

    def skewed(self) -> bool:
        return self.clock.seconds < self.floor - 120

    def expected(self, scope: object) -> tuple[str, str]:
        """Return the verdict and the decision, without regard to what is due."""
        standing = self.standing(scope)
        grants = [d for d in standing if d.yes and not (d.until and self.skewed())]
        if grants:
            first = min(grants, key=lambda d: (not d.once, d.until or 1e99))
            return "granted", first.name
        if any(d.yes for d in standing):
            return "unreadable", ""
        if standing:
            return "denied", standing[-1].name
        ended = [d for d in self.ends if d.scope == scope]
        return (ended[-1].end, ended[-1].name) if ended else ("absent", "")

    # -- what happens

    @rule(scope=scopes)
    def grant_once(self, scope) -> None:
        name = self.real.grant(scope, terms_of(scope), origin=CLI).id
        self.settle()
        self.granted(Decision(name, scope, True, True, None))

    @rule(scope=scopes, length=seconds, once=st.booleans())
    def grant_until(self, scope, length, once) -> None:
        until = dt.datetime.fromtimestamp(self.clock.seconds, dt.UTC) + dt.timedelta(seconds=length)
        try:
            name = self.real.grant(
                scope,
                terms_of(scope),
                origin=CLI,
                once=once,
                expires_at=until,
                standing_allowed=True,
            ).id
        except EdgewiseError as error:
            late = until.timestamp() <= max(self.floor, self.clock.seconds)
            expected = "consent-clock-skewed" if self.skewed() else "consent-date-invalid"
            assert self.skewed() or late
            assert error.code == expected  # noqa: PT017 - at other times it is none
            return
        assert not self.skewed()
        self.settle()
        self.granted(Decision(name, scope, True, once, until.timestamp()))

    def granted(self, decision: Decision) -> None:
        for one in self.standing(decision.scope):
            if not one.yes:
                self.end(one, "replaced")
        self.decisions.append(decision)

    @rule(scope=scopes)
    def deny(self, scope) -> None:
        name = self.real.deny(scope, origin=CLI)
        self.settle()
        for one in self.standing(scope):
            self.end(one, "revoked" if one.yes else "replaced")
        self.decisions.append(Decision(name, scope, False, False, None))

    @rule(scope=scopes)
    def revoke(self, scope) -> None:
        ended = self.real.revoke(scope, origin=CLI)
        self.settle()
        standing = self.standing(scope)
        assert ended == len(standing)
        for one in standing:
            self.end(one, "revoked")

    @rule()
    def expire(self) -> None:
        before = len(self.ends)
        ended = self.real.expire()
        self.settle()
        assert ended == len(self.ends) - before

    @rule(scope=scopes)
    def erase(self, scope) -> None:
        self.real.erase(scope, origin=CLI)
        self.settle()
        self.decisions = [d for d in self.decisions if d.scope != scope]
        self.ends = [d for d in self.ends if d.scope != scope]

    @rule(scope=scopes)
    def consume(self, scope) -> None:
        try:
            used = self.real.consume(scope, terms_of(scope))
        except EdgewiseError as error:
            refused = error.context.get("verdict", error.code)
            self.settle()
            verdict, _ = self.expected(scope)
            wanted = "consent-clock-skewed" if verdict == "unreadable" else verdict
            assert (verdict != "granted", refused) == (True, wanted)
            return
        self.settle()
        assert self.expected(scope) == ("granted", used)
        one = next(d for d in self.decisions if d.name == used)
        if one.once:
            self.end(one, "used")

    @rule(step=steps)
    def time_moves(self, step) -> None:
        self.clock.seconds = max(self.clock.seconds + step, 0.0)

    @rule()
    def trust_clock(self) -> None:
        ended = self.real.trust_clock(origin=CLI)
        self.settle()
        dated = [d for d in self.standing() if d.until is not None]
        assert ended == len(dated)
        for one in dated:
            self.end(one, "expired")
        self.floor = self.clock.seconds

    @rule()
    def keep_the_head(self) -> None:
        self.heads.append(self.real.verify().head)

    # -- what holds

    @invariant()
    def the_states_are_those_of_the_model(self) -> None:
        for scope in SCOPES:
            state = self.real.state(scope, terms_of(scope))
            if any(
                d.until is not None and d.until <= max(self.floor, self.clock.seconds)
                for d in self.standing(scope)
            ):
                # Seen to be over: kept, and with it the time.
                before = self.expected_when_due(scope)
                self.settle()
                assert str(state.verdict) == before
                continue
            verdict, name = self.expected(scope)
            assert str(state.verdict) == verdict
            assert verdict == "unreadable" or state.grant == name
            if self.clock.seconds >= self.floor + 10:  # to look keeps the time now and then
                self.settle()

    def expected_when_due(self, scope: object) -> str:
        late = max(self.floor, self.clock.seconds)
        rest = [d for d in self.standing(scope) if d.until is None or d.until > late]
        if any(d.yes and not (d.until and self.skewed()) for d in rest):
            return "granted"
        return "unreadable" if any(d.yes for d in rest) else "expired"

    def teardown(self) -> None:
        for head in self.heads:
            found = self.real.verify(head)
            assert found.intact, found.problems
        assert self.real.verify().intact
        told = {entry.id: str(entry.state) for entry in self.real.entries()}
        self.settle()
        for one in self.decisions:
            if one.end:
                assert told[one.name] == one.end
            elif one.yes and one.until and self.skewed():
                assert told[one.name] == "unreadable"
            else:
                assert told[one.name] == ("granted" if one.yes else "denied")
        uses = {entry.id: entry.uses for entry in self.real.entries() if entry.once}
        assert all(count <= 1 for count in uses.values())
        self.folder.cleanup()


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
