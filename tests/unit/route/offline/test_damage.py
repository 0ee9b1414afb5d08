"""A database that is damaged, locked or newer: typed errors, and nothing is sent."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.route.offline.world import (
    SAFE,
    Scripted,
    Time,
    answered,
    draft,
    permit,
    queue_at,
)

from edgewise.errors import EdgewiseError, IntegrityError, ResourceError
from edgewise.route.offline import Drainer, OfflineQueue, SendResult, State, apply_answer
from edgewise.route.offline.schema import COMPONENT, STEPS
from edgewise.store import Home
from edgewise.store.database import StateDatabase

USES: dict[str, Callable[[OfflineQueue], object]] = {
    "enqueue": lambda queue: queue.enqueue(draft()),
    "drain": lambda queue: Drainer(queue, Scripted(), permit).drain(),
    "entries": lambda queue: queue.entries(),
    "receipts": lambda queue: queue.receipts(),
    "cancel": lambda queue: queue.cancel("a"),
    "retry": lambda queue: queue.retry("a"),
    "erase": lambda queue: queue.erase("a"),
    "erase receipts": lambda queue: queue.erase_receipts(before_s=1.0),
    "answer": lambda queue: queue.answer("a"),
    "apply": lambda queue: apply_answer(queue, "a", None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("damage", ["no database", "a table is gone", "a row is no row"])
def test_a_damaged_database_is_an_error_and_never_an_empty_queue(
    tmp_path: Path, use: str, damage: str
) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft())
    queue.enqueue(draft())
    if damage == "no database":
        queue.database.path.write_bytes(b"no database" * 4000)
    else:
        with sqlite3.connect(queue.database.path) as connection:
            if damage == "a table is gone":
                connection.execute("DROP TABLE queue_receipts")
                connection.execute("DROP TABLE queue_operations")
            else:
                connection.execute("UPDATE queue_operations SET operation_id = 'a' || seq")
                connection.execute("UPDATE queue_operations SET feature = x'ff', kind = ''")
                connection.execute("UPDATE queue_clock SET time_s = 'noon'")
        connection.close()
    if damage == "a row is no row" and use == "receipts":
        return  # no row of it is read
    with pytest.raises(EdgewiseError) as caught:
        USES[use](queue)
    assert caught.value.code in {"database-damaged", "operation-ambiguous"}


def test_a_locked_database_fails_closed(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft())
    queue.database = StateDatabase(Home(tmp_path), COMPONENT, STEPS, busy_timeout_s=0.05)
    sender = Scripted()
    drainer = Drainer(queue, sender, permit)
    assert len(queue.entries()) == 1
    holder = StateDatabase(Home(tmp_path), COMPONENT, STEPS)
    with holder.writing():
        for use in (drainer.drain, lambda: queue.enqueue(draft())):
            with pytest.raises(ResourceError) as caught:
                use()
            assert caught.value.code == "database-locked"
            assert caught.value.retryable
    assert sender.sent == []
    assert len(queue.entries()) == 1


def test_a_database_that_locks_up_while_an_answer_comes_loses_nothing(tmp_path: Path) -> None:
    """The answer cannot be written: the operation is as after a crash, and asked for again."""
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft(idempotency_key="k"))
    queue.database = StateDatabase(Home(tmp_path), COMPONENT, STEPS, busy_timeout_s=0.05)
    holder = StateDatabase(Home(tmp_path), COMPONENT, STEPS)
    held = holder.writing()

    def locks() -> SendResult:
        held.__enter__()
        return answered()

    sender = Scripted(locks)
    with pytest.raises(ResourceError, match="held"):
        Drainer(queue, sender, permit).drain()
    held.__exit__(None, None, None)
    assert queue.entries()[0].state is State.SENDING
    time.go(61.0)
    Drainer(queue, sender, permit).drain()
    time.go(60.0)
    Drainer(queue, sender, permit).drain()
    assert queue.entries()[0].state is State.ANSWERED
    assert sender.sent == [("k", 1), ("k", 2)]


def test_a_newer_queue_is_left_alone(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft())
    newer = StateDatabase(Home(tmp_path), COMPONENT, (*STEPS, "CREATE TABLE queue_more(x);"))
    with newer.reading():
        pass
    with pytest.raises(IntegrityError) as caught:
        Drainer(queue_at(tmp_path, Time()), Scripted(), permit).drain()
    assert caught.value.code == "database-newer"


def test_the_database_itself_refuses_local_only(tmp_path: Path) -> None:
    queue = OfflineQueue(Home(tmp_path), delay_safe=SAFE)
    queue.enqueue(draft())
    with pytest.raises(IntegrityError), queue.database.writing() as connection:
        connection.execute("UPDATE queue_operations SET data_class = 'local-only'")
