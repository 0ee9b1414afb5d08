"""What a person can do: look, cancel, retry, erase; and how long anything is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.route.offline.world import (
    DAY_S,
    Scripted,
    Time,
    answered,
    draft,
    permit,
    queue_at,
)

from edgewise.errors import InputError
from edgewise.route.offline import (
    Drainer,
    LinkState,
    MaybeSent,
    NotSent,
    OfflineQueue,
    RefusedPermanently,
    State,
)

MAYBE = MaybeSent(link=LinkState.HALF_OPEN, reason="silence")
NO = RefusedPermanently(status=400, reason="no")


def only(queue: OfflineQueue) -> str:
    (entry,) = queue.entries()
    return entry.operation.operation_id


def bytes_of(queue: OfflineQueue) -> int:
    with queue.database.reading() as connection:
        told = connection.execute(
            "SELECT total(length(payload)) + total(length(answer)) FROM queue_operations"
        )
        return int(told.fetchone()[0])


def test_an_identifier_may_be_its_beginning(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    for _ in range(17):  # two of them begin with the same of 16 digits
        queue.enqueue(draft())
    names = [entry.operation.operation_id for entry in queue.entries()]
    assert queue.entry(names[0][:12]).operation.operation_id == names[0]
    firsts = [name[0] for name in names]
    double = next(one for one in firsts if firsts.count(one) > 1)
    with pytest.raises(InputError) as caught:
        queue.entry(double)
    assert caught.value.code == "operation-ambiguous"
    for nothing in ("", "%", "_", "zz", "' OR 1"):
        with pytest.raises(InputError) as caught:
            queue.cancel(nothing)
        assert caught.value.code == "operation-unknown"


def test_what_waits_can_be_cancelled_also_while_it_is_prepared(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft())
    lease = queue.leases.claim()
    assert lease is not None
    change = queue.cancel(only(queue))
    assert (change.done, change.entry.state) == (True, State.CANCELLED)
    assert bytes_of(queue) == 0
    begun = queue.leases.begin(lease, deduplicates=True)
    assert begun == queue.entries()[0]  # no attempt: nothing is sent
    assert queue.entries()[0].attempts == 0


def test_what_is_being_sent_or_done_cannot_be_cancelled(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft())
    lease = queue.leases.claim()
    assert lease is not None
    attempt = queue.leases.begin(lease, deduplicates=True)
    assert queue.cancel(only(queue)).reason.code == "not-waiting"
    queue.leases.settle(lease, attempt, answered())  # type: ignore[arg-type]
    change = queue.cancel(only(queue))
    assert (change.done, change.entry.state) == (False, State.ANSWERED)


def test_a_cancelled_operation_that_may_have_happened_is_unknown(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft())
    Drainer(queue, Scripted(MAYBE), permit).drain()
    entry = queue.cancel(only(queue)).entry
    assert (entry.state, entry.code) == (State.UNKNOWN, "cancelled")


def test_retry_of_a_failed_one(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft(deduplicates=False))
    Drainer(queue, Scripted(NO), permit).drain()
    assert queue.entries()[0].state is State.FAILED
    assert queue.retry(only(queue)).entry.state is State.QUEUED
    sender = Scripted(answered())
    Drainer(queue, sender, permit).drain()
    assert queue.entries()[0].state is State.ANSWERED
    assert queue.retry(only(queue)).reason.code == "not-retryable"


def test_retry_of_an_unknown_one_needs_a_person_to_accept_a_duplicate(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft(deduplicates=False, idempotency_key="k"))
    Drainer(queue, Scripted(MAYBE), permit).drain()
    change = queue.retry(only(queue))
    assert (change.done, change.reason.code) == (False, "may-happen-twice")
    assert queue.retry(only(queue), accept_duplicate=True).done
    sender = Scripted(NO)
    Drainer(queue, sender, permit).drain()
    assert sender.sent == [("k", 2)]
    # The second was refused; the first may have happened all the same.
    (entry,) = queue.entries()
    assert (entry.state, entry.may_have_happened) == (State.UNKNOWN, True)
    # What was accepted was that one attempt, not every later one.
    assert queue.retry(only(queue)).done
    Drainer(queue, Scripted(MAYBE), permit).drain()
    assert queue.retry(only(queue)).reason.code == "may-happen-twice"


def test_a_waiting_one_is_tried_at_once_when_asked(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft())
    offline = NotSent(link=LinkState.OFFLINE)
    Drainer(queue, Scripted(offline), permit).drain()
    assert queue.leases.claim() is None
    assert queue.retry(only(queue)).done
    Drainer(queue, Scripted(offline), permit).drain()
    assert queue.leases.claim() is None
    assert queue.wake() == 1
    assert queue.wake() == 0
    assert queue.leases.claim() is not None


def test_erase_takes_payload_and_answer_and_leaves_the_receipt(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft(idempotency_key="k"))
    assert queue.erase(only(queue)).reason.code == "not-ended"
    Drainer(queue, Scripted(answered(b"The answer")), permit).drain()
    name = only(queue)
    assert queue.answer(name) == b"The answer"
    assert queue.erase(name).done
    assert queue.entries() == ()
    (receipt,) = queue.receipts()
    assert (receipt.idempotency_key, receipt.operation_id, receipt.status) == ("k", name, 200)
    for file in tmp_path.iterdir():
        assert b"The answer" not in file.read_bytes()
        assert b"Tuesday" not in file.read_bytes()


def test_a_payload_is_kept_no_longer_than_it_may_be_sent(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    for _ in range(2):
        queue.enqueue(draft(deduplicates=False))
    Drainer(queue, Scripted(NO, MAYBE), permit).drain()
    assert bytes_of(queue) > 0  # a person may still retry them
    time.go(DAY_S + 1)
    queue.leases.claim()
    assert bytes_of(queue) == 0
    for entry in queue.entries():
        change = queue.retry(entry.operation.operation_id, accept_duplicate=True)
        assert change.reason.code == "not-retryable"


def test_history_ends(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time, history_s=DAY_S)
    queue.enqueue(draft(idempotency_key="k", lifetime_s=10.0, deduplicates=False))
    Drainer(queue, Scripted(MAYBE), permit).drain()
    time.go(2 * DAY_S)
    queue.leases.claim()  # drops the payload
    queue.leases.claim()
    assert queue.entries() == ()
    refused = queue.enqueue(draft(idempotency_key="k"))
    assert refused.reasons[0].code == "key-spent"
