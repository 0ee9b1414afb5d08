"""Runs the queue once for every crash point, in processes that are killed there. A script.

``python crash_runner.py FOLDER PORT REPORT`` forks one child per point. The child queues two
operations, drains, and applies the answers, until it is killed. Another child then starts anew on
what is on disk, as the application would, and goes on until nothing can happen any more. What it
finds is a line of the report; the server's ledger is the test's to look at.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.route.offline.crash_points import CrashPoints
from tests.unit.route.offline.world import SocketSender, Time, document, draft, permit, queue_at

from edgewise.route.offline import Drainer, OfflineQueue, Operation, Queued, State, apply_answer

PATHS = {"dedupe": "/ok/dedupe", "plain": "/ok/plain"}
POINTS = CrashPoints()
# The server always answers. On a busy machine it may take long, and a life that gives up waiting has
# other points than the one in which they were counted.
SILENCE_S = 300.0


class FileApplier:
    """Applies an answer by making a file of its key: the effect and its memory are one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def apply(self, operation: Operation, answer: bytes) -> bool:
        POINTS.hit("apply")
        path = self._folder / operation.idempotency_key
        if path.exists():
            path.with_suffix(".twice").touch()
        made = path.with_suffix(".new")
        made.write_bytes(answer)
        POINTS.hit("apply written")
        made.rename(path)
        POINTS.hit("apply done")
        return True

    def was_applied(self, operation: Operation) -> bool | None:
        return (self._folder / operation.idempotency_key).exists()


def keys(run: str) -> dict[str, str]:
    return {name: f"{run}-{name}" for name in PATHS}


def fill(queue: OfflineQueue, run: str, told: Callable[[str], None]) -> None:
    for name, key in keys(run).items():
        asked = draft(
            idempotency_key=key,
            destination=name,
            deduplicates=name == "dedupe",
            document=document() if name == "dedupe" else None,
        )
        assert isinstance(queue.enqueue(asked), Queued)
        told(key)


def work(root: Path, run: str, port: int, time: Time, told: Callable[[str], None]) -> None:
    """Do what the application does in one life."""
    queue = queue_at(root / "home", time)
    fill(queue, run, told)
    sender = SocketSender(port, PATHS.__getitem__, timeout_s=SILENCE_S, hook=POINTS.hit)
    drainer = Drainer(queue, sender, permit)
    for _ in range(30):
        drainer.drain()
        if not queue.entries({State.QUEUED, State.LEASED, State.SENDING}):
            break
        time.go(7200.0)
    applier = FileApplier(root)
    for entry in queue.entries({State.ANSWERED, State.APPLYING}):
        name = entry.operation.operation_id
        apply_answer(queue, name, applier, current_version="v1")


def first_life(root: Path, run: str, port: int, told_file: int) -> None:
    POINTS.on = True
    work(root, run, port, Time(), lambda key: _write(told_file, key + "\n"))


def second_life(root: Path, run: str, port: int, report: int) -> None:
    POINTS.on = False
    time = Time()
    time.go(1000.0)  # longer than a lease
    queue = queue_at(root / "home", time)
    found = [entry.operation.idempotency_key for entry in queue.entries()]
    work(root, run, port, time, lambda _key: None)
    ends = {
        entry.operation.idempotency_key: [
            entry.state, entry.code, entry.attempts, entry.may_have_happened
        ]
        for entry in queue.entries()
    }  # fmt: skip
    receipts = [receipt.idempotency_key for receipt in queue.receipts()]
    twice = [path.stem for path in root.glob("*.twice")]
    done = [key for key in keys(run).values() if (root / key).exists()]
    told = {"found": found, "ends": ends, "receipts": receipts, "twice": twice, "applied": done}
    _write(report, json.dumps(told))


def _write(file: int, text: str) -> None:
    os.write(file, text.encode())


def _fork(life: Callable[..., None], *args: Any) -> tuple[int, str]:
    """Run a life in a child; return its wait status and what it told."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            life(*args, writing)
            code = 0
        except BaseException:  # noqa: BLE001 - the child must not go on as the parent
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as stream:
        told = stream.read()
    return os.waitpid(child, 0)[1], told


def count_points(base: Path, port: int) -> list[str]:
    """Return the names of the points of a life that nobody ends."""

    def counted(root: Path, run: str, port: int, file: int) -> None:
        first_life(root, run, port, os.open(os.devnull, os.O_WRONLY))
        POINTS.on = False
        _write(file, json.dumps(POINTS.names))

    root = base / "count"
    root.mkdir()
    status, told = _fork(counted, root, "count", port)
    assert status == 0
    names: list[str] = json.loads(told)
    return names


def main(base: Path, port: int, report: Path) -> None:
    POINTS.hook_connections()
    hooked = POINTS.hook_system_calls()
    names = count_points(base, port)
    with report.open("w") as lines:
        lines.write(json.dumps({"hooked": hooked, "points": len(names)}) + "\n")
        for number, name in enumerate(names):
            root = base / str(number)
            root.mkdir()
            POINTS.target = number
            killed, told = _fork(first_life, root, str(number), port)
            lived, found = _fork(second_life, root, str(number), port)
            line = {
                "run": str(number),
                "point": name,
                "killed": os.WIFSIGNALED(killed) and os.WTERMSIG(killed) == signal.SIGKILL,
                "told": told.split(),
                "lived": lived == 0,
                "after": json.loads(found) if found else None,
            }
            lines.write(json.dumps(line) + "\n")
            shutil.rmtree(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
