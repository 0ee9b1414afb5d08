"""The ledger: one consent opens one thing, and what is over stays over."""

from __future__ import annotations

import datetime as dt
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.unit.route.consent.consents import (
    DAY,
    HOUR,
    SCOPE,
    YEAR,
    Clock,
    database,
    events,
    ledger,
    terms_of,
)

from edgewise.errors import EdgewiseError, InputError, ResourceError
from edgewise.route.consent import ConsentLedger, ConsentScope, ConsentVerdict, Origin

CLI = Origin.CLI


def code_of(caught: pytest.ExceptionInfo[EdgewiseError]) -> str:
    return caught.value.code


def verdict(consents: ConsentLedger, scope: ConsentScope = SCOPE) -> str:
    return str(consents.state(scope, terms_of(scope)).verdict)


def refused(consents: ConsentLedger, scope: ConsentScope = SCOPE) -> str:
    """Try to use a consent that there is not; return what stands instead."""
    with pytest.raises(InputError) as caught:
        consents.consume(scope, terms_of(scope))
    assert code_of(caught) == "consent-not-usable"
    return str(caught.value.context["verdict"])


def standing(consents: ConsentLedger, until: dt.datetime) -> str:
    return consents.grant(
        SCOPE, terms_of(SCOPE), origin=CLI, once=False, expires_at=until, standing_allowed=True
    ).id


# -- one use, and narrow


def test_nobody_was_asked(tmp_path: Path) -> None:
    consents = ledger(tmp_path)
    assert verdict(consents) == "absent"
    assert refused(consents) == "absent"
    assert events(tmp_path) == []


def test_a_grant_is_for_one_use(tmp_path: Path) -> None:
    consents = ledger(tmp_path)
    grant = consents.grant(SCOPE, terms_of(SCOPE), origin=Origin.WEB)
    assert (grant.once, grant.expires_at, grant.origin) == (True, None, "web")
    for _ in range(3):  # to look uses nothing up
        state = consents.state(SCOPE, terms_of(SCOPE))
        assert (state.verdict, state.grant) == (ConsentVerdict.GRANTED, grant.id)
    assert consents.consume(SCOPE, terms_of(SCOPE)) == grant.id
    assert verdict(consents) == "used"
    assert refused(consents) == "used"
    assert events(tmp_path) == ["grant", "used"]


def test_two_grants_are_for_two_uses(tmp_path: Path) -> None:
    consents = ledger(tmp_path)
    grants = [consents.grant(SCOPE, terms_of(SCOPE), origin=CLI).id for _ in range(2)]
    assert [
        consents.consume(SCOPE, terms_of(SCOPE)),
        consents.consume(SCOPE, terms_of(SCOPE)),
    ] == grants
    assert refused(consents) == "used"


@pytest.mark.parametrize("field", ["feature", "data_class", "destination", "purpose"])
@pytest.mark.parametrize("text", ["other", "{}s", "{}\u200b", "{}\x00", "x{}"])
def test_a_grant_covers_nothing_else(tmp_path: Path, field: str, text: str) -> None:
    consents = ledger(tmp_path)
    consents.grant(SCOPE, terms_of(SCOPE), origin=CLI)
    value = text.format(getattr(SCOPE, field))
    other = msgspec.structs.replace(SCOPE, **{field: value})
    assert verdict(consents, other) == "absent"
    assert refused(consents, other) == "absent"
    assert consents.state(other, terms_of(other)).scope == other
    consents.deny(other, origin=CLI)
    assert verdict(consents) == "granted"


def test_letters_of_another_case_are_another_scope(tmp_path: Path) -> None:
    consents = ledger(tmp_path)
    consents.grant(SCOPE, terms_of(SCOPE), origin=CLI)
    assert verdict(consents, msgspec.structs.replace(SCOPE, destination="Acme")) == "absent"


def test_no_consent_opens_local_only_data(tmp_path: Path) -> None:
    consents, scope = ledger(tmp_path), msgspec.structs.replace(SCOPE, data_class="local-only")
    for attempt in (
        lambda: consents.grant(scope, terms_of(scope), origin=CLI),
        lambda: consents.consume(scope, terms_of(scope)),
    ):
        with pytest.raises(InputError) as caught:
            attempt()
        assert code_of(caught) == "consent-local-only"
    assert verdict(consents, scope) == "absent"


# -- standing


def test_standing_consent_needs_the_policy_and_a_date(tmp_path: Path) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    with pytest.raises(InputError) as caught:
        consents.grant(SCOPE, terms_of(SCOPE), origin=CLI, once=False, expires_at=clock.after(DAY))
    assert code_of(caught) == "consent-standing-forbidden"
    with pytest.raises(InputError) as caught:
        consents.grant(SCOPE, terms_of(SCOPE), origin=CLI, once=False, standing_allowed=True)
    assert code_of(caught) == "consent-date-invalid"
    assert verdict(consents) == "absent"


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize(
    "date",
    [
        dt.datetime(2027, 1, 1),  # noqa: DTZ001 - that is what is refused
        Clock().after(0),
        Clock().after(-1),
        Clock().after(367 * DAY),
        dt.datetime.max.replace(tzinfo=dt.UTC),
        dt.datetime.min.replace(tzinfo=dt.UTC),
    ],
    ids=str,
)
def test_a_date_that_is_none_of_the_next_year_is_refused(
    tmp_path: Path, date: dt.datetime, once: bool
) -> None:
    consents = ledger(tmp_path)
    with pytest.raises(InputError) as caught:
        consents.grant(
            SCOPE, terms_of(SCOPE), origin=CLI, once=once, expires_at=date, standing_allowed=True
        )
    assert code_of(caught) == "consent-date-invalid"
    assert verdict(consents) == "absent"


def test_standing_consent_is_used_until_its_date_and_each_use_is_audited(tmp_path: Path) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    grant = standing(consents, clock.after(DAY))
    assert [consents.consume(SCOPE, terms_of(SCOPE)) for _ in range(3)] == [grant] * 3
    clock.seconds += DAY - 0.001
    assert consents.consume(SCOPE, terms_of(SCOPE)) == grant
    clock.seconds += 0.001
    assert verdict(consents) == "expired"
    assert refused(consents) == "expired"
    assert events(tmp_path) == ["grant", "use", "use", "use", "use", "expire"]
    (entry,) = consents.entries()
    assert (entry.uses, entry.state, entry.in_force) == (4, "expired", False)


def test_what_is_for_one_use_is_used_first(tmp_path: Path) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    stands = standing(consents, clock.after(DAY))
    free = consents.grant(SCOPE, terms_of(SCOPE), origin=CLI).id
    late = consents.grant(SCOPE, terms_of(SCOPE), origin=CLI, expires_at=clock.after(HOUR)).id
    soon = consents.grant(SCOPE, terms_of(SCOPE), origin=CLI, expires_at=clock.after(60)).id
    used = []
    for _ in range(5):
        used.append(consents.state(SCOPE, terms_of(SCOPE)).grant)
        assert consents.consume(SCOPE, terms_of(SCOPE)) == used[-1]
    assert used == [soon, late, free, stands, stands]


# -- saying no, and taking back


def test_the_latest_word_counts(tmp_path: Path) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    standing(consents, clock.after(DAY))
    consents.grant(SCOPE, terms_of(SCOPE), origin=CLI)
    consents.deny(SCOPE, origin=CLI)
    assert verdict(consents) == "denied"
    assert refused(consents) == "denied"
    grant = consents.grant(SCOPE, terms_of(SCOPE), origin=CLI).id
    assert consents.consume(SCOPE, terms_of(SCOPE)) == grant
    assert refused(consents) == "used"  # neither the denial nor a grant before it came back
    assert events(tmp_path) == [
        "grant", "grant", "revoke", "revoke", "deny", "replace", "grant", "used",
    ]  # fmt: skip


def test_what_is_taken_back_is_over(tmp_path: Path) -> None:
    consents = ledger(tmp_path)
    first, second = (consents.grant(SCOPE, terms_of(SCOPE), origin=CLI).id for _ in range(2))
    assert consents.revoke(first, origin=CLI) == 1
    assert consents.revoke(first, origin=CLI) == 0
    assert consents.state(SCOPE, terms_of(SCOPE)).grant == second
    assert consents.revoke(SCOPE, origin=CLI) == 1
    assert consents.revoke(SCOPE, origin=CLI) == 0
    assert refused(consents) == "revoked"
    denial = consents.deny(SCOPE, origin=CLI)
    assert consents.revoke(denial, origin=CLI) == 1
    assert verdict(consents) == "revoked"
    with pytest.raises(InputError) as caught:
        consents.revoke("0" * 16, origin=CLI)
    assert code_of(caught) == "consent-not-found"


# -- the clock


def test_a_clock_that_went_back_a_little_changes_nothing(tmp_path: Path) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    grant = standing(consents, clock.after(HOUR))
    clock.seconds -= 120
    assert consents.consume(SCOPE, terms_of(SCOPE)) == grant


def test_a_clock_that_went_back_makes_dates_unusable(tmp_path: Path) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    standing(consents, clock.after(HOUR))
    clock.seconds -= 121
    state = consents.state(SCOPE, terms_of(SCOPE))
    assert (state.verdict, state.code) == (ConsentVerdict.UNREADABLE, "consent-clock-skewed")
    with pytest.raises(ResourceError) as caught:
        consents.consume(SCOPE, terms_of(SCOPE))
    assert code_of(caught) == "consent-clock-skewed"
    with pytest.raises(ResourceError) as caught:
        consents.grant(SCOPE, terms_of(SCOPE), origin=CLI, expires_at=clock.after(DAY))
    assert code_of(caught) == "consent-clock-skewed"
    assert [entry.state for entry in consents.entries()] == ["unreadable"]
    free = consents.grant(
        SCOPE, terms_of(SCOPE), origin=CLI
    ).id  # without a date there is nothing to tell
    assert consents.consume(SCOPE, terms_of(SCOPE)) == free
    clock.seconds += 121
    assert verdict(consents) == "granted"


def test_a_clock_that_stands_far_back_from_the_start_opens_nothing_later(tmp_path: Path) -> None:
    clock = Clock()
    clock.seconds = 0.0  # a device whose battery was empty
    consents = ledger(tmp_path, clock)
    standing(consents, clock.after(DAY))
    assert verdict(consents) == "granted"
    clock.seconds = Clock().seconds
    assert refused(consents) == "expired"
    clock.seconds = 0.0
    assert refused(consents) == "expired"


@pytest.mark.parametrize("seen_by", ["state", "consume", "expire", "entries", "other"])
def test_what_expired_by_a_clock_far_ahead_stays_so(tmp_path: Path, seen_by: str) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    standing(consents, clock.after(DAY))
    clock.seconds += 20 * YEAR
    if seen_by == "state":
        assert verdict(consents) == "expired"
    elif seen_by == "consume":
        assert refused(consents) == "expired"
    elif seen_by == "expire":
        assert consents.expire() == 1
    elif seen_by == "entries":
        assert [entry.state for entry in consents.entries()] == ["expired"]
    else:
        consents.deny(msgspec.structs.replace(SCOPE, feature="other"), origin=CLI)
    clock.seconds -= 20 * YEAR
    for again in (consents, ledger(tmp_path, clock)):
        assert verdict(again) == "expired"
        assert refused(again) == "expired"


def test_a_clock_that_was_wrong_is_trusted_again_on_request(tmp_path: Path) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    free = consents.grant(SCOPE, terms_of(SCOPE), origin=CLI).id
    clock.seconds += 20 * YEAR
    dated = consents.grant(SCOPE, terms_of(SCOPE), origin=CLI, expires_at=clock.after(YEAR)).id
    clock.seconds -= 20 * YEAR
    with pytest.raises(ResourceError):
        standing(consents, clock.after(DAY))
    assert consents.trust_clock(origin=CLI) == 1
    assert {e.id: str(e.state) for e in consents.entries()} == {free: "granted", dated: "expired"}
    assert consents.consume(SCOPE, terms_of(SCOPE)) == free
    grant = standing(consents, clock.after(DAY))
    assert consents.consume(SCOPE, terms_of(SCOPE)) == grant
    assert consents.verify().intact


@pytest.mark.parametrize("reading", [float("nan"), float("inf"), float("-inf"), -1e300, -1.0])
def test_a_clock_that_tells_no_time_opens_no_date(tmp_path: Path, reading: float) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    standing(consents, clock.after(DAY))
    clock.seconds = reading
    assert verdict(consents) == "unreadable"
    with pytest.raises(ResourceError):
        consents.consume(SCOPE, terms_of(SCOPE))


def test_a_clock_beyond_all_dates_expires(tmp_path: Path) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    standing(consents, clock.after(DAY))
    clock.seconds = 1e300
    assert refused(consents) == "expired"


# -- telling


def test_entries_and_export_tell_all(tmp_path: Path) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    first = consents.grant(SCOPE, terms_of(SCOPE), origin=Origin.API).id
    consents.consume(SCOPE, terms_of(SCOPE))
    second = consents.deny(SCOPE, origin=Origin.WEB)
    one, two = consents.entries()
    assert (one.id, one.state, one.uses, one.origin) == (first, "used", 1, "api")
    assert one.scope == SCOPE
    assert (two.id, two.state, two.kind, two.in_force) == (second, "denied", "deny", True)
    told = msgspec.json.decode(msgspec.json.encode(consents.export()))
    assert told["schema_version"] == 1
    assert [row["event"] for row in told["audit"]] == ["grant", "used", "deny"]
    assert list(told["scopes"].values()) == [msgspec.to_builtins(SCOPE)]
    assert {row["scope"] for row in told["audit"]} == set(told["scopes"])
    assert told["head"] == f"3:{told['audit'][-1]['digest']}" == consents.verify().head
    assert "salt" not in str(told)


@pytest.mark.parametrize("look", ["state", "moment"])
def test_to_look_keeps_the_time(tmp_path: Path, look: str) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    standing(consents, clock.after(DAY))
    clock.seconds += HOUR
    consents.moment() if look == "moment" else consents.state(SCOPE, terms_of(SCOPE))
    clock.seconds -= HOUR
    assert consents.state(SCOPE, terms_of(SCOPE)).code == "consent-clock-skewed"


def test_many_looks_write_once(tmp_path: Path) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    grant = standing(consents, clock.after(DAY))
    clock.seconds += 10
    consents.state(SCOPE, terms_of(SCOPE))
    log = (tmp_path / "state.sqlite-wal").exists()
    before = database(tmp_path).stat().st_mtime_ns
    for _ in range(20):
        clock.seconds += 0.4
        assert consents.state(SCOPE, terms_of(SCOPE)).grant == grant
    assert database(tmp_path).stat().st_mtime_ns == before
    assert not log


def test_a_look_waits_for_nobody_to_keep_the_time(tmp_path: Path) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    grant = standing(consents, clock.after(DAY))
    clock.seconds += HOUR
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        assert consents.state(SCOPE, terms_of(SCOPE)).grant == grant
        assert time.monotonic() - began < 5  # a writer is waited for 10 s
