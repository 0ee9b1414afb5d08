"""A consent is for a destination as the user was told of it, and for no other of its name."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.route.consent.consents import (
    DAY,
    SCOPE,
    Clock,
    database,
    events,
    ledger,
    sql,
    terms_of,
)

from edgewise.errors import InputError, IntegrityError
from edgewise.route.consent import ConsentLedger, Origin
from edgewise.route.consent.audit import SCHEMA, AuditEvent, AuditRow
from edgewise.route.destinations import Basis, Destination

CLI = Origin.CLI
AGREED = terms_of(SCOPE)
CHANGES: list[tuple[str, Any, str]] = [
    ("url", "https://evil.example/v1", "the address was 'https://api.acme.example/v1', is "),
    ("url", "https://api.acme.example/v2", "is 'https://api.acme.example/v2'"),
    ("model", "other", "the model was 'large', is 'other'"),
    ("region", "US", "the region was 'EU', is 'US'"),
    ("region", "", "the region was 'EU', is undeclared"),
    ("retention_days", 31, "the days it is kept was 30, is 31"),
    ("retention_days", None, "the days it is kept was 30, is undeclared"),
    ("basis", Basis.CONTRACT, "the basis was 'consent', is 'contract'"),
    ("purpose", "Training", "the purpose was 'Answer a letter', is 'Training'"),
]


def grant(consents: ConsentLedger, *, once: bool = False) -> str:
    until = None if once else Clock().after(DAY)
    return consents.grant(
        SCOPE, AGREED, origin=CLI, once=once, expires_at=until, standing_allowed=True
    ).id


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize(("field", "value", "told"), CHANGES)
def test_a_destination_that_is_declared_otherwise_is_not_agreed_to(
    tmp_path: Path, field: str, value: Any, told: str, once: bool
) -> None:
    consents = ledger(tmp_path)
    name = grant(consents, once=once)
    other = msgspec.structs.replace(AGREED, **{field: value})
    state = consents.state(SCOPE, other)
    assert (state.verdict, state.grant, state.code) == ("changed", name, "")
    assert told in state.reason
    with pytest.raises(InputError) as caught:
        consents.consume(SCOPE, other)
    assert caught.value.code == "consent-not-usable"
    assert caught.value.context["verdict"] == "changed"
    assert told in caught.value.message
    assert events(tmp_path) == ["grant"]
    assert consents.consume(SCOPE, AGREED) == name  # what was agreed to is not lost


def test_who_is_asked_again_agrees_to_what_is_declared_now(tmp_path: Path) -> None:
    consents = ledger(tmp_path)
    old = grant(consents)
    moved = msgspec.structs.replace(AGREED, url="https://new.example/v1")
    new = consents.grant(SCOPE, moved, origin=CLI).id
    assert consents.consume(SCOPE, moved) == new
    assert consents.state(SCOPE, moved).verdict == "changed"
    assert consents.consume(SCOPE, AGREED) == old
    assert [entry.terms for entry in consents.entries()] == [AGREED, moved]
    assert consents.verify().intact


def test_a_no_is_a_no_whatever_is_declared(tmp_path: Path) -> None:
    consents = ledger(tmp_path)
    consents.deny(SCOPE, origin=CLI)
    other = msgspec.structs.replace(AGREED, url="https://new.example/v1")
    assert consents.state(SCOPE, other).verdict == "denied"


def test_what_is_no_part_of_the_terms_may_change() -> None:
    place = Destination(name="acme", url="https://a.example/v1", model="m", basis=Basis.CONSENT)
    other = msgspec.structs.replace(place, timeout_s=1.0, secret="key", retries=0)
    assert place.terms(("messages", "tools")) == other.terms(("tools", "messages"))
    assert place.terms(()).differences(other.terms(())) == ""


def test_more_that_may_be_sent_is_another_consent(tmp_path: Path) -> None:
    consents = ledger(tmp_path)
    agreed = terms_of(fields=("messages",))
    consents.grant(SCOPE, agreed, origin=CLI)
    wider = terms_of(fields=("messages", "tools"))
    found = consents.state(SCOPE, wider)
    assert found.verdict == "changed"
    assert "what may be sent was messages, is messages, tools" in found.reason
    assert consents.state(SCOPE, agreed).verdict == "granted"


def test_the_terms_are_the_destinations_that_the_scope_names(tmp_path: Path) -> None:
    other = msgspec.structs.replace(AGREED, name="evil")
    with pytest.raises(InputError) as caught:
        ledger(tmp_path).grant(SCOPE, other, origin=CLI)
    assert caught.value.code == "consent-scope-invalid"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE consent_open SET terms = (SELECT max(digest) FROM consent_terms)",
        "UPDATE consent_audit SET terms = (SELECT max(digest) FROM consent_terms) WHERE seq = 1",
        "UPDATE consent_terms SET terms = replace(terms, 'EU', 'XX')",
    ],
)
def test_terms_that_were_changed_in_the_file_open_nothing(tmp_path: Path, statement: str) -> None:
    consents = ledger(tmp_path)
    grant(consents)
    first = consents.export().audit[0].terms
    regions = (f"US{number}" for number in range(99))
    terms = (msgspec.structs.replace(AGREED, region=region) for region in regions)
    # One that the audit names by a greater digest, so that the statements find it.
    for wanted in terms:
        consents.grant(SCOPE, wanted, origin=CLI)
        consents.consume(SCOPE, wanted)
        if consents.export().audit[-2].terms > first:
            break
    triggers = ("audit_unchanged", "terms_unchanged")
    sql(tmp_path, *(f"DROP TRIGGER consent_{name}" for name in triggers), statement)
    assert consents.state(SCOPE, wanted).verdict in {"unreadable", "changed"}
    with pytest.raises((InputError, IntegrityError)):
        consents.consume(SCOPE, wanted)
    assert not consents.verify().intact


def test_terms_are_erased_with_their_scope(tmp_path: Path) -> None:
    consents = ledger(tmp_path)
    grant(consents)
    assert b"api.acme.example" in database(tmp_path).read_bytes() + _log(tmp_path)
    consents.erase(SCOPE, origin=CLI)
    assert b"api.acme.example" not in database(tmp_path).read_bytes() + _log(tmp_path)
    assert consents.entries()[0].terms is None
    assert consents.verify().intact


def _log(root: Path) -> bytes:
    path = database(root).with_name("state.sqlite-wal")
    return path.read_bytes() if path.exists() else b""


# -- a ledger of the version that kept no terms


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A home whose ledger an earlier version wrote: a standing grant, and one for one use."""
    consents = ledger(tmp_path)
    first, second = grant(consents), grant(consents, once=True)
    rows = consents.export().audit
    with closing(sqlite3.connect(database(tmp_path))) as connection, connection:
        connection.executescript(
            "DROP TRIGGER consent_audit_unchanged; DROP TRIGGER consent_audit_kept;"
            "DROP TRIGGER consent_scope_unchanged; DROP TRIGGER consent_scope_kept;"
            "DROP TRIGGER consent_mark_kept; DROP TABLE consent_terms;"
            "DROP TABLE consent_audit; DROP TABLE consent_mark;"
            "CREATE TABLE scopes AS SELECT * FROM consent_scopes; DROP TABLE consent_open;"
            f"DROP TABLE consent_scopes; {SCHEMA[0]}"
            "INSERT INTO consent_scopes SELECT * FROM scopes; DROP TABLE scopes;"
            "UPDATE schemas SET version = 1 WHERE component = 'consent'"
        )
        previous = rows[0].previous
        for row in rows:
            row = msgspec.structs.replace(row, terms="", previous=previous)  # noqa: PLW2901
            previous = row.computed()
            connection.execute(
                "INSERT INTO consent_audit VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (row.seq, row.at_ms, str(row.event), row.scope, row.decision, row.once,
                 row.until_ms, row.origin, row.previous, previous),
            )  # fmt: skip
            connection.execute(
                "INSERT INTO consent_open VALUES(?, ?, 'grant', ?, ?, ?)",
                (row.decision, row.scope, row.once, row.until_ms, row.seq),
            )
        connection.execute(
            "UPDATE consent_mark SET floor_ms = ?, seq = 2, digest = ?", (rows[0].at_ms, previous)
        )
    assert {first, second} == {row.decision for row in rows}
    return tmp_path


def test_an_older_ledger_stays_whole_and_its_grants_cover_nothing(old: Path) -> None:
    consents = ledger(old)
    assert consents.verify().intact
    state = consents.state(SCOPE, AGREED)
    assert state.verdict == "changed"
    assert "recorded by an earlier version" in state.reason
    with pytest.raises(InputError) as caught:
        consents.consume(SCOPE, AGREED)
    assert caught.value.context["verdict"] == "changed"
    assert [(entry.state, entry.terms) for entry in consents.entries()] == [("granted", None)] * 2
    name = consents.grant(SCOPE, AGREED, origin=CLI).id
    assert consents.consume(SCOPE, AGREED) == name
    assert consents.revoke(SCOPE, origin=CLI) == 2
    assert consents.verify().intact


def test_a_row_of_before_has_the_digest_that_it_had() -> None:
    row = AuditRow(
        seq=1, at_ms=2, event=AuditEvent.GRANT, scope="s", decision="d", once=True, until_ms=None,
        origin="cli", previous="0" * 64,
    )  # fmt: skip
    assert row.computed() == "0037ffb37af3617aeb5ab4f9018fbbaf7a9785337e7ccdf7efbca1d93fc7a0a7"
    assert msgspec.structs.replace(row, terms="t").computed() != row.computed()
