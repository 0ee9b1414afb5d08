"""Erasing: nothing of the texts is left in any file, and the audit stays whole."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
from tests.unit.route.consent.consents import DAY, SCOPE, Clock, database, events, ledger, terms_of

from edgewise.route.consent import ConsentScope, Origin

CLI = Origin.CLI
OTHER = msgspec.structs.replace(SCOPE, feature="summaries")


def everything(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file())


def test_an_erased_scope_is_gone_and_the_chain_is_whole(tmp_path: Path) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock)
    consents.grant(SCOPE, terms_of(SCOPE), origin=CLI)
    consents.consume(SCOPE, terms_of(SCOPE))
    consents.grant(SCOPE, terms_of(SCOPE), origin=CLI, expires_at=clock.after(DAY))
    consents.grant(OTHER, terms_of(OTHER), origin=CLI)
    kept = consents.verify().head
    done = consents.erase(SCOPE, origin=CLI)
    assert (done.scopes, done.ended, done.log_emptied) == (1, 1, True)
    assert consents.state(SCOPE, terms_of(SCOPE)).verdict == "absent"
    assert consents.state(OTHER, terms_of(OTHER)).verdict == "granted"
    assert [entry.scope for entry in consents.entries()] == [None, None, OTHER]
    assert events(tmp_path) == ["grant", "used", "grant", "grant", "revoke", "erase"]
    assert consents.verify(kept).intact
    assert SCOPE.feature.encode() not in everything(tmp_path)


def test_what_is_agreed_to_later_cannot_be_linked(tmp_path: Path) -> None:
    consents = ledger(tmp_path)
    consents.grant(SCOPE, terms_of(SCOPE), origin=CLI)
    consents.erase(SCOPE, origin=CLI)
    consents.grant(SCOPE, terms_of(SCOPE), origin=CLI)
    rows = consents.export().audit
    assert [row.event for row in rows] == ["grant", "revoke", "erase", "grant"]
    assert rows[0].scope == rows[2].scope != rows[3].scope
    assert consents.consume(SCOPE, terms_of(SCOPE)) == rows[3].decision
    assert consents.verify().intact


def test_what_is_unknown_is_not_erased(tmp_path: Path) -> None:
    consents = ledger(tmp_path)
    done = consents.erase(SCOPE, origin=CLI)
    assert (done.scopes, done.ended) == (0, 0)
    assert events(tmp_path) == []


def test_erasing_all(tmp_path: Path) -> None:
    consents = ledger(tmp_path)
    consents.deny(SCOPE, origin=CLI)
    consents.grant(OTHER, terms_of(OTHER), origin=CLI)
    done = consents.erase(None, origin=CLI)
    assert (done.scopes, done.ended) == (2, 2)
    assert [entry.scope for entry in consents.entries()] == [None, None]
    assert consents.export().scopes == {}
    assert consents.verify().intact


def test_no_file_holds_what_was_erased_among_much(tmp_path: Path) -> None:
    source = random.Random(5)
    consents = ledger(tmp_path)
    scopes = [
        ConsentScope(
            feature=f"feature {number}",
            data_class="personal",
            destination="acme",
            purpose=f"«{number:03}» " + "".join(source.choices("abcdefgh ", k=700)).strip(),
        )
        for number in range(40)
    ]
    for scope in scopes:
        consents.grant(scope, terms_of(scope), origin=CLI)
    for scope in source.sample(scopes, 40):
        consents.erase(scope, origin=CLI)
        assert scope.purpose[:40].encode() not in everything(tmp_path)
    left = everything(tmp_path)
    pieces = [s.purpose[i : i + 16] for s in scopes for i in range(0, len(s.purpose) - 16, 16)]
    assert [piece for piece in pieces if piece.encode() in left] == []


def test_a_reader_keeps_the_log_and_that_is_said(tmp_path: Path) -> None:
    consents = ledger(tmp_path)
    consents.grant(SCOPE, terms_of(SCOPE), origin=CLI)
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM consent_audit").fetchone()
        assert not consents.erase(SCOPE, origin=CLI).log_emptied
        reader.execute("COMMIT")
    consents.state(SCOPE, terms_of(SCOPE))
    assert SCOPE.feature.encode() not in everything(tmp_path)
