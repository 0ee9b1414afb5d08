"""Who may end a process that several share: never one that took the place of what failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.services import ECHO, HERE
from tests.unit.core.values import bundle

from edgewise.run.model_process import ModelProcess
from edgewise.runtimes.worker import WorkerProcess


class Shared:
    def __init__(self, folder: Path) -> None:
        self.process = ModelProcess(bundle(), folder / "artifact")
        self.old = WorkerProcess(ECHO, environment=HERE)
        self.new = WorkerProcess(ECHO, environment=HERE)
        self.process._worker, self.process._loaded = self.old, True

    def replace(self) -> None:
        self.process._worker = self.new


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    made = Shared(tmp_path)
    yield made
    made.old.close()
    made.new.close()


def test_a_release_leaves_what_was_started_meanwhile(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = shared.process.guard
    hand_back = guard.hand_back

    def and_another_asks(worker: WorkerProcess | None, budget_s: float) -> Any:
        released = hand_back(worker, budget_s)
        shared.replace()
        return released

    monkeypatch.setattr(guard, "hand_back", and_another_asks)
    shared.process.release(1.0)
    assert not shared.old.alive
    assert shared.new.alive
    assert shared.process.worker is shared.new


def test_a_failure_leaves_what_was_started_while_the_watch_stopped(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.old.kill()
    monkeypatch.setattr(ModelProcess, "resident", property(_replacing(shared)))
    shared.process._users.add("another")
    shared.process.failed(shared.old, object())
    assert shared.new.alive
    assert shared.process.worker is shared.new


def _replacing(shared: Shared) -> Any:
    """Let another request replace the worker in the instant in which this is asked."""

    def resident(_process: ModelProcess) -> bool:
        shared.replace()
        return False

    return resident


def test_a_start_that_failed_ends_nobody_elses(shared: Shared) -> None:
    shared.replace()
    shared.process._loaded = False  # it is loading
    shared.process._users.add("another")
    shared.process.failed(None, "this")
    assert shared.new.alive


def test_a_failure_with_nobody_else_ends_its_own(shared: Shared) -> None:
    shared.process.failed(shared.old, object())
    assert not shared.old.alive
    assert shared.process.worker is None
