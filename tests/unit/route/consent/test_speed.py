"""A ledger that is old is as quick as a new one: no question reads its audit through."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.route.consent.consents import DAY, SCOPE, Clock, database, ledger, terms_of

from edgewise.route.consent import Origin


def test_no_question_reads_the_audit_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, real = Clock(), sqlite3.connect
    consents = ledger(tmp_path, clock)
    consents.grant(
        SCOPE,
        terms_of(SCOPE),
        origin=Origin.CLI,
        once=False,
        expires_at=clock.after(DAY),
        standing_allowed=True,
    )
    consents.grant(SCOPE, terms_of(SCOPE), origin=Origin.CLI)
    asked: set[str] = set()

    class Told(sqlite3.Connection):
        def execute(self, statement: str, *parameters: object) -> sqlite3.Cursor:
            asked.add(statement)
            return super().execute(statement, *parameters)  # type: ignore[arg-type]

    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **options: real(*args, factory=Told, **options)
    )
    for _ in range(2):
        assert consents.state(SCOPE, terms_of(SCOPE)).verdict == "granted"
        consents.consume(SCOPE, terms_of(SCOPE))
    consents.deny(SCOPE, origin=Origin.CLI)
    consents.state(SCOPE, terms_of(SCOPE))
    monkeypatch.undo()
    of_the_audit = [text for text in asked if "consent_audit" in text and "INSERT" not in text]
    assert len(of_the_audit) >= 4
    with closing(real(database(tmp_path))) as connection:
        for statement in of_the_audit:
            values = [None] * statement.count("?")
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
            steps = [step[-1] for step in plan]
            last_row = "WHERE" not in statement and "LIMIT 1" in statement
            assert last_row or all(s.startswith("SEARCH") for s in steps), (statement, steps)
