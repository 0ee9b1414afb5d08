"""Records on disk: bounded, over in time, weighted for what was left out, and erased to the byte."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import sqlite3
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from tests.unit.route.records.recorded import asked, record, whole

from edgewise.errors import IntegrityError
from edgewise.route.policy import RecordRule
from edgewise.route.records import RecordStore, RouteRecord
from edgewise.store import Home
from edgewise.store.database import STATE_DATABASE

POLICY = whole()
ALL = RecordRule(share=1.0)
# A word that is in every record's bytes and nowhere else.
MARK = POLICY.version.encode()


class Clock:
    def __init__(self) -> None:
        self.day = dt.date(2026, 12, 1)

    def __call__(self) -> float:
        return dt.datetime.combine(self.day, dt.time(13), dt.UTC).timestamp()

    def later(self, days: int) -> None:
        self.day += dt.timedelta(days=days)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> RecordStore:
    return RecordStore(Home(tmp_path), clock=clock)


def made(store: RecordStore, count: int = 1, task: str = "draft") -> list[RouteRecord]:
    return [record(POLICY, asked(task=task), day=store.today().isoformat())] * count


def all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob(f"{STATE_DATABASE}*")))


def test_what_is_written_is_read(store: RecordStore) -> None:
    store.add(made(store, 3), ALL)
    held = store.read()
    assert held.records == tuple(made(store, 3))
    assert (held.lost, {one.weight for one in held.records}) == (0, {1.0})


def test_a_home_without_records_is_not_touched(tmp_path: Path, store: RecordStore) -> None:
    assert store.read().records == ()
    assert store.clear().records == 0
    assert list(tmp_path.iterdir()) == []


def test_a_share_says_for_how_many_each_stands(store: RecordStore) -> None:
    store.add(made(store, 2), RecordRule(share=0.25))
    store.add(made(store, 3), ALL)
    assert Counter(one.weight for one in store.read().records) == {4.0: 2, 1.0: 3}


def test_never_more_than_is_kept_and_the_weights_still_add_up(store: RecordStore) -> None:
    rule = RecordRule(share=0.5, keep=10)
    for _ in range(7):
        store.add(made(store, 5), rule)
        assert len(store.read().records) <= 10
    held = store.read().records
    assert len(held) == 10
    assert sum(one.weight for one in held) == pytest.approx(35 / 0.5)


def test_what_is_kept_of_a_day_is_drawn_by_chance(store: RecordStore) -> None:
    """Of the first and the second half of a day, about as many stay; the last do not win."""
    rule = RecordRule(share=1.0, keep=200)
    for task in ("chat", "draft"):
        for _ in range(4):
            store.add(made(store, 100, task), rule)
    kept = Counter(one.task for one in store.read().records)
    # Hypergeometric, 200 of 800: a deviation of 6 is one standard deviation; 45 is beyond 7.
    assert abs(kept["chat"] - 100) < 45


def test_the_oldest_day_goes_first(store: RecordStore, clock: Clock) -> None:
    rule = RecordRule(share=1.0, keep=4)
    store.add(made(store, 3), rule)
    clock.later(1)
    store.add(made(store, 3), rule)
    assert Counter(one.day for one in store.read().records) == {"2026-12-01": 1, "2026-12-02": 3}
    assert sum(one.weight for one in store.read().records) == 6


def test_a_record_is_over_after_its_days(store: RecordStore, clock: Clock) -> None:
    store.add(made(store, 2), RecordRule(share=1.0, days=3))
    clock.later(2)
    assert len(store.read().records) == 2
    clock.later(1)
    assert store.read().records == ()


def test_fewer_days_hold_for_what_is_there(store: RecordStore, clock: Clock) -> None:
    store.add(made(store, 2), RecordRule(share=1.0, days=30))
    clock.later(5)
    store.add(made(store, 1), RecordRule(share=1.0, days=5))
    assert [one.day for one in store.read().records] == ["2026-12-06"]


def test_what_was_lost_is_counted(store: RecordStore, clock: Clock) -> None:
    store.add(made(store), ALL, lost=7)
    assert store.read().lost == 7
    clock.later(31)
    assert store.read().lost == 0


@pytest.mark.parametrize("how", ["clear", "over", "too-many"])
def test_nothing_of_it_remains_in_the_files(
    how: str, store: RecordStore, clock: Clock, tmp_path: Path
) -> None:
    store.add(made(store, 500), ALL)
    assert MARK in all_bytes(tmp_path)
    if how == "clear":
        done = store.clear()
        assert (done.records, done.log_emptied) == (500, True)
    elif how == "over":
        clock.later(30)
        assert store.read().records == ()
    else:
        other = msgspec.structs.replace(POLICY, name="other")
        clock.later(1)
        fresh = record(other, day=store.today().isoformat())
        store.add([fresh] * 5, RecordRule(share=1.0, keep=5))
    assert MARK not in all_bytes(tmp_path)


def test_a_row_tells_no_time_and_no_order(store: RecordStore, tmp_path: Path) -> None:
    for task in ("chat", "draft", "chat"):
        store.add(made(store, 1, task), ALL)
    with sqlite3.connect(tmp_path / STATE_DATABASE) as connection:
        rows = connection.execute("SELECT * FROM route_records").fetchall()
        with pytest.raises(sqlite3.OperationalError):
            connection.execute("SELECT rowid FROM route_records")
    connection.close()
    assert {row[1] for row in rows} == {"2026-12-01"}
    assert len({row[0] for row in rows}) == 3
    assert all(b":" not in row[4].split(b'"day":"')[1][:10] for row in rows)


def test_a_damaged_row_is_said_and_can_be_cleared(store: RecordStore, tmp_path: Path) -> None:
    store.add(made(store, 2), ALL)
    with sqlite3.connect(tmp_path / STATE_DATABASE) as connection:
        connection.execute("UPDATE route_records SET body = '{}'")
    connection.close()
    with pytest.raises(IntegrityError) as caught:
        store.read()
    assert caught.value.code == "route-records-damaged"
    assert store.clear().records == 2
    assert store.read().records == ()


PROCESSES, EACH = 4, 40


def _write(root: Path, keep: int) -> None:
    store = RecordStore(Home(root), clock=Clock(), busy_timeout_s=120)
    for _ in range(EACH):
        store.add(made(store), RecordRule(share=1.0, keep=keep))


def _write_and_die(root: Path, keep: int) -> None:
    store = RecordStore(Home(root), clock=Clock(), busy_timeout_s=120)
    store.add(made(store), RecordRule(share=1.0, keep=keep))
    with store._database.writing() as connection:
        connection.execute("UPDATE route_record_days SET drawn = drawn + 1000")
        os._exit(9)  # in the middle of a transaction


@pytest.mark.parametrize("keep", [1000, 30])
def test_processes_that_record_at_once_lose_nothing_and_exceed_nothing(
    keep: int, tmp_path: Path
) -> None:
    context = multiprocessing.get_context("fork")
    work = [context.Process(target=_write, args=(tmp_path, keep)) for _ in range(PROCESSES)]
    work.append(context.Process(target=_write_and_die, args=(tmp_path, keep)))
    for process in work:
        process.start()
    for process in work:
        process.join()
    assert [process.exitcode for process in work] == [0] * PROCESSES + [9]
    held = RecordStore(Home(tmp_path), clock=Clock()).read().records
    drawn = PROCESSES * EACH + 1
    assert len(held) == min(keep, drawn)
    assert sum(one.weight for one in held) == pytest.approx(drawn)
