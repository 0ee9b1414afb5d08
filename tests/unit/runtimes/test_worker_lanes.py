"""A worker that runs several calls at once: each gets its own frames, cancel and error."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from tests.services import HERE, LANED

from edgewise.errors import AdapterError
from edgewise.runtimes.worker import PendingCall, WorkerProcess


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    process = WorkerProcess(LANED, environment=HERE)
    yield process
    process.close()


def begun(worker: WorkerProcess) -> tuple[PendingCall, threading.Thread, list[object]]:
    """Return a call that has said something, the thread that waits for it, and its end."""
    pending, said, ends = worker.start("wait"), threading.Event(), list[object]()

    def wait() -> None:
        try:
            ends.append(pending.result(str, notice=int, on_notice=lambda _: said.set()))
        except AdapterError as error:
            ends.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert said.wait(10)
    return pending, thread, ends


def test_two_calls_run_at_once_and_a_third_beside_them(worker: WorkerProcess) -> None:
    first, first_thread, first_ends = begun(worker)
    second, second_thread, second_ends = begun(worker)
    assert worker.call("echo", 5, int) == 5
    second.cancel()
    second_thread.join(10)
    assert (first_ends, second_ends) == ([], ["cancelled"])
    seen: list[int] = []
    assert worker.start("count", 200).result(int, notice=int, on_notice=seen.append) == 200
    assert seen == list(range(200))
    first.cancel()
    first_thread.join(10)
    assert first_ends == ["cancelled"]


def test_a_call_beyond_the_lanes_waits_and_can_be_cancelled_there(worker: WorkerProcess) -> None:
    running = [begun(worker) for _ in range(2)]
    third, fourth = worker.start("wait"), worker.start("count", 3)
    third.cancel()
    running[0][0].cancel()
    assert third.result(str, notice=int) == "cancelled"
    assert fourth.result(int, notice=int) == 3
    running[1][0].cancel()
    for _, thread, ends in running:
        thread.join(10)
        assert ends == ["cancelled"]


def test_a_dead_worker_ends_every_call(worker: WorkerProcess) -> None:
    running = [begun(worker) for _ in range(2)]
    waiting = worker.start("wait")
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(AdapterError) as caught:
        waiting.result(str, notice=int)
    assert caught.value.code == "worker-killed"
    for _, thread, ends in running:
        thread.join(10)
        assert [getattr(end, "code", end) for end in ends] == ["worker-killed"]


def test_a_call_that_waits_for_others_is_not_hung_while_they_are_heard(
    worker: WorkerProcess,
) -> None:
    running = [begun(worker) for _ in range(2)]
    waiting = worker.start("count", 1)
    stop = threading.Event()

    def talk() -> None:
        while not stop.is_set():
            worker.call("echo", 1, int)

    talker = threading.Thread(target=talk)
    talker.start()
    release = threading.Timer(0.6, running[0][0].cancel)
    release.start()
    assert waiting.result(int, notice=int, timeout_s=0.2) == 1
    stop.set()
    talker.join(10)
    running[1][0].cancel()
    for _, thread, _ends in running:
        thread.join(10)


def test_a_hung_call_ends_the_others_for_the_same_reason(worker: WorkerProcess) -> None:
    _, thread, ends = begun(worker)
    pending = worker.start("wait")
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(AdapterError) as caught:
        pending.result(str, notice=int, timeout_s=0.3)
    assert caught.value.code == "worker-hung"
    thread.join(10)
    assert [getattr(end, "code", end) for end in ends] == ["worker-hung"]
