"""The queue against a model of it, in any order of events: processes, crashes, clocks, servers."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)
from tests.unit.route.offline.world import Time, answered, document, draft, queue_at

from edgewise.route.offline import (
    Answered,
    Applied,
    Attempt,
    LinkState,
    MaybeSent,
    NotSent,
    Operation,
    Queued,
    RefusedPermanently,
    RetryLater,
    SendResult,
    Stale,
    State,
    apply_answer,
)
from edgewise.route.offline.leases import Lease

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
NOTHING_HAPPENED = {
    State.EXPIRED, State.FAILED, State.INCOMPATIBLE, State.DECLINED, State.CANCELLED
}  # fmt: skip
# What a server did, and what the sender could say about it.
ENDS: dict[str, tuple[bool, SendResult]] = {
    "answered": (True, answered()),
    "acted, no answer": (True, MaybeSent(link=LinkState.HALF_OPEN)),
    "lost on the way": (False, MaybeSent(link=LinkState.HALF_OPEN)),
    "refused": (False, RefusedPermanently(status=400, reason="no")),
    "later": (False, RetryLater(after_s=30.0)),
    "not sent": (False, NotSent(link=LinkState.OFFLINE)),
}


class Open:
    """An attempt in the hands of a process."""

    def __init__(self, lease: Lease, attempt: Attempt) -> None:
        self.lease = lease
        self.attempt = attempt


class Notes:
    """Applies to a document that never changes under it."""

    def __init__(self, applied: Counter[str]) -> None:
        self.applied = applied

    def apply(self, operation: Operation, _answer: bytes) -> bool:
        self.applied[operation.idempotency_key] += 1
        return True

    def was_applied(self, operation: Operation) -> bool:
        return self.applied[operation.idempotency_key] > 0


class QueueMachine(RuleBasedStateMachine):
    """Its model: what the server did per key, who accepted duplicates, and who holds what."""

    leases = Bundle("leases")
    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.time = Time()
        self.queue = queue_at(self.folder, self.time, tries_max=4, lease_s=60.0)
        self.kept: dict[str, bool] = {}  # key -> deduplicates
        self.effects: Counter[str] = Counter()
        self.arrived: Counter[str] = Counter()  # attempts that may have arrived
        self.accepted: Counter[str] = Counter()
        self.holders: dict[str, tuple[int, float]] = {}  # key -> token, end of the lease
        self.applied: Counter[str] = Counter()
        self.finals: dict[str, State] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(dedupe=st.booleans(), priority=st.integers(0, 9), life=st.sampled_from([90.0, 5000.0]))
    def enqueue(self, *, dedupe: bool, priority: int, life: float) -> None:
        key = f"k{len(self.kept)}"
        asked = draft(
            idempotency_key=key,
            deduplicates=dedupe,
            priority=priority,
            lifetime_s=life,
            document=document(),
        )
        result = self.queue.enqueue(asked)
        assert isinstance(result, Queued)
        self.kept[key] = dedupe

    @rule(seconds=st.sampled_from([1.0, 20.0, 61.0, 1000.0]))
    def time_goes_on(self, seconds: float) -> None:
        self.time.go(seconds)

    @rule(seconds=st.sampled_from([-1e7, -500.0, 500.0]))
    def clock_is_set(self, seconds: float) -> None:
        self.time.wall += seconds

    @rule()
    def machine_restarts(self) -> None:
        self.time.restart()
        self.queue = queue_at(self.folder, self.time, tries_max=4, lease_s=60.0)
        self.holders.clear()

    @rule(target=leases)
    def claim(self) -> Any:
        return self._claim() or multiple()

    @rule(target=attempts, dedupes=st.sampled_from([True, True, False]))
    def claim_and_begin(self, *, dedupes: bool) -> Any:
        lease = self._claim()
        return multiple() if lease is None else self._begin(lease, dedupes=dedupes)

    def _claim(self) -> Lease | None:
        lease = self.queue.leases.claim()
        if lease is None:
            return None
        key = lease.outgoing.operation.idempotency_key
        token, until = self.holders.get(key, (0, 0.0))
        assert until <= self.time.boot, "two processes hold one operation"
        assert lease.token > token
        self.holders[key] = (lease.token, self.time.boot + 60.0)
        return lease

    @rule(lease=leases)
    def renew(self, lease: Lease) -> None:
        key = lease.outgoing.operation.idempotency_key
        if self.queue.leases.renew(lease):
            self.holders[key] = (lease.token, self.time.boot + 60.0)

    @rule(target=attempts, lease=consumes(leases), dedupes=st.sampled_from([True, True, False]))
    def begin(self, lease: Lease, *, dedupes: bool) -> Any:
        return self._begin(lease, dedupes=dedupes)

    def _begin(self, lease: Lease, *, dedupes: bool) -> Any:
        """Begin an attempt; a process that dies here is one whose attempt nobody settles."""
        begun = self.queue.leases.begin(lease, deduplicates=dedupes)
        if not isinstance(begun, Attempt):
            return multiple()
        key = lease.outgoing.operation.idempotency_key
        assert begun.idempotency_key == key
        assert self.holders[key][0] == lease.token
        if not self.kept[key] or not dedupes:
            self.kept[key] = False
            # What may have arrived before, and nobody accepted, forbids another attempt.
            assert self.arrived[key] <= self.accepted[key]
        self.arrived[key] += 1
        return Open(lease, begun)

    @rule(held=consumes(attempts), end=st.sampled_from(sorted(ENDS)))
    def settle(self, held: Open, end: str) -> None:
        acted, result = ENDS[end]
        key = held.attempt.idempotency_key
        if acted:
            self._act(key)
        if not isinstance(result, MaybeSent | Answered):
            self.arrived[key] -= 1
        entry = self.queue.leases.settle(held.lease, held.attempt, result)
        if self.holders.get(key, (0, 0.0))[0] == held.lease.token:
            self.holders.pop(key)
        if isinstance(result, Answered):
            assert entry.state in {
                State.ANSWERED, State.APPLYING, State.APPLIED, State.STALE
            }  # fmt: skip
            self.finals.pop(key, None)

    @rule(held=consumes(attempts), acted=st.booleans())
    def die_while_sending(self, held: Open, *, acted: bool) -> None:
        if acted:
            self._act(held.attempt.idempotency_key)

    def _act(self, key: str) -> None:
        if not self.kept[key] or not self.effects[key]:
            self.effects[key] += 1

    @rule(lease=consumes(leases), ends=st.booleans())
    def declined(self, lease: Lease, *, ends: bool) -> None:
        if ends:
            self.queue.leases.end(lease, state=State.DECLINED, code="declined", reason="no")
        else:
            self.queue.leases.release(lease, hold="consent", reason="ask", delay_s=10.0)
        key = lease.outgoing.operation.idempotency_key
        if self.holders.get(key, (0, 0.0))[0] == lease.token:
            self.holders.pop(key)

    @rule(data=st.data(), accept=st.booleans())
    def retry(self, data: st.DataObject, *, accept: bool) -> None:
        name, key = self._one(data)
        if name is None:
            return
        # What dead processes left is taken up first, in a claim that gets nothing.
        assert self.queue.leases.claim(skip_destinations=["cloud"]) is None
        before = self.queue.entry(name)
        change = self.queue.retry(name, accept_duplicate=accept)
        if change.done and before.final:
            self.finals.pop(key, None)
            if accept:
                self.accepted[key] = self.arrived[key]

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name, key = self._one(data)
        if name is not None and self.queue.cancel(name).done:
            self.holders.pop(key, None)

    @rule(data=st.data(), changed=st.booleans())
    def apply(self, data: st.DataObject, *, changed: bool) -> None:
        name, key = self._one(data)
        if name is None:
            return
        version = "v2" if changed else "v1"
        result = apply_answer(self.queue, name, Notes(self.applied), current_version=version)
        if isinstance(result, Applied):
            assert self.applied[key] == 1
        if isinstance(result, Stale):
            assert self.applied[key] == 0

    def _one(self, data: st.DataObject) -> tuple[str | None, str]:
        entries = self.queue.entries()
        if not entries:
            return None, ""
        entry = data.draw(st.sampled_from(entries))
        return entry.operation.operation_id, entry.operation.idempotency_key

    @invariant()
    def nothing_is_lost_and_the_states_are_true(self) -> None:
        entries = {entry.operation.idempotency_key: entry for entry in self.queue.entries()}
        assert set(entries) == set(self.kept)
        receipts = {receipt.idempotency_key for receipt in self.queue.receipts()}
        for key, entry in entries.items():
            if entry.state in NOTHING_HAPPENED:
                assert self.effects[key] == 0, entry
            if entry.state in {State.ANSWERED, State.APPLIED, State.STALE}:
                assert self.effects[key] >= 1
                assert key in receipts
            if entry.state is State.APPLIED:
                assert self.applied[key] == 1
            assert self.effects[key] <= 1 + self.accepted[key], entry
            if entry.final:
                assert self.finals.setdefault(key, entry.state) is entry.state, "a final one moved"
                assert entry.reason or entry.state is State.APPLIED


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
