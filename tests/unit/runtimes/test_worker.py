"""The worker process: every call ends, and a dead worker says how it died."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.services import ECHO, HERE

from edgewise.errors import AdapterError, InputError, ResourceError
from edgewise.runtimes.worker import WorkerProcess


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    process = WorkerProcess(ECHO, environment=HERE)
    yield process
    process.close()


def test_a_call_returns_its_result(worker: WorkerProcess) -> None:
    assert worker.call("echo", {"a": [1, 2.5, "ü"]}, dict) == {"a": [1, 2.5, "ü"]}


def test_notices_arrive_in_order(worker: WorkerProcess) -> None:
    seen: list[int] = []
    result = worker.start("count", 500).result(int, notice=int, on_notice=seen.append)
    assert (result, seen) == (500, list(range(500)))


def test_a_frame_of_many_megabytes_passes(worker: WorkerProcess) -> None:
    blob = os.urandom(20 << 20)
    assert worker.call("echo", blob, bytes) == blob


def test_a_typed_error_keeps_its_type(worker: WorkerProcess) -> None:
    with pytest.raises(InputError) as caught:
        worker.call("fail", None, type(None))
    assert (caught.value.code, caught.value.hint) == ("some-code", "a hint")
    assert caught.value.context["n"] == 3
    assert worker.call("echo", 1, int) == 1


def test_a_bug_says_where_but_not_what(worker: WorkerProcess) -> None:
    with pytest.raises(AdapterError) as caught:
        worker.call("bug", "my-secret", type(None))
    assert caught.value.code == "worker-bug"
    assert "my-secret" not in str(caught.value.to_dict())
    assert any("_bug (services.py:" in line for line in caught.value.context["trace"])
    assert worker.call("echo", 1, int) == 1


def test_wrong_parameters_are_an_error_and_the_worker_lives(worker: WorkerProcess) -> None:
    with pytest.raises(AdapterError):
        worker.call("count", "many", int)
    with pytest.raises(AdapterError) as caught:
        worker.call("nothing-of-the-kind", None, int)
    assert caught.value.code == "worker-method-unknown"
    assert worker.call("echo", 1, int) == 1


def test_printing_does_not_reach_the_frames(worker: WorkerProcess) -> None:
    assert worker.call("print", "\x00\x01 noise", str) == "done"
    assert worker.call("echo", 2, int) == 2


def test_cancel_reaches_a_running_call(worker: WorkerProcess) -> None:
    pending = worker.start("wait")
    running = threading.Event()

    def cancel() -> None:
        running.wait()
        pending.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    assert pending.result(str, notice=int, on_notice=lambda _: running.set()) == "cancelled"
    thread.join()


def test_cancel_reaches_a_queued_call_and_no_other(worker: WorkerProcess) -> None:
    first = worker.start("wait")
    second = worker.start("wait")
    third = worker.start("echo", 3)
    second.cancel()
    first.cancel()
    assert first.result(str, notice=int) == "cancelled"
    assert second.result(str, notice=int) == "cancelled"
    assert third.result(int) == 3


@pytest.mark.parametrize(
    ("method", "argument", "code"),
    [
        ("exit", 7, "worker-crashed"),
        ("exit", 0, "worker-crashed"),
        ("abort", None, "worker-crashed"),
    ],
)
def test_a_crash_is_a_typed_error(worker: WorkerProcess, method: str, argument, code: str) -> None:
    with pytest.raises(AdapterError) as caught:
        worker.call(method, argument, type(None))
    assert caught.value.code == code
    assert not worker.alive
    with pytest.raises(AdapterError):
        worker.call("echo", 1, int)


def test_a_kill_from_outside_is_told_apart(worker: WorkerProcess) -> None:
    pending = worker.start("wait")
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(AdapterError) as caught:
        pending.result(str, notice=int)
    assert caught.value.code == "worker-killed"
    assert caught.value.retryable


def test_a_hang_is_ended(worker: WorkerProcess) -> None:
    worker.call("echo", 1, int)
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(AdapterError) as caught:
        worker.start("echo", 2).result(int, timeout_s=0.3)
    assert caught.value.code == "worker-hung"
    assert not worker.alive


def test_foreign_bytes_in_the_frames_end_the_worker(worker: WorkerProcess) -> None:
    pending = worker.start("garbage")
    with pytest.raises(AdapterError) as caught:
        pending.result(type(None))
    assert caught.value.code in {"frame-invalid", "frame-cut"}
    assert not worker.alive


def test_native_complaints_are_in_the_error(worker: WorkerProcess) -> None:
    worker.call("print", "x", str)
    with pytest.raises(AdapterError) as caught:
        worker.call("exit", 3, type(None))
    assert any("native complaint" in line for line in caught.value.context["native_log"])
    assert caught.value.context["exit_status"] == 3


def test_variables_stand_before_exec() -> None:
    worker = WorkerProcess(ECHO, environment={**HERE, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})
    try:
        assert worker.call("environment", "GLIBC_TUNABLES", str) == "glibc.malloc.hugetlb=1"
    finally:
        worker.close()


def test_the_memory_limit_holds() -> None:
    worker = WorkerProcess(ECHO, environment=HERE, memory_limit_bytes=400 << 20)
    try:
        assert worker.call("allocate", 50 << 20, int) == 50 << 20
        with pytest.raises(ResourceError) as caught:
            worker.call("allocate", 800 << 20, int)
        assert caught.value.code == "worker-out-of-memory"
        assert worker.call("echo", 1, int) == 1
    finally:
        worker.close()


def test_the_worker_ends_with_its_session() -> None:
    worker = WorkerProcess(ECHO, environment=HERE)
    pending = worker.start("wait")
    del pending
    pid = worker.pid
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_service_that_cannot_be_imported_is_a_typed_error() -> None:
    worker = WorkerProcess("edgewise.no_such_module:Nothing")
    try:
        with pytest.raises(AdapterError) as caught:
            worker.call("echo", 1, int)
    finally:
        worker.close()
    assert caught.value.code == "worker-crashed"
    assert any("no_such_module" in line for line in caught.value.context["native_log"])


def test_nothing_is_imported_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numpy", "msgspec", "jinja2", "edgewise"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)")
    monkeypatch.chdir(tmp_path)
    worker = WorkerProcess(ECHO, environment=HERE)
    try:
        assert worker.call("echo", 1, int) == 1
    finally:
        worker.close()


def test_a_method_beside_others_answers_while_a_call_runs(worker: WorkerProcess) -> None:
    waiting = worker.start("wait")
    assert worker.beside("beside", {"n": 7}, dict, timeout_s=20) == {"n": 7}
    with pytest.raises(InputError) as caught:
        worker.beside("beside-fail", None, type(None), timeout_s=20)
    assert caught.value.code == "some-code"
    with pytest.raises(AdapterError) as wrong:
        worker.beside("beside", "text", int, timeout_s=20)
    assert wrong.value.code == "frame-invalid"
    waiting.cancel()
    assert waiting.result(str, notice=int) == "cancelled"


def test_answers_beside_never_mix_with_a_call_that_writes_much(worker: WorkerProcess) -> None:
    seen: list[int] = []
    answers: list[bytes] = []
    blob = os.urandom(300_000)

    def ask_beside() -> None:
        answers.extend(worker.beside("beside", blob, bytes, timeout_s=30) for _ in range(20))

    threads = [threading.Thread(target=ask_beside) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert worker.start("count", 3000).result(int, notice=int, on_notice=seen.append) == 3000
    for thread in threads:
        thread.join()
    assert seen == list(range(3000))
    assert answers == [blob] * 60


def test_a_method_beside_that_hangs_leaves_the_worker_alone(worker: WorkerProcess) -> None:
    with pytest.raises(AdapterError) as caught:
        worker.beside("beside-wait", None, type(None), timeout_s=0.05)
    assert caught.value.code == "worker-hung"
    assert worker.call("echo", 1, int) == 1


def test_a_worker_that_dies_answers_nobody_beside(worker: WorkerProcess) -> None:
    timer = threading.Timer(0.2, worker.kill)
    timer.start()
    with pytest.raises(AdapterError) as caught:
        worker.beside("beside-wait", None, type(None), timeout_s=30)
    assert caught.value.code == "worker-killed"
    timer.join()
    with pytest.raises(AdapterError):
        worker.beside("beside", 1, int, timeout_s=30)
