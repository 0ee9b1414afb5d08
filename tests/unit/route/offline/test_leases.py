"""Leases: one sender at a time, takeover by proof of death, and what a late holder may still say."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.unit.route.offline.world import (
    Scripted,
    Time,
    answered,
    draft,
    permit,
    queue_at,
)

from edgewise.route.offline import (
    Attempt,
    Drainer,
    LinkState,
    MaybeSent,
    NotSent,
    OfflineQueue,
    RefusedPermanently,
    SendResult,
    State,
)
from edgewise.route.offline.leases import Lease, LeaseKeeper

MAYBE = MaybeSent(link=LinkState.HALF_OPEN)


def claimed(queue: OfflineQueue) -> Lease:
    lease = queue.leases.claim()
    assert lease is not None
    return lease


def begun(queue: OfflineQueue, lease: Lease) -> Attempt:
    attempt = queue.leases.begin(lease, deduplicates=True)
    assert isinstance(attempt, Attempt)
    return attempt


def state(queue: OfflineQueue) -> State:
    (entry,) = queue.entries()
    return entry.state


def test_what_one_process_holds_another_does_not_get(tmp_path: Path) -> None:
    time = Time()
    one, other = queue_at(tmp_path, time), queue_at(tmp_path, time)
    one.enqueue(draft())
    lease = claimed(one)
    assert other.leases.claim() is None
    begun(one, lease)
    time.go(59.0)
    assert other.leases.claim() is None
    assert one.leases.renew(lease)
    time.go(59.0)
    assert other.leases.claim() is None


def test_a_lease_taken_over_is_fenced_off(tmp_path: Path) -> None:
    time = Time()
    one, other = queue_at(tmp_path, time), queue_at(tmp_path, time)
    one.enqueue(draft())
    old = claimed(one)
    time.go(61.0)
    assert other.leases.claim() is None  # taken up, and paused once
    time.go(10.0)
    new = claimed(other)
    assert new.token > old.token
    assert not one.leases.renew(old)
    assert not isinstance(one.leases.begin(old, deduplicates=True), Attempt)
    one.leases.release(old, hold="", reason="", delay_s=0.0)
    one.leases.end(old, state=State.FAILED, code="x", reason="x")
    assert state(one) is State.LEASED
    begun(other, new)


def test_a_holder_whose_time_is_up_does_not_begin_even_if_nobody_took_over(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft())
    lease = claimed(queue)
    time.go(61.0)
    assert not isinstance(queue.leases.begin(lease, deduplicates=True), Attempt)


@pytest.mark.parametrize("jump_s", [-1e9, -3600.0, 3600.0, 1e9])
def test_no_change_of_the_date_ends_or_extends_a_lease(tmp_path: Path, jump_s: float) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft(lifetime_s=7 * 86400.0))
    lease = claimed(queue)
    begun(queue, lease)
    time.wall += jump_s
    assert queue.leases.claim() is None
    assert queue.leases.renew(lease)
    time.boot += 61.0
    queue.leases.claim()
    assert not queue.leases.renew(lease)


def test_a_restart_of_the_machine_ends_every_lease(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft())
    lease = claimed(queue)
    time.restart()
    time.wall += 1.0
    again = queue_at(tmp_path, time)
    again.leases.claim()
    assert not again.leases.renew(lease)
    assert state(again) is State.QUEUED


def test_where_a_run_has_no_name_the_queues_clock_decides(tmp_path: Path) -> None:
    time = Time()
    time.boot_id = ""
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft())
    lease = claimed(queue)
    time.wall -= 1e6
    assert queue.leases.renew(lease)
    time.wall += 1e6 + 61.0
    queue.leases.claim()
    assert not queue.leases.renew(lease)


def test_after_a_crash_while_sending_a_plain_server_is_not_asked_again(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft(deduplicates=False))
    begun(queue, claimed(queue))
    time.go(61.0)
    sender = Scripted()
    Drainer(queue, sender, permit).drain()
    (entry,) = queue.entries()
    assert (entry.state, entry.code, sender.sent) == (State.UNKNOWN, "maybe-sent", [])
    assert "may have happened" in entry.reason


@pytest.mark.parametrize("dedupe", [True, False])
def test_an_answer_counts_however_late(tmp_path: Path, *, dedupe: bool) -> None:
    """A holder that was asleep brings the answer after all: it proves what happened."""
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft(deduplicates=dedupe, idempotency_key="k"))
    lease = claimed(queue)
    attempt = begun(queue, lease)
    time.go(61.0)
    queue.leases.claim()
    assert state(queue) is (State.QUEUED if dedupe else State.UNKNOWN)
    assert queue.leases.settle(lease, attempt, answered()).state is State.ANSWERED
    assert [receipt.idempotency_key for receipt in queue.receipts()] == ["k"]
    time.go(3600.0)
    assert queue.leases.claim() is None
    assert not queue.entries()[0].may_have_happened


@pytest.mark.parametrize(
    "late", [MAYBE, NotSent(link=LinkState.OFFLINE), RefusedPermanently(status=400, reason="no")]
)
def test_nothing_else_counts_late(tmp_path: Path, late: SendResult) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft())
    old = claimed(queue)
    attempt = begun(queue, old)
    time.go(61.0)
    queue.leases.claim()
    time.go(60.0)
    new = claimed(queue)
    second = begun(queue, new)
    queue.leases.settle(old, attempt, late)
    assert state(queue) is State.SENDING
    assert queue.leases.settle(new, second, answered()).state is State.ANSWERED


def test_the_first_answer_stays(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft())
    old = claimed(queue)
    first = begun(queue, old)
    time.go(61.0)
    queue.leases.claim()
    time.go(60.0)
    new = claimed(queue)
    second = begun(queue, new)
    queue.leases.settle(new, second, answered(b"second"))
    queue.leases.settle(old, first, answered(b"first"))
    (entry,) = queue.entries()
    assert queue.answer(entry.operation.operation_id) == b"second"
    (receipt,) = queue.receipts()
    assert (receipt.attempt, receipt.answer_sha256) == (2, entry.answer_sha256)


def test_a_process_that_dies_each_time_does_not_hold_up_the_others(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time, tries_max=3)
    queue.enqueue(draft(priority=9, idempotency_key="poison"))
    queue.enqueue(draft(priority=0, idempotency_key="good"))
    claimed(queue)  # and the process dies
    time.go(61.0)
    good = claimed(queue)
    assert good.outgoing.operation.idempotency_key == "good"
    queue.leases.settle(good, begun(queue, good), answered())
    for _ in range(2):
        time.go(120.0)
        claimed(queue)
        time.go(61.0)
        assert queue.leases.claim() is None
    first = queue.entries()[0]
    assert (first.state, first.code) == (State.FAILED, "tries-exhausted")


def test_a_keeper_renews_while_it_lasts_and_then_no_more(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time(), lease_s=3 / 64, attempt_s=5 / 64)
    queue.enqueue(draft())
    lease = claimed(queue)
    renewed = threading.Event()
    count = 0

    class Counting:
        def renew(self, asked: Lease) -> bool:
            nonlocal count
            assert asked is lease
            count += 1
            if count == 5:
                renewed.set()
            return True

    with LeaseKeeper(Counting(), lease) as _:  # type: ignore[arg-type]
        assert renewed.wait(30)
        assert not threading.Event().wait(0.1)
    assert count == 5  # 5/64 s in steps of 1/64 s


def test_an_attempt_says_how_long_it_may_take(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time(), attempt_s=90.0)
    queue.enqueue(draft(idempotency_key="k"))
    attempt = begun(queue, claimed(queue))
    assert attempt == Attempt(number=1, idempotency_key="k", time_left_s=90.0)
