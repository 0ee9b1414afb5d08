"""The state database: whole transactions, typed failures, and never an empty answer."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

import pytest

from edgewise.errors import IntegrityError, ResourceError
from edgewise.store import Home
from edgewise.store.database import StateDatabase

STEPS = (
    "CREATE TABLE words(word TEXT PRIMARY KEY);",
    """CREATE TABLE log(word TEXT);
    CREATE TRIGGER kept AFTER INSERT ON words BEGIN
        INSERT INTO log VALUES(new.word);
        INSERT INTO log VALUES(new.word || '!');
    END;""",
)


def words(database: StateDatabase) -> list[str]:
    with database.reading() as connection:
        return [row["word"] for row in connection.execute("SELECT word FROM words")]


def test_a_transaction_is_whole(tmp_path: Path) -> None:
    database = StateDatabase(Home(tmp_path), "words", STEPS)
    with database.writing() as connection:
        connection.execute("INSERT INTO words VALUES('kept')")
    with contextlib.suppress(RuntimeError), database.writing() as connection:
        connection.execute("INSERT INTO words VALUES('lost')")
        raise RuntimeError
    assert words(StateDatabase(Home(tmp_path), "words", STEPS)) == ["kept"]
    with database.reading() as connection:
        assert [row["word"] for row in connection.execute("SELECT word FROM log")] == [
            "kept",
            "kept!",
        ]


def test_a_later_step_is_applied_to_what_is_there(tmp_path: Path) -> None:
    first = StateDatabase(Home(tmp_path), "words", STEPS[:1])
    with first.writing() as connection:
        connection.execute("INSERT INTO words VALUES('old')")
    second = StateDatabase(Home(tmp_path), "words", STEPS)
    assert words(second) == ["old"]
    with pytest.raises(IntegrityError, match="version 2") as caught:
        words(StateDatabase(Home(tmp_path), "words", STEPS[:1]))
    assert caught.value.code == "database-newer"


def test_components_do_not_meet(tmp_path: Path) -> None:
    with StateDatabase(Home(tmp_path), "words", STEPS).writing() as connection:
        connection.execute("INSERT INTO words VALUES('one')")
    other = StateDatabase(Home(tmp_path), "other", ("CREATE TABLE others(x);",))
    with other.reading() as connection:
        assert connection.execute("SELECT count(*) FROM others").fetchone()[0] == 0


def test_a_lock_that_is_not_given_up_is_said(tmp_path: Path) -> None:
    holder = StateDatabase(Home(tmp_path), "words", STEPS)
    impatient = StateDatabase(Home(tmp_path), "words", STEPS, busy_timeout_s=0.05)
    assert words(impatient) == []
    with holder.writing(), pytest.raises(ResourceError) as caught, impatient.writing():
        pass
    assert caught.value.code == "database-locked"
    assert caught.value.retryable


def test_whoever_begins_waits_for_another_that_begins(tmp_path: Path) -> None:
    """SQLite does not wait by itself for the lock that changes how a new file is kept."""
    database = StateDatabase(Home(tmp_path), "words", STEPS)
    with contextlib.closing(
        sqlite3.connect(database.path, isolation_level=None, check_same_thread=False)
    ) as first:
        first.execute("BEGIN IMMEDIATE")
        ends = threading.Timer(0.3, first.commit)
        ends.start()
        assert words(database) == []
        ends.join()


def test_one_writer_at_a_time_and_nothing_lost(tmp_path: Path) -> None:
    def write(number: int) -> None:
        database = StateDatabase(Home(tmp_path), "words", STEPS)
        with database.writing() as connection:
            count = connection.execute("SELECT count(*) FROM words").fetchone()[0]
            connection.execute("INSERT INTO words VALUES(?)", (f"{count}",))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = words(StateDatabase(Home(tmp_path), "words", STEPS))
    assert sorted(found, key=int) == [str(n) for n in range(12)]


@pytest.mark.parametrize("damage", [b"no database" * 400, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_one_is_never_an_empty_one(tmp_path: Path, damage: bytes) -> None:
    database = StateDatabase(Home(tmp_path), "words", STEPS)
    database.path.write_bytes(damage)
    with pytest.raises(IntegrityError) as caught:
        words(database)
    assert caught.value.code == "database-damaged"
    assert database.path.read_bytes() == damage


def test_a_table_that_is_gone_is_damage(tmp_path: Path) -> None:
    database = StateDatabase(Home(tmp_path), "words", STEPS)
    assert words(database) == []
    with sqlite3.connect(database.path) as connection:
        connection.execute("DROP TABLE words")
    connection.close()
    with pytest.raises(IntegrityError):
        words(database)


def test_a_folder_in_its_place_cannot_be_written(tmp_path: Path) -> None:
    database = StateDatabase(Home(tmp_path), "words", STEPS)
    database.path.mkdir()
    with pytest.raises(ResourceError) as caught:
        words(database)
    assert caught.value.code == "database-not-writable"


@pytest.mark.parametrize("version", ["'abc'", "NULL", "9e999", "-1", "1.5", "x'00'"])
def test_a_version_that_is_no_number_is_damage(tmp_path: Path, version: str) -> None:
    database = StateDatabase(Home(tmp_path), "words", STEPS)
    assert words(database) == []
    with contextlib.closing(sqlite3.connect(database.path)) as connection, connection:
        connection.execute(f"UPDATE schemas SET version = {version}")
    with pytest.raises(IntegrityError) as caught:
        words(StateDatabase(Home(tmp_path), "words", STEPS))
    assert caught.value.code == "database-damaged"


def test_a_name_in_the_schema_that_is_no_text_is_damage(tmp_path: Path) -> None:
    database = StateDatabase(Home(tmp_path), "words", STEPS)
    assert words(database) == []
    assert database.empty_log()
    raw = database.path.read_bytes()
    damaged = raw.replace(b"TABLE words(", b"TABLE w\xe9rds(")
    assert damaged != raw
    database.path.write_bytes(damaged)
    with pytest.raises(IntegrityError) as caught:
        words(StateDatabase(Home(tmp_path), "words", STEPS))
    assert caught.value.code == "database-damaged"
