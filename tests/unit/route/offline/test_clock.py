"""The queue's clock: it never goes back, and within one run of the machine never stands."""

from __future__ import annotations

import os
import time as system
from pathlib import Path

from tests.unit.route.offline.world import Time, draft, queue_at

from edgewise.route.offline import OfflineQueue, QueueClock, State
from edgewise.store import Home


def test_a_clock_set_back_revives_nothing(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft(lifetime_s=100.0))
    time.wall += 200.0  # a claim sees this time …
    queue.leases.claim()
    time.wall -= 10_000.0  # … and it stays seen
    assert queue.leases.claim() is None
    assert queue.entries()[0].state is State.EXPIRED


def test_a_clock_set_back_does_not_lengthen_a_life(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft(lifetime_s=100.0))
    time.wall -= 10_000.0
    time.go(101.0)
    assert queue.leases.claim() is None
    assert queue.entries()[0].state is State.EXPIRED
    now = queue.now()
    assert now.skewed
    assert round(now.skew_s) == 10_000


def test_after_a_false_future_what_is_queued_then_has_its_whole_life(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    time.wall += 3e8  # ten years
    queue.enqueue(draft(lifetime_s=100.0))
    time.wall -= 3e8
    queue.enqueue(draft(lifetime_s=100.0))
    time.go(99.0)
    lease = queue.leases.claim()
    assert lease is not None
    time.go(2.0)
    assert queue.leases.claim() is None
    assert [entry.state for entry in queue.entries()] == [State.LEASED, State.EXPIRED]


def test_over_a_restart_only_what_was_seen_counts(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft(lifetime_s=100.0))
    before = queue.now().time_s
    time.restart()
    time.wall -= 5e6  # the battery of its clock is empty
    again = queue_at(tmp_path, time)
    assert again.now().time_s == before
    again.leases.claim()  # the clock goes on from there, in this run
    time.go(101.0)
    again.leases.claim()
    assert again.entries()[0].state in {State.LEASED, State.EXPIRED}
    assert again.now().time_s == before + 101.0


def test_a_clock_that_reads_no_number_does_not_stop_time(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft(lifetime_s=100.0))
    time.wall = float("nan")
    time.boot += 101.0
    assert queue.leases.claim() is None
    assert queue.entries()[0].state is State.EXPIRED


def test_the_systems_clocks_serve(tmp_path: Path) -> None:
    queue = OfflineQueue(Home(tmp_path), delay_safe=frozenset({"summarise"}))
    queue.enqueue(draft())
    now = queue.now()
    assert abs(now.time_s - system.time()) < 60
    assert not now.skewed
    if os.path.exists("/proc/sys/kernel/random/boot_id"):  # noqa: PTH110
        assert len(now.boot_id) == 36
    assert QueueClock(boot_id="x")._boot_id == "x"
