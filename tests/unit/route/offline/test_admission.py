"""What may wait in the queue, what is refused by name, and what is never written."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from tests.unit.route.offline.world import (
    Scripted,
    Time,
    answered,
    document,
    draft,
    permit,
    queue_at,
    reasons,
)

from edgewise.core.canonical import canonical_json
from edgewise.errors import InputError
from edgewise.route.offline import Drainer, OfflineQueue, Queued, QueueLimits, State
from edgewise.store import Home


def test_a_queued_operation_is_there_for_another_process(tmp_path: Path) -> None:
    time = Time()
    asked = draft(document=document(), prompt_version="p1", schema_version="s1", priority=7)
    queued = queue_at(tmp_path, time).enqueue(asked)
    assert isinstance(queued, Queued)
    assert queue_at(tmp_path, time).entries() == (queued.entry,)
    told = queued.entry.operation
    assert queued.entry.state is State.QUEUED
    assert told.payload_sha256 == asked.payload_sha256
    assert told.expires_s - told.created_s == asked.lifetime_s
    assert len(told.idempotency_key) == 32
    for name in ("kind", "destination", "document", "prompt_version", "schema_version", "priority"):
        assert getattr(told, name) == getattr(asked, name)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"kind": "pay"}, "not-delay-safe"),
        ({"data_class": "local-only"}, "local-only"),
        ({"data_class": "sensitive"}, "data-class-not-stored"),
        ({"data_class": "our-own-class"}, "data-class-not-stored"),
        ({"payload": canonical_json({"text": "x" * 2000})}, "payload-too-large"),
        ({"lifetime_s": 9 * 86400.0}, "lifetime-too-long"),
    ],
)
def test_what_may_not_wait_is_refused_by_name_and_not_written(
    tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    queue = queue_at(tmp_path, Time(), payload_bytes_max=1000)
    assert reasons(queue.enqueue(draft(**changes))) == [code]
    assert not queue.database.path.exists()


def test_every_reason_is_said_at_once(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    asked = draft(kind="pay", data_class="sensitive", lifetime_s=1e8)
    assert reasons(queue.enqueue(asked)) == [
        "not-delay-safe",
        "data-class-not-stored",
        "lifetime-too-long",
    ]


def test_sensitive_data_waits_only_where_the_caller_says_so_and_local_only_never(
    tmp_path: Path,
) -> None:
    everything = frozenset({"sensitive", "local-only", "our-own-class"})
    queue = OfflineQueue(
        Home(tmp_path), delay_safe=frozenset({"summarise"}), store_allowed=everything
    )
    assert isinstance(queue.enqueue(draft(data_class="sensitive")), Queued)
    assert isinstance(queue.enqueue(draft(data_class="our-own-class")), Queued)
    assert reasons(queue.enqueue(draft(data_class="local-only"))) == ["local-only"]
    for file in tmp_path.iterdir():
        assert b"local-only" not in file.read_bytes().replace(b"data_class <> 'local-only'", b"")


def test_a_quota_of_count_and_of_bytes(tmp_path: Path) -> None:
    size = len(draft().payload)
    queue = queue_at(tmp_path, Time(), count_max=3, bytes_max=3 * size)
    for _ in range(3):
        queue.enqueue(draft())
    assert reasons(queue.enqueue(draft())) == ["queue-full-count", "queue-full-bytes"]
    first = queue.entries()[0].operation.operation_id
    assert queue.cancel(first).done  # its payload goes with it
    assert isinstance(queue.enqueue(draft()), Queued)
    assert reasons(queue_at(tmp_path, Time(), bytes_max=3 * size).enqueue(draft())) == [
        "queue-full-bytes"
    ]


def test_the_same_key_is_the_same_operation(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    first = queue.enqueue(draft(idempotency_key="k"))
    again = queue.enqueue(draft(idempotency_key="k", priority=9))
    assert isinstance(first, Queued)
    assert isinstance(again, Queued)
    assert (again.again, again.entry) == (True, first.entry)
    other = canonical_json({"text": "another"})
    for changes in ({"payload": other}, {"destination": "x"}, {"document": document()}):
        assert reasons(queue.enqueue(draft(idempotency_key="k", **changes))) == ["key-used"]
    assert len(queue.entries()) == 1


def test_a_key_that_a_server_may_have_seen_is_never_used_again(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft(idempotency_key="done"))
    Drainer(queue, Scripted(answered()), permit).drain()
    (entry,) = queue.entries()
    assert queue.erase(entry.operation.operation_id).done
    assert reasons(queue.enqueue(draft(idempotency_key="done"))) == ["already-done"]
    assert queue.erase_receipts(before_s=queue.now().time_s + 1) == 1
    assert queue.receipts() == ()
    assert reasons(queue.enqueue(draft(idempotency_key="done"))) == ["key-spent"]
    # One that was never sent is free again.
    queue.enqueue(draft(idempotency_key="unsent"))
    (entry,) = queue.entries()
    queue.cancel(entry.operation.operation_id)
    queue.erase(entry.operation.operation_id)
    assert isinstance(queue.enqueue(draft(idempotency_key="unsent")), Queued)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": ""},
        {"kind": "x" * 201},
        {"destination": "a\nb"},
        {"feature": 7},
        {"data_class": ""},
        {"prompt_version": ""},
        {"deduplicates": 1},
        {"priority": 10},
        {"priority": -1},
        {"priority": True},
        {"priority": 1.5},
        {"lifetime_s": 0},
        {"lifetime_s": float("nan")},
        {"lifetime_s": float("inf")},
        {"idempotency_key": ""},
        {"idempotency_key": "with space"},
        {"idempotency_key": "ä"},
        {"idempotency_key": "a\r\nX-Evil: 1"},
        {"idempotency_key": "x" * 256},
        {"payload": b'{"b":1, "a":2}'},
        {"payload": b'{"b":1,"a":2}'},
        {"payload": b'{"a":1,"a":2}'},
        {"payload": b"\xff"},
        {"payload": b"NaN"},
        {"payload": b""},
        {"payload": "{}"},
    ],
)
def test_a_draft_that_is_none_is_an_error_and_quotes_no_payload(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        draft(**changes)
    assert caught.value.code == "operation-invalid"
    assert caught.value.context["field"] in changes
    assert caught.value.__cause__ is None


def test_the_payload_is_in_no_representation(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft())
    lease = queue.leases.claim()
    assert lease is not None
    shown = repr((draft(), queue.entries(), lease, lease.outgoing, answered(b"Tuesday")))
    assert "Tuesday" not in shown
    assert "summarise" in shown


def test_the_file_is_its_owners_only(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft())
    assert stat.S_IMODE(queue.database.path.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("name", QueueLimits.__struct_fields__)
def test_limits_are_above_nothing(name: str) -> None:
    for value in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match=name):
            QueueLimits(**{name: value})  # type: ignore[arg-type]
