"""A process may be killed at any statement: a use is whole or was not, and is never given twice.

Every point is tried: before and after each statement that the ledger sends to SQLite, from the
opening of the connection to the commit.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.route.consent.consents import (
    SCOPE,
    dying_connect,
    ended,
    events,
    fork,
    ledger,
    terms_of,
)

from edgewise.errors import InputError
from edgewise.route.consent import ConsentLedger, Origin

CLI = Origin.CLI
KILLED = -9


def killed_at(point: int, root: Path, act: Callable[[ConsentLedger], Any]) -> tuple[int, str]:
    """Act in a process that dies at a point; return how it ended and the last it told."""
    out, into = os.pipe()

    def work() -> int:
        def told(text: str) -> None:
            os.write(into, text.encode() + b"\n")

        sqlite3.connect = dying_connect(point, told)  # type: ignore[assignment]
        told(f"returned {act(ledger(root))}")
        return 0

    status = ended(fork(work))
    os.close(into)
    with os.fdopen(out, encoding="utf-8") as stream:
        return status, " ".join(stream.read().split())


def points(tmp_path: Path, act: Callable[[ConsentLedger], Any]) -> list[tuple[Path, str]]:
    """Kill at every point, each in a home of its own with one grant; return home and point."""
    found: list[tuple[Path, str]] = []
    while True:
        root = tmp_path / str(len(found))
        ledger(root).grant(SCOPE, terms_of(SCOPE), origin=CLI)
        status, where = killed_at(len(found), root, act)
        found.append((root, where))
        if status == 0:
            return found
        assert status == KILLED, where


def uses_left(root: Path) -> int:
    consents, left = ledger(root), 0
    while True:
        try:
            consents.consume(SCOPE, terms_of(SCOPE))
        except InputError:
            return left
        left += 1


def test_a_use_is_never_given_twice(tmp_path: Path) -> None:
    found = points(tmp_path, lambda consents: consents.consume(SCOPE, terms_of(SCOPE)))
    places = [where for _, where in found]
    committed = places.index("after commit", places.index("after commit") + 1)  # of the use
    assert len(found) > 40
    assert any(where.startswith("after DELETE FROM consent_open") for where in places)
    assert any(where.startswith("after INSERT INTO consent_audit") for where in places)
    for number, (root, where) in enumerate(found):
        # From the commit on the use is gone, whether or not anybody learned of it.
        assert uses_left(root) == (1 if number < committed else 0), where
        assert events(root) == ["grant", "used"], where
        assert ledger(root).verify().intact, where


@pytest.mark.parametrize(
    ("act", "before", "after"),
    [
        (lambda c: c.grant(SCOPE, terms_of(SCOPE), origin=CLI), ["grant"], ["grant", "grant"]),
        (lambda c: c.deny(SCOPE, origin=CLI), ["grant"], ["grant", "revoke", "deny"]),
        (lambda c: c.revoke(SCOPE, origin=CLI), ["grant"], ["grant", "revoke"]),
        (lambda c: c.erase(SCOPE, origin=CLI), ["grant"], ["grant", "revoke", "erase"]),
    ],
    ids=["grant", "deny", "revoke", "erase"],
)
def test_a_decision_is_whole_or_was_not(
    tmp_path: Path, act: Callable[[ConsentLedger], Any], before: list[str], after: list[str]
) -> None:
    found = points(tmp_path, act)
    places = [where for _, where in found]
    committed = places.index("after commit", places.index("after commit") + 1)
    for number, (root, where) in enumerate(found):
        assert events(root) == (before if number < committed else after), where
        assert ledger(root).verify().intact, where
