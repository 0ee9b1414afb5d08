"""Several processes drain one queue at once: every operation is sent once, by one of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.route.offline.fault_server import FaultServer
from tests.unit.route.offline.world import SAFE, draft

from edgewise.route.offline import OfflineQueue, Queued, State
from edgewise.store import Home

REPOSITORY = Path(__file__).parents[4]
PROCESSES, OPERATIONS = 4, 60


@pytest.mark.slow
def test_four_processes_send_sixty_operations_once_each(tmp_path: Path) -> None:
    queue = OfflineQueue(Home(tmp_path / "home"), delay_safe=SAFE)
    for number in range(OPERATIONS):
        name = "dedupe" if number % 2 else "plain"
        asked = draft(idempotency_key=f"k{number}", destination=name, deduplicates=name == "dedupe")
        assert isinstance(queue.enqueue(asked), Queued)
    with FaultServer() as server:
        handled = drain_together(tmp_path, server.port)
        server.settle()
        assert {entry.state for entry in queue.entries()} == {State.ANSWERED}
        assert dict(server.effects) == {f"k{n}": 1 for n in range(OPERATIONS)}
        assert dict(server.requests) == dict(server.effects)  # not even asked twice
    assert sum(handled) == OPERATIONS
    assert all(entry.attempts == 1 for entry in queue.entries())
    assert len(queue.receipts()) == OPERATIONS


def drain_together(folder: Path, port: int) -> list[int]:
    go, readies = folder / "go", [folder / f"ready-{n}" for n in range(PROCESSES)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.unit.route.offline.drain_worker",
             str(folder / "home"), str(port), str(go), str(ready)],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])},
            stdout=subprocess.PIPE,
            text=True,
        )
        for ready in readies
    ]  # fmt: skip
    give_up = time.monotonic() + 120
    while not all(ready.exists() for ready in readies):
        assert time.monotonic() < give_up
        assert all(worker.poll() is None for worker in workers)
        time.sleep(0.01)
    go.touch()
    told = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * PROCESSES
    return [int(text) for text in told]
