"""Eight processes at once, and one consent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.unit.route.consent.consents import (
    DAY,
    SCOPE,
    Clock,
    ended,
    events,
    fork,
    ledger,
    terms_of,
)

from edgewise.errors import InputError
from edgewise.route.consent import Origin

CLI = Origin.CLI
PROCESSES, ROUNDS = 8, 25
USED, REFUSED = 0, 3

FRESH = """
import sys
from pathlib import Path
import msgspec
from edgewise.errors import InputError
from edgewise.route.consent import ConsentLedger, ConsentScope
from edgewise.route.destinations import Terms
from edgewise.store import Home
scope = ConsentScope(feature="letters", data_class="personal", destination="acme",
                     purpose="Answer a letter")
terms = msgspec.json.decode(sys.argv[2], type=Terms)
ledger = ConsentLedger(Home(Path(sys.argv[1])))
print("ready", flush=True)
sys.stdin.readline()
try:
    print(ledger.consume(scope, terms))
except InputError as error:
    sys.exit(3 if error.code == "consent-not-usable" else 1)
"""


def consume(root: Path) -> int:
    try:
        ledger(root).consume(SCOPE, terms_of(SCOPE))
    except InputError as error:
        return REFUSED if error.code == "consent-not-usable" else 1
    return USED


def at_once(work: list[Callable[[], int]]) -> list[int]:
    """Do all the work at once, each piece in a process; return how they ended."""
    gate, opener = os.pipe()

    def waiting(one: Callable[[], int]) -> Callable[[], int]:
        def started() -> int:
            os.close(opener)
            os.read(gate, 1)  # until everybody has closed the other end
            return one()

        return started

    children = [fork(waiting(one)) for one in work]
    os.close(opener)
    found = [ended(child) for child in children]
    os.close(gate)
    return found


def test_eight_processes_and_one_use(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        root = tmp_path / str(number)
        ledger(root).grant(SCOPE, terms_of(SCOPE), origin=CLI)
        found = at_once([lambda root=root: consume(root)] * PROCESSES)  # type: ignore[misc]
        assert sorted(found) == [USED] + [REFUSED] * (PROCESSES - 1)
        assert events(root) == ["grant", "used"]
        assert ledger(root).verify().intact


def test_eight_fresh_interpreters_and_one_use(tmp_path: Path) -> None:
    ledger(tmp_path).grant(SCOPE, terms_of(SCOPE), origin=CLI)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", FRESH, str(tmp_path), msgspec.json.encode(terms_of())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    told = [child.communicate(timeout=120)[0] for child in children]
    assert sorted(child.returncode for child in children) == [USED] + [REFUSED] * (PROCESSES - 1)
    assert [len(text) for text in sorted(told)] == [0] * (PROCESSES - 1) + [17]


@pytest.mark.parametrize("grants", [0, 3, 8, 11])
def test_as_many_uses_as_grants(tmp_path: Path, grants: int) -> None:
    for _ in range(grants):
        ledger(tmp_path).grant(SCOPE, terms_of(SCOPE), origin=CLI)
    found = at_once([lambda: consume(tmp_path)] * PROCESSES)
    assert found.count(USED) == min(grants, PROCESSES)
    assert set(found) <= {USED, REFUSED}
    assert ledger(tmp_path).verify().intact


def test_every_use_of_standing_consent_is_in_the_audit(tmp_path: Path) -> None:
    ledger(tmp_path).grant(
        SCOPE,
        terms_of(SCOPE),
        origin=CLI,
        once=False,
        expires_at=Clock().after(DAY),
        standing_allowed=True,
    )
    assert at_once([lambda: consume(tmp_path)] * PROCESSES) == [USED] * PROCESSES
    assert events(tmp_path) == ["grant"] + ["use"] * PROCESSES
    assert ledger(tmp_path).verify().intact


def test_nothing_is_used_after_a_denial(tmp_path: Path) -> None:
    ledger(tmp_path).grant(
        SCOPE,
        terms_of(SCOPE),
        origin=CLI,
        once=False,
        expires_at=Clock().after(DAY),
        standing_allowed=True,
    )

    def deny() -> int:
        ledger(tmp_path).deny(SCOPE, origin=CLI)
        return USED

    found = at_once([lambda: consume(tmp_path)] * 4 + [deny] + [lambda: consume(tmp_path)] * 3)
    kept = events(tmp_path)
    uses = kept.count("use")
    assert kept == ["grant"] + ["use"] * uses + ["revoke", "deny"]
    assert found.count(USED) == uses + 1


def test_eight_processes_that_all_make_the_database(tmp_path: Path) -> None:
    def decide() -> int:
        ledger(tmp_path).grant(SCOPE, terms_of(SCOPE), origin=CLI)
        return USED

    assert at_once([decide] * PROCESSES) == [USED] * PROCESSES
    assert ledger(tmp_path).verify().rows == PROCESSES
