"""Joins the steps of several sequences into native calls, and keeps them apart in every other way.

Each request runs in a thread of its own and blocks in :meth:`Batcher.run` for every step. There is
no thread for the native calls: whoever submits while nobody leads becomes the leader, makes the
calls until its own turn is done, and hands the lead on. A lone request meets a lock and nothing
else.

What is joined: steps of one token. A step of several (a part of a prompt, guesses to verify) has a
call to itself, with the bounds it would have alone, so that it rounds as it does alone; the runtime
would evaluate it apart in any case. While others decode, such steps get at most half of the time.

Invariants: every turn ends, by its rows or by its own error; a cancel or a failure of one sequence
ends no other one's step, which is made again where it was lost; what belongs to one sequence is
never given to another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from edgewise.errors import EdgewiseError
from edgewise.runtimes.exactness import Exactness
from edgewise.runtimes.protocol import CancelledError
from edgewise.runtimes.steps import ABORTED, Job, Native, Step, Turn

__all__ = ["Batcher"]

# How long a call waits for sequences that are about to submit: a share of what a call takes, since
# a call without them costs them that, within bounds. See docs/adr/0023.
_WAIT_SHARE: Final = 0.2
_WAIT_MIN_S: Final = 0.0003
_WAIT_MAX_S: Final = 0.003
# How long a step of several tokens waits for sequences whose turn it is.
_GIVE_WAY_MAX_S: Final = 0.02

T = TypeVar("T")


class Batcher:
    """Brings the steps of several sequences to one context."""

    def __init__(
        self,
        native: Native,
        *,
        join_max: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take the native side.

        Args:
            native: What evaluates.
            join_max: Most steps of one call.
            clock: Seconds, for tests.
        """
        self._native = native
        self._join_max = join_max
        self._clock = clock
        self._exact = Exactness()
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._pending: list[Turn] = []
        self._running: Sequence[Turn] = ()
        self._expected: set[int] = set()
        self._cancelled: set[int] = set()
        self._led = False
        self._call_s = 0.0
        self._owed_s = 0.0

    def run(self, step: Step) -> Step:
        """Return the step when it has been evaluated.

        Raises:
            CancelledError: its sequence was cancelled; what the cache holds of it is unknown.
            EdgewiseError: the native call failed for it.
        """
        self._wait_for(step)
        return step

    def alone(self, sequence: int, job: Callable[[], T]) -> T:
        """Return what a function returns that needs the context while nothing is evaluated.

        Raises:
            EdgewiseError: what the function raises.
        """
        turn = Job(sequence, job)
        self._wait_for(turn)
        result: T = turn.result
        return result

    def leave(self, sequence: int) -> None:
        """Say that a sequence's request has ended, so that no call waits for its next step."""
        with self._lock:
            self._expected.discard(sequence)
            self._arrived.notify()

    def cancel(self, sequence: int) -> None:
        """End the sequence's step, wherever it is, and those to come. Callable from any thread."""
        with self._lock:
            self._cancelled.add(sequence)
            for turn in self._pending:
                if turn.sequence != sequence or not isinstance(turn, Step):
                    continue
                if turn in self._running:
                    self._native.abort()
                else:
                    turn.error = CancelledError()
                    self._finish(turn)
                break
            self._arrived.notify()

    def clear_cancel(self, sequence: int) -> None:
        """Take a cancel back."""
        with self._lock:
            self._cancelled.discard(sequence)

    def cancelled(self, sequence: int) -> bool:
        """Return whether a cancel is pending."""
        return sequence in self._cancelled

    def check(self, sequence: int) -> None:
        """Do nothing, unless a cancel is pending.

        Raises:
            CancelledError: one is.
        """
        if sequence in self._cancelled:
            raise CancelledError

    def _wait_for(self, turn: Turn) -> None:
        with self._lock:
            if isinstance(turn, Step) and turn.sequence in self._cancelled:
                raise CancelledError
            self._pending.append(turn)
            self._expected.discard(turn.sequence)
            if self._led:
                self._arrived.notify()
            else:
                self._led = turn.leads = True
        if not turn.leads:
            turn.wake.wait()
        if turn.leads:
            self._lead(turn)
        if turn.error is not None:
            raise turn.error

    def _lead(self, own: Turn) -> None:
        try:
            while True:
                with self._lock:
                    self._running = group = self._choose(own)
                if not group:
                    return
                self._execute(group)
        finally:
            with self._lock:
                if self._pending:
                    follower = self._pending[0]
                    follower.leads = True
                    follower.wake.set()
                else:
                    self._led = False

    def _choose(self, own: Turn) -> Sequence[Turn]:
        """Return what the next call evaluates; nothing when the leader's turn is done."""
        started = self._clock()
        while not own.done:
            single: list[Step] = []
            several: Step | None = None
            for turn in self._pending:
                if isinstance(turn, Job):
                    return (turn,)
                if isinstance(turn, Step) and len(turn.tokens) == 1:
                    single.append(turn)
                elif several is None and isinstance(turn, Step):
                    several = turn
            if several is not None and self._owed_s <= 0:
                return (several,)
            left_s = started + self._patience_s(bool(single)) - self._clock()
            if left_s <= 0:
                self._expected.clear()  # who is late is waited for once
                return single[: self._join_max] if single else (several,) if several else ()
            self._arrived.wait(left_s)
        return ()

    def _patience_s(self, single: bool) -> float:
        """Return how long to wait for sequences that are about to submit."""
        if not self._expected:
            return 0.0
        if single:
            return min(_WAIT_MAX_S, max(_WAIT_MIN_S, self._call_s * _WAIT_SHARE))
        return min(_GIVE_WAY_MAX_S, self._owed_s)

    def _execute(self, group: Sequence[Turn]) -> None:
        turn = group[0]
        try:
            if isinstance(turn, Job):
                turn.result = turn.run()
                self._end(group)
            else:
                self._evaluate([step for step in group if isinstance(step, Step)])
        except BaseException as error:  # noqa: BLE001 - each waiting thread has to be told
            with self._lock:
                self._running = ()
                self._native.rearm()
            for failed in group:
                if not failed.done:
                    failed.error = error
            self._end(group)

    def _evaluate(self, steps: list[Step]) -> None:
        started = self._clock()
        code = self._native.evaluate(steps)
        if code == 0:
            self._native.take(steps)
        self._account(steps, self._clock() - started)
        with self._lock:
            self._running = ()
            self._native.rearm()
            stopped = [step for step in steps if step.sequence in self._cancelled]
            for step in stopped:
                step.error = CancelledError()
        if code == 0:
            if len(steps) > 1:
                self._compare(steps)
            self._end(steps)
        elif code == ABORTED:
            self._cut_back(steps)
            self._end(stopped)  # the others' steps are still pending and are made again
        elif len(steps) == 1:
            steps[0].error = self._native.failure(code, steps[0])
            self._end(steps)
        else:
            self._one_by_one(steps)

    def _one_by_one(self, steps: list[Step]) -> None:
        """Find out whose step fails, after a joined call has failed."""
        self._cut_back(steps)
        for step in steps:
            if not step.done:
                with self._lock:
                    self._running = (step,)
                self._evaluate([step])

    def _cut_back(self, steps: Sequence[Step]) -> None:
        for step in steps:
            try:
                self._native.cut(step.sequence, step.position)
            except EdgewiseError as error:
                if step.error is None:
                    step.error = error
                    self._end((step,))

    def _compare(self, steps: list[Step]) -> None:
        """Note which steps round otherwise than alone; try it out where that is not known."""
        for step in steps:
            known = self._exact.known(step.position, len(steps))
            if known is None and step.error is None:
                self._try_alone(step, len(steps))
            else:
                step.rounded = known is False

    def _try_alone(self, step: Step, joined: int) -> None:
        rows = [row.copy() for row in step.rows]
        try:
            self._native.cut(step.sequence, step.position)
        except EdgewiseError:
            step.rounded = True  # not known to be exact
            return
        with self._lock:
            self._running = (step,)
        code = self._native.evaluate((step,))
        if code == 0:
            self._native.take((step,))
            self._exact.learn(step.position, joined, rows, step.rows)
        else:
            step.error = CancelledError() if code == ABORTED else self._native.failure(code, step)
        with self._lock:
            self._running = ()
            self._native.rearm()

    def _account(self, steps: Sequence[Step], took_s: float) -> None:
        if len(steps[0].tokens) == 1:
            self._call_s = took_s if self._call_s == 0 else 0.8 * self._call_s + 0.2 * took_s
            self._owed_s = max(0.0, self._owed_s - took_s)
        else:
            self._owed_s = took_s

    def _end(self, turns: Sequence[Turn]) -> None:
        with self._lock:
            for turn in turns:
                if not turn.done:
                    self._finish(turn)
                    if isinstance(turn, Step) and turn.error is None and len(turn.tokens) == 1:
                        self._expected.add(turn.sequence)

    def _finish(self, turn: Turn) -> None:
        turn.done = True
        self._pending.remove(turn)
        turn.wake.set()
