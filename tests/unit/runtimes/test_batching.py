"""The scheduler of joined steps, over a native side whose cache is a list for each sequence."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tests.unit.serve.fakes import wait_for

from edgewise.errors import AdapterError, EdgewiseError, UnsupportedError
from edgewise.runtimes.batching import Batcher
from edgewise.runtimes.protocol import CancelledError
from edgewise.runtimes.steps import ABORTED, Step

_CODE_BAD = -3


class Gate(threading.Event):
    """Holds a call while it is not set; one can be let through by itself."""

    def __init__(self) -> None:
        super().__init__()
        self._passes = 0

    def once(self) -> None:
        self._passes += 1

    def wait(self, timeout: float | None = None) -> bool:
        if self._passes:
            self._passes -= 1
            return True
        return super().wait(timeout)


class ListNative:
    """Its logits are a digest of what a sequence's cache holds; a gate holds its calls."""

    def __init__(self) -> None:
        self.caches: dict[int, list[int]] = {}
        self.calls: list[tuple[tuple[int, int], ...]] = []
        self.gate = Gate()
        self.gate.set()
        self.inside = threading.Event()
        self.bad_token: int | None = None
        self.uncut: int | None = None
        self.rounds_from: int | None = None
        self.breaks = False
        self._abort = threading.Event()
        self._busy = threading.Lock()
        self._last: dict[int, list[float]] = {}

    def evaluate(self, steps: Sequence[Step]) -> int:
        assert self._busy.acquire(blocking=False), "two calls at once"
        try:
            self.calls.append(tuple((step.sequence, len(step.tokens)) for step in steps))
            self.inside.set()
            while not self.gate.wait(0.001):
                if self._abort.is_set():
                    break
            if self.breaks:
                raise MemoryError
            self._append(steps)
            if self._abort.is_set():
                return ABORTED
            if any(self.bad_token in step.tokens for step in steps):
                return _CODE_BAD
            return 0
        finally:
            self._busy.release()

    def _append(self, steps: Sequence[Step]) -> None:
        for step in steps:
            cache = self.caches.setdefault(step.sequence, [])
            assert len(cache) == step.position, "a step was lost, or made twice"
            rows = []
            for token in step.tokens:
                cache.append(token)
                rows.append(digest(cache))
            rounds = self.rounds_from is not None and step.position >= self.rounds_from
            if rounds and len(steps) > 1:
                rows = [row + 0.5 for row in rows]
            self._last[step.sequence] = rows if step.every else rows[-1:]

    def take(self, steps: Sequence[Step]) -> None:
        for step in steps:
            step.rows = [np.array([row], np.float32) for row in self._last[step.sequence]]

    def cut(self, sequence: int, position: int) -> None:
        if sequence == self.uncut:
            raise UnsupportedError("cannot-cut", "not there")
        del self.caches.setdefault(sequence, [])[position:]

    def failure(self, code: int, step: Step) -> EdgewiseError:
        return AdapterError("step-bad", f"sequence {step.sequence}, code {code}")

    def abort(self) -> None:
        self._abort.set()

    def rearm(self) -> None:
        self._abort.clear()


def digest(tokens: Sequence[int]) -> float:
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 65521
    return float(value)


class Running:
    """A call in a thread of its own, and what came of it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def end(self) -> Running:
        self._thread.join(10)
        assert not self._thread.is_alive(), "it does not end"
        return self

    @property
    def row(self) -> float:
        if self.error is not None:
            raise self.error
        assert isinstance(self.result, Step)
        return float(self.result.rows[-1][0])


@pytest.fixture
def native() -> ListNative:
    return ListNative()


@pytest.fixture
def batcher(native: ListNative) -> Batcher:
    return Batcher(native, join_max=4)


def held(native: ListNative, batcher: Batcher, steps: Sequence[Step]) -> list[Running]:
    """Submit steps, in this order, while the first one's call is held."""
    native.gate.clear()
    native.inside.clear()
    running = [Running(lambda: batcher.run(steps[0]))]
    assert native.inside.wait(5)
    for number, step in enumerate(steps[1:], 2):
        running.append(Running(lambda step=step: batcher.run(step)))  # type: ignore[misc]
        wait_for(lambda number=number: len(batcher._pending) == number)  # type: ignore[misc]
    return running


def test_a_lone_step_runs_in_the_thread_that_asks(native: ListNative, batcher: Batcher) -> None:
    threads = threading.active_count()
    rows = [float(batcher.run(Step(0, at, [at])).rows[0][0]) for at in range(3)]
    assert rows == [digest([0]), digest([0, 1]), digest([0, 1, 2])]
    assert native.calls == [((0, 1),)] * 3
    assert threading.active_count() == threads


def test_what_is_pending_is_joined(native: ListNative, batcher: Batcher) -> None:
    running = held(native, batcher, [Step(n, 0, [n]) for n in (0, 2, 1, 3)])
    native.gate.set()
    assert [r.end().row for r in running] == [digest([n]) for n in (0, 2, 1, 3)]
    assert native.calls[:2] == [((0, 1),), ((2, 1), (1, 1), (3, 1))]


def test_no_more_are_joined_than_fit(native: ListNative) -> None:
    batcher = Batcher(native, join_max=2)
    running = held(native, batcher, [Step(n, 0, [n]) for n in range(5)])
    native.gate.set()
    assert [r.end().row for r in running] == [digest([n]) for n in range(5)]
    assert max(map(len, native.calls)) == 2


def test_several_tokens_have_a_call_to_themselves(native: ListNative, batcher: Batcher) -> None:
    steps = [Step(0, 0, [9]), Step(1, 0, [1, 2, 3]), Step(2, 0, [5]), Step(3, 0, [6], every=True)]
    running = held(native, batcher, steps)
    native.gate.set()
    rows = [r.end().row for r in running]
    assert rows == [digest([9]), digest([1, 2, 3]), digest([5]), digest([6])]
    for call in native.calls:
        assert len(call) == 1 or all(count == 1 for _, count in call)


def test_every_row_is_given_where_it_is_asked_for(batcher: Batcher) -> None:
    rows = batcher.run(Step(0, 0, [4, 5, 6], every=True)).rows
    assert [float(row[0]) for row in rows] == [digest([4]), digest([4, 5]), digest([4, 5, 6])]


def test_decoding_is_not_starved_by_prompts(native: ListNative) -> None:
    """After a step of several tokens the others have as long: each call takes a second here."""
    batcher = Batcher(native, join_max=4, clock=lambda: float(len(native.calls)))
    stop = threading.Event()

    def prompts() -> None:
        position = 0
        while not stop.is_set():
            batcher.run(Step(1, position, [1, 2]))
            position += 2

    prompt = Running(prompts)
    for position in range(40):
        batcher.run(Step(0, position, [3]))
    calls = list(native.calls)
    stop.set()
    batcher.leave(0)
    prompt.end()
    decodes = [at for at, call in enumerate(calls) if call == ((0, 1),)]
    assert len(decodes) == 40
    assert len(calls) - decodes[0] <= 2 * 40 + 1, "the prompt took more than its share"


def test_a_cancel_ends_a_step_that_waits(native: ListNative, batcher: Batcher) -> None:
    running = held(native, batcher, [Step(0, 0, [1]), Step(1, 0, [2]), Step(2, 0, [3])])
    batcher.cancel(1)
    assert isinstance(running[1].end().error, CancelledError)
    native.gate.set()
    assert [running[0].end().row, running[2].end().row] == [digest([1]), digest([3])]
    assert all(sequence != 1 for call in native.calls for sequence, _ in call)


def test_a_cancel_of_one_step_of_a_call_repeats_the_others(
    native: ListNative, batcher: Batcher
) -> None:
    for sequence in range(3):
        batcher.run(Step(sequence, 0, [7]))
    running = held(native, batcher, [Step(3, 0, [1]), *(Step(n, 1, [n]) for n in range(3))])
    native.inside.clear()
    native.gate.once()
    running[0].end()
    wait_for(lambda: len(native.calls[-1]) == 3)
    batcher.cancel(1)
    assert isinstance(running[2].end().error, CancelledError)
    native.gate.set()
    assert [running[n].end().row for n in (1, 3)] == [digest([7, 0]), digest([7, 2])]
    with pytest.raises(CancelledError):
        batcher.run(Step(1, 1, [5]))
    native.cut(1, 1)
    batcher.clear_cancel(1)
    assert float(batcher.run(Step(1, 1, [5])).rows[0][0]) == digest([7, 5])


def test_a_step_that_cannot_be_repeated_fails_by_itself(
    native: ListNative, batcher: Batcher
) -> None:
    running = held(native, batcher, [Step(3, 0, [1]), *(Step(n, 0, [n]) for n in range(3))])
    native.uncut = 2
    native.gate.once()
    running[0].end()
    wait_for(lambda: len(native.calls[-1]) == 3)
    batcher.cancel(0)
    assert isinstance(running[1].end().error, CancelledError)
    assert isinstance(running[3].end().error, UnsupportedError)
    native.gate.set()
    assert running[2].end().row == digest([1])


def test_a_failure_is_the_one_sequences_that_has_it(native: ListNative, batcher: Batcher) -> None:
    native.bad_token = 66
    running = held(native, batcher, [Step(0, 0, [1]), Step(1, 0, [66]), Step(2, 0, [3])])
    native.gate.set()
    assert [running[0].end().row, running[2].end().row] == [digest([1]), digest([3])]
    error = running[1].end().error
    assert isinstance(error, AdapterError)
    assert error.code == "step-bad"


def test_an_exception_in_a_call_is_told_to_all_who_wait_for_it(
    native: ListNative, batcher: Batcher
) -> None:
    running = held(native, batcher, [Step(0, 0, [1])])
    native.breaks = True
    native.gate.set()
    assert isinstance(running[0].end().error, MemoryError)
    native.breaks = False
    assert float(batcher.run(Step(1, 0, [2])).rows[0][0]) == digest([2])


def test_a_job_runs_while_nothing_is_evaluated(native: ListNative, batcher: Batcher) -> None:
    running = held(native, batcher, [Step(0, 0, [1]), Step(1, 0, [2])])
    seen: list[int] = []
    job = Running(lambda: batcher.alone(2, lambda: seen.append(len(native.calls))))
    native.gate.set()
    for call in (*running, job):
        call.end()
    assert job.error is None
    assert len(seen) == 1
    with pytest.raises(UnsupportedError):
        batcher.alone(0, lambda: _raise(UnsupportedError("no", "no")))


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(("rounds_from", "rounded"), [(None, False), (0, True), (64, False)])
def test_it_is_tried_out_whether_joined_steps_round_otherwise(
    native: ListNative, batcher: Batcher, rounds_from: int | None, rounded: bool
) -> None:
    native.rounds_from = rounds_from
    found = []
    for position in range(3):
        running = held(native, batcher, [Step(3, position, [1]), Step(0, position, [4])])
        more = Running(lambda at=position: batcher.run(Step(1, at, [5])))  # type: ignore[misc]
        wait_for(lambda: len(batcher._pending) == 3)
        native.gate.set()
        for call in (*running, more):
            call.end()
        for call in (running[1], more):
            assert isinstance(call.result, Step)
            found.append(call.result.rounded)
    # One step of each doubling is evaluated both ways, and keeps what it gave alone.
    assert any(found) is rounded
    tried = [call for call in native.calls if call in {((0, 1),), ((1, 1),)}]
    assert tried


def test_many_threads_get_what_they_get_alone(native: ListNative) -> None:
    batcher = Batcher(native, join_max=3)

    def one(sequence: int) -> None:
        pick, held_tokens = random.Random(sequence), list[int]()
        for _ in range(150):
            if pick.random() < 0.1:
                cut = pick.randint(0, len(held_tokens))
                batcher.alone(sequence, lambda cut=cut: native.cut(sequence, cut))  # type: ignore[misc]
                del held_tokens[cut:]
            if pick.random() < 0.1:
                batcher.leave(sequence)
            new = [pick.randrange(1000) for _ in range(pick.choice((1, 1, 1, 1, 2, 5)))]
            if pick.random() < 0.05:
                threading.Thread(target=batcher.cancel, args=(sequence,)).start()
            try:
                step = batcher.run(Step(sequence, len(held_tokens), new))
            except CancelledError:
                wait_for(lambda: batcher.cancelled(sequence))
                at = len(held_tokens)
                batcher.alone(sequence, lambda at=at: native.cut(sequence, at))  # type: ignore[misc]
            else:
                held_tokens += new
                assert float(step.rows[0][0]) == digest(held_tokens)
            batcher.clear_cancel(sequence)

    running = [Running(lambda n=n: one(n)) for n in range(6)]  # type: ignore[misc]
    for call in running:
        error = call.end().error
        assert error is None, error
