"""Memory runs out beside a session that answers: it ends typed, before the kernel kills."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.failure_lab.memory_victim import STEP_BYTES

from edgewise.device.cgroup import Group
from edgewise.device.memory_places import Place, places_of

pytestmark = [pytest.mark.model, pytest.mark.root, pytest.mark.slow]

LIMIT_BYTES = 1 << 30
# How long the session gets to notice, between two steps of the one that eats memory.
NOTICE_S = 1.0


class Box:
    """A control group with a limit."""

    def __init__(self, folder: Path, version: int) -> None:
        self.folder, self.version = folder, version
        name = "memory.limit_in_bytes" if version == 1 else "memory.max"
        (folder / name).write_text(str(LIMIT_BYTES))

    @property
    def procs(self) -> Path:
        return self.folder / "cgroup.procs"

    def place(self) -> Place:
        group = Group(version=self.version, mount=str(self.folder), path="/")
        return next(p for p in places_of(Path("/"), [next(group.levels())]) if "group" in p.name)

    def kills(self) -> dict[str, str]:
        """Return what the kernel counts when memory ran out."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        lines = (self.folder / name).read_text().splitlines()
        return {k: v for k, v in (line.split() for line in lines) if "oom" in k}


@pytest.fixture(params=[1, 2])
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    if os.geteuid():
        pytest.skip("needs root")
    version: int = request.param
    mount = Path("/sys/fs/cgroup/memory" if version == 1 else "/sys/fs/cgroup")
    limit = "memory.limit_in_bytes" if version == 1 else "memory.max"
    folder = mount / f"edgewise-{uuid.uuid4().hex[:8]}"
    if version == 2 and not (mount / "cgroup.controllers").exists():
        pytest.skip("control groups of version 2 are not mounted here")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group of version {version} can be made: {error}")
    try:
        if not (folder / limit).exists():
            pytest.skip(f"control groups of version {version} have no memory controller here")
        yield Box(folder, version)
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


class Inmate:
    """A process in the group, and what it says."""

    def __init__(self, role: str, box: Box) -> None:
        script = Path(__file__).with_name("memory_victim.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), role, str(box.procs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def hear(self, timeout_s: float = 120.0) -> dict[str, Any] | None:
        """Return the next thing it says, ``None`` when it says nothing in that time."""
        try:
            said = self._said.get(timeout=timeout_s)
        except queue.Empty:
            return None
        assert said is not None, f"the process ended: {self.process.wait()}"
        return said

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self.process.stdout:
                self._said.put(json.loads(line))
        self._said.put(None)


@pytest.fixture
def inmates(own_home: Path, box: Box) -> Iterator[tuple[Inmate, Inmate]]:
    assert own_home.exists()
    both = Inmate("session", box), Inmate("hog", box)
    try:
        yield both
    finally:
        for one in both:
            if one.process.poll() is None:
                one.end()


def eat_until_it_ends(box: Box, hog: Inmate, session: Inmate) -> dict[str, Any]:
    """Take memory, slowly near the edge, until the session says how its answer ended."""
    while True:
        place = box.place()
        assert place.room_bytes is not None
        near = place.room_bytes < place.reserve_bytes + 3 * STEP_BYTES
        said = session.hear(NOTICE_S if near else 0.0)
        if said is not None:
            return said
        assert place.room_bytes > STEP_BYTES, "it does not notice"
        hog.tell("more")
        assert hog.hear()


def test_an_answer_ends_typed_and_the_kernel_kills_nobody(
    box: Box, inmates: tuple[Inmate, Inmate]
) -> None:
    session, hog = inmates
    assert hog.hear() == {"ready": True}
    ready = session.hear()
    assert ready is not None
    before = box.kills()
    session.tell("story")
    said = eat_until_it_ends(box, hog, session)
    outcome = said["outcome"]
    assert outcome["outcome"] == "failed", outcome
    assert outcome["error"]["code"] == "memory-pressure"
    assert outcome["error"]["type"] == "ResourceError"
    assert str(box.folder) in outcome["error"]["message"]
    assert outcome["partial_text"]
    assert said["worker"] is None
    assert not Path(f"/proc/{ready['worker']}").exists()
    place = box.place()
    assert place.room_bytes is not None
    assert place.room_bytes > place.reserve_bytes, "the memory is really back"
    assert box.kills() == before
    assert hog.process.poll() is None

    session.tell("answer")
    meanwhile = session.hear()
    assert meanwhile is not None
    assert meanwhile["outcome"]["outcome"] == "declined", "there is no room for the model now"
    assert " short" in meanwhile["outcome"]["reasons"][0]

    hog.end()
    session.tell("answer")
    after = session.hear()
    assert after is not None
    assert after["outcome"]["outcome"] == "completed", after
    assert [event["code"] for event in after["outcome"]["events"]] == ["model-reloaded"]
    assert box.kills() == before
