"""A ledger that is locked, damaged, tampered with or cannot be written opens nothing."""

from __future__ import annotations

import resource
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.route.consent.consents import (
    DAY,
    SCOPE,
    Clock,
    database,
    ended,
    events,
    fork,
    ledger,
    sql,
    terms_of,
)

from edgewise.errors import EdgewiseError, InputError, IntegrityError, ResourceError
from edgewise.route.consent import ConsentVerdict, Origin

CLI = Origin.CLI
OTHER = msgspec.structs.replace(SCOPE, destination="evil")


@pytest.fixture
def granted(tmp_path: Path) -> Path:
    """A home in which one-time consent stands."""
    ledger(tmp_path).grant(SCOPE, terms_of(SCOPE), origin=CLI)
    return tmp_path


def opens_nothing(root: Path, code: str, **options: Any) -> EdgewiseError:
    """Assert that neither a look nor a use of a fresh ledger finds a consent."""
    consents = ledger(root, **options)
    state = consents.state(SCOPE, terms_of(SCOPE))
    assert (state.verdict, state.code) == (ConsentVerdict.UNREADABLE, code)
    assert state.reason
    with pytest.raises(EdgewiseError) as caught:
        consents.consume(SCOPE, terms_of(SCOPE))
    assert caught.value.code == code
    return caught.value


# -- locked, damaged, not writable


@contextmanager
def held(root: Path) -> Iterator[None]:
    with closing(sqlite3.connect(database(root), isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield
        holder.execute("ROLLBACK")


def test_a_locked_ledger_opens_nothing_and_loses_nothing(granted: Path) -> None:
    with held(granted):
        error = opens_nothing(granted, "database-locked", busy_timeout_s=0.05)
        assert isinstance(error, ResourceError)
        assert error.retryable
    consents = ledger(granted, busy_timeout_s=0.05)
    assert consents.state(SCOPE, terms_of(SCOPE)).verdict == "granted"
    with held(granted):
        assert consents.state(SCOPE, terms_of(SCOPE)).verdict == "granted"  # to read needs no lock
        with pytest.raises(ResourceError):
            consents.consume(SCOPE, terms_of(SCOPE))
    assert consents.consume(SCOPE, terms_of(SCOPE))


def test_an_end_that_cannot_be_recorded_is_not_told(tmp_path: Path) -> None:
    clock = Clock()
    consents = ledger(tmp_path, clock, busy_timeout_s=0.05)
    consents.grant(SCOPE, terms_of(SCOPE), origin=CLI, expires_at=clock.after(DAY))
    clock.seconds += DAY
    with held(tmp_path):
        state = consents.state(SCOPE, terms_of(SCOPE))
        assert (state.verdict, state.code) == ("unreadable", "database-locked")
    assert consents.state(SCOPE, terms_of(SCOPE)).verdict == "expired"


@pytest.mark.parametrize(
    "damage", [b"", b"no database" * 400, b"SQLite format 3\0" + b"\xff" * 9000]
)
def test_a_damaged_ledger_opens_nothing(granted: Path, damage: bytes) -> None:
    for name in ("state.sqlite-wal", "state.sqlite-shm"):
        (granted / name).unlink(missing_ok=True)
    database(granted).write_bytes(damage)
    if damage:
        opens_nothing(granted, "database-damaged")
        assert database(granted).read_bytes() == damage
    else:  # an empty file is a new database, and holds no consent
        assert ledger(granted).state(SCOPE, terms_of(SCOPE)).verdict == "absent"


def test_a_page_that_was_overwritten_opens_nothing(granted: Path) -> None:
    data = bytearray(database(granted).read_bytes())
    for page in range(4096, len(data), 4096):
        data[page : page + 512] = b"\xa5" * 512
    database(granted).write_bytes(data)
    opens_nothing(granted, "database-damaged")


@pytest.mark.parametrize("table", ["scopes", "audit", "open", "mark"])
def test_a_table_that_is_gone_opens_nothing(granted: Path, table: str) -> None:
    sql(granted, f"DROP TABLE consent_{table}")
    opens_nothing(granted, "database-damaged")


def test_a_ledger_of_a_newer_version_opens_nothing(granted: Path) -> None:
    sql(granted, "UPDATE schemas SET version = 99 WHERE component = 'consent'")
    opens_nothing(granted, "database-newer")


def test_a_folder_in_its_place_opens_nothing(tmp_path: Path) -> None:
    database(tmp_path).mkdir()
    opens_nothing(tmp_path, "database-not-writable")


def test_a_disk_that_takes_nothing_opens_nothing(granted: Path) -> None:
    def unable_to_write() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        opens_nothing(granted, "database-not-writable")
        return 0

    assert ended(fork(unable_to_write)) == 0
    assert ledger(granted).consume(SCOPE, terms_of(SCOPE))


# -- tampered with


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE consent_audit SET event = 'grant'",
        "DELETE FROM consent_audit",
        "UPDATE consent_scopes SET destination = 'evil'",
        "DELETE FROM consent_scopes",
        "UPDATE consent_terms SET terms = ''",
        "DELETE FROM consent_terms",
        "DELETE FROM consent_mark",
    ],
)
def test_the_database_itself_refuses_to_forget(granted: Path, statement: str) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        sql(granted, "PRAGMA foreign_keys=OFF", statement)
    assert ledger(granted).verify().intact


NO_TRIGGERS = [
    f"DROP TRIGGER consent_{name}"
    for name in (
        *("audit_unchanged", "audit_kept", "scope_unchanged", "scope_kept", "mark_kept"),
        *("terms_unchanged", "terms_kept"),
    )
]
# Rows by then: 1 grant, 2 used, 3 deny (of another scope).
AUDIT_TAMPERED = {
    "a row changed": "UPDATE consent_audit SET at_ms = at_ms + 1 WHERE seq = 2",
    "the event changed": "UPDATE consent_audit SET event = 'revoke' WHERE seq = 2",
    "the first row gone": "DELETE FROM consent_audit WHERE seq = 1",
    "a middle row gone": "DELETE FROM consent_audit WHERE seq = 2",
    "the last row gone": "DELETE FROM consent_audit WHERE seq = 3",
    "all rows gone": "DELETE FROM consent_audit",
    "a row renumbered": "UPDATE consent_audit SET seq = 9 WHERE seq = 3",
    "an unknown event": "UPDATE consent_audit SET event = 'approve' WHERE seq = 3",
    "a text for a time": "UPDATE consent_audit SET at_ms = 'now' WHERE seq = 1",
    "the floor set back": "UPDATE consent_mark SET floor_ms = 0",
    "the mark moved": "UPDATE consent_mark SET seq = 2",
    "the mark gone": "DELETE FROM consent_mark",
    "a denial lifted": "DELETE FROM consent_open",
    "a scope renamed": "UPDATE consent_scopes SET purpose = 'Anything'",
    "a scope gone": "DELETE FROM consent_scopes WHERE destination = 'acme'",
    "a salt changed": "UPDATE consent_scopes SET salt = x'00'",
    "a denial made a grant": "UPDATE consent_open SET event = 'grant'",
    "terms changed": "UPDATE consent_terms SET terms = replace(terms, 'EU', 'US')",
    "terms gone": "DELETE FROM consent_terms",
    "terms of another grant": "UPDATE consent_audit SET terms = '' WHERE seq = 1",
    "terms that nobody agreed to": "INSERT INTO consent_terms "
    "SELECT 'd', scope, terms FROM consent_terms",
    "a scope that nobody named": "INSERT INTO consent_scopes "
    "VALUES('d', x'00', 'feature', 'public', 'evil', 'Anything')",
}


@pytest.mark.parametrize("name", AUDIT_TAMPERED)
def test_what_was_tampered_with_is_found(granted: Path, name: str) -> None:
    consents = ledger(granted)
    consents.consume(SCOPE, terms_of(SCOPE))
    consents.deny(OTHER, origin=CLI)
    assert consents.verify().intact
    sql(granted, *NO_TRIGGERS, "PRAGMA foreign_keys=OFF", AUDIT_TAMPERED[name])
    if name == "the mark gone":
        with pytest.raises(IntegrityError) as caught:
            consents.verify()
        assert caught.value.code == "consent-ledger-damaged"
        return
    found = consents.verify()
    assert not found.intact
    assert found.problems


@pytest.mark.parametrize(
    "columns",
    [
        "decision, scope, 'grant', 1, NULL, 1, terms",  # a used grant, opened again
        "decision, scope, 'grant', 0, NULL, 1, terms",  # the same as standing
        "'made-up', scope, 'grant', 1, NULL, 1, terms",  # one that nobody gave
    ],
)
def test_a_grant_without_its_audit_opens_nothing(granted: Path, columns: str) -> None:
    ledger(granted).consume(SCOPE, terms_of(SCOPE))
    sql(granted, f"INSERT INTO consent_open SELECT {columns} FROM consent_audit WHERE seq = 1")
    error = opens_nothing(granted, "consent-ledger-damaged")
    assert isinstance(error, IntegrityError)
    assert events(granted) == ["grant", "used"]
    assert not ledger(granted).verify().intact


def test_a_grant_made_wider_opens_nothing(granted: Path) -> None:
    sql(granted, "UPDATE consent_open SET once = 0")
    opens_nothing(granted, "consent-ledger-damaged")


def test_a_consent_moved_to_another_destination_opens_nothing(granted: Path) -> None:
    sql(granted, *NO_TRIGGERS, "UPDATE consent_scopes SET destination = 'evil'")
    consents = ledger(granted)
    assert consents.state(OTHER, terms_of(OTHER)).code == "consent-ledger-damaged"
    with pytest.raises(IntegrityError):
        consents.consume(OTHER, terms_of(OTHER))
    assert consents.state(SCOPE, terms_of(SCOPE)).verdict == "absent"


def test_a_used_grant_whose_end_was_cut_off_opens_nothing(granted: Path) -> None:
    ledger(granted).consume(SCOPE, terms_of(SCOPE))
    reopen = (
        "INSERT INTO consent_open SELECT decision, scope, 'grant', 1, NULL, 1, terms "
        "FROM consent_audit"
    )
    sql(granted, *NO_TRIGGERS, "DELETE FROM consent_audit WHERE seq = 2", reopen)
    opens_nothing(granted, "consent-ledger-damaged")


def test_an_older_copy_is_found_by_a_head_that_was_kept(granted: Path, tmp_path: Path) -> None:
    copy = tmp_path / "older.sqlite"
    shutil.copy(database(granted), copy)
    consents = ledger(granted)
    early = consents.verify().head
    consents.consume(SCOPE, terms_of(SCOPE))
    late = consents.export().head
    assert consents.verify(early).intact
    assert consents.verify(late).intact
    assert consents.verify(f"0:{'0' * 64}").intact
    shutil.copy(copy, database(granted))
    assert ledger(granted).verify().intact  # by itself it looks whole
    found = ledger(granted).verify(late)
    assert found.problems == ("the audit does not go through the head that was kept",)


@pytest.mark.parametrize(
    "head", ["", "1", "x:y", "1:" + "A" * 64, "-1:" + "0" * 64, "01:" + "0" * 64]
)
def test_a_head_that_is_none(granted: Path, head: str) -> None:
    with pytest.raises(InputError) as caught:
        ledger(granted).verify(head)
    assert caught.value.code == "consent-head-invalid"
