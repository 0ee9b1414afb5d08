"""A kill at every write: nothing is lost, nothing has two effects, everything ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.route.offline.fault_server import FaultServer

REPOSITORY = Path(__file__).parents[4]
RUNNER = "tests.unit.route.offline.crash_runner"
pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="processes are killed by fork and signal here"
)


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: what survives a kill is what was written, not synced."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


def enumerate_crashes(folder: Path, server: FaultServer) -> tuple[dict[str, Any], list[Any]]:
    report = folder / "report.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", RUNNER, str(folder), str(server.port), str(report)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    head, *lines = [json.loads(line) for line in report.read_text().splitlines()]
    return head, lines


@pytest.mark.slow
@pytest.mark.timeout(3700)
def test_a_kill_at_every_write_loses_nothing_and_does_nothing_twice(
    fast_folder: Path, record_property: Callable[[str, object], None]
) -> None:
    with FaultServer() as server:
        head, lines = enumerate_crashes(fast_folder, server)
        server.settle()
        effects = server.effects
    assert len(lines) == head["points"] > 150
    ends: Counter[str] = Counter()
    for line in lines:
        check(line, effects)
        ends[line["after"]["ends"][f"{line['run']}-plain"][0]] += 1
    # The window between intent and receipt is there, and nothing but it is unknown.
    assert ends["unknown"] > 0
    assert ends["applied"] > 0
    kinds = Counter(line["point"].split()[0] for line in lines)
    record_property(
        "shown",
        f"{head['points']} crash points of the queue: {dict(kinds)}; at most once: {dict(ends)}",
    )


def check(line: dict[str, Any], effects: Counter[str]) -> None:
    run, after = line["run"], line["after"]
    assert line["killed"], f"the life ended before its point; see the runner's silence: {line}"
    assert line["lived"], line
    dedupe, plain = f"{run}-dedupe", f"{run}-plain"
    assert set(line["told"]) <= set(after["found"]), line  # what was promised is there
    assert set(after["ends"]) == {dedupe, plain}
    assert after["twice"] == [], line
    # A server that deduplicates: one effect, whatever happened, and its answer is applied.
    assert effects[dedupe] == 1, line
    assert after["ends"][dedupe][0] == "applied", line
    assert dedupe in after["receipts"]
    # One that does not: one effect and its answer, or at most one and the user is told.
    state, code, attempts, maybe = after["ends"][plain]
    assert attempts == 1, line
    if state == "applied":
        assert effects[plain] == 1, line
        assert plain in after["receipts"]
    else:
        assert (state, code, maybe) == ("unknown", "maybe-sent", True), line
        assert effects[plain] <= 1, line
        assert plain not in after["receipts"]
    applied = {key for key, end in after["ends"].items() if end[0] == "applied"}
    assert set(after["applied"]) == applied, line


def test_the_ledger_would_show_a_second_effect() -> None:
    """The instrument itself: a plain server that is asked twice acts twice, and it is seen."""
    from tests.unit.route.offline.world import SocketSender, draft

    from edgewise.route.offline import Answered, Attempt, Operation, Outgoing

    asked = draft(idempotency_key="k", deduplicates=False)
    told = {
        name: getattr(asked, name) for name in Operation.__struct_fields__ if hasattr(asked, name)
    }
    operation = Operation(
        **told, operation_id="1", created_s=0.0, expires_s=1.0, payload_bytes=len(asked.payload)
    )
    outgoing = Outgoing(operation=operation, payload=asked.payload)
    for path, effects in (("/ok/plain", 2), ("/ok/dedupe", 1)):
        with FaultServer() as server:
            sender = SocketSender(server.port, lambda _name, path=path: path)  # type: ignore[misc]
            for number in (1, 2):
                attempt = Attempt(number=number, idempotency_key="k", time_left_s=9.0)
                assert isinstance(sender.send(outgoing, attempt=attempt), Answered)
            assert server.effects["k"] == effects
