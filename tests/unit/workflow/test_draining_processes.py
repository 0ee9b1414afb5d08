"""Draining in processes that race, and in processes that are killed with SIGKILL."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.route.cloud.servers import (
    Answer,
    Authority,
    Exchange,
    RawServer,
    chunked,
    delta,
    unread,
)
from tests.unit.workflow.queue_world import Effects, World

from edgewise.route.offline import State
from edgewise.store import Home

REPOSITORY = Path(__file__).parents[3]
OPEN = {State.QUEUED, State.LEASED, State.SENDING}


class Runner:
    """See ``drain_runner.py``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.workflow.drain_runner"],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pids: list[int] = []

    def start(self, world: World, folder: Path, children: int = 1) -> list[int]:
        policy = folder / "policy.json"
        policy.write_bytes(msgspec.json.encode(world.policy))
        home = str(world.context.home.root)
        self._say(json.dumps({"home": home, "policy": str(policy), "children": children}))
        self.pids = self._told()
        return self.pids

    def go(self) -> None:
        self._say("go")

    def ended(self) -> list[int]:
        """Return the signals that ended the children; 0 for those that came to their end."""
        found = self._told()
        assert all(os.WIFSIGNALED(one) or os.WEXITSTATUS(one) == 0 for one in found), found
        return [os.WTERMSIG(one) if os.WIFSIGNALED(one) else 0 for one in found]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()

    def kill(self, *_: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[0], signal.SIGKILL)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _told(self) -> list[int]:
        assert self._process.stdout is not None
        found: list[int] = json.loads(self._process.stdout.readline())
        return found


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    found = Runner()
    yield found
    found.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority) -> Iterator[RawServer]:
    with RawServer(tls=authority.context()).running() as found:
        yield found


@pytest.fixture
def world(tmp_path: Path, server: RawServer, authority: Authority) -> World:
    return World(Home(tmp_path / "home"), server, authority.file)


def test_two_processes_one_operation_one_consent(
    world: World, server: RawServer, runner: Runner, tmp_path: Path
) -> None:
    effects = Effects(dedupe=False)
    server.answers = [effects.answer]
    world.change(idempotent=False)
    for number in range(3):
        name = world.queued(f"Text {number}")
        world.agree()
        runner.start(world, tmp_path, children=2)
        runner.go()
        assert runner.ended() == [0, 0]
        assert world.state(name) is State.ANSWERED
        assert world.entry(name).attempts == 1
    assert sorted(effects.done.values()) == [1, 1, 1]
    assert not any(one.in_force for one in world.ledger.entries())
    assert world.ledger.verify().intact


def test_three_processes_three_operations_one_consent(
    world: World, server: RawServer, runner: Runner, tmp_path: Path
) -> None:
    effects = Effects(dedupe=False)
    server.answers = [effects.answer]
    world.change(idempotent=False)
    names = [world.queued(f"Text {number}") for number in range(3)]
    world.agree()
    runner.start(world, tmp_path, children=3)
    runner.go()
    assert runner.ended() == [0, 0, 0]
    entries = [world.entry(name) for name in names]
    assert sorted(one.state for one in entries) == ["answered", "queued", "queued"]
    assert {one.hold for one in entries} == {"", "consent"}
    assert sum(effects.done.values()) == 1


def killing(runner: Runner, effects: Effects, point: str) -> Answer:
    """Return an answer in the middle of which the client is killed."""

    def before(exchange: Exchange) -> None:
        runner.kill()
        exchange.until_closed()

    def read(_exchange: Exchange) -> None:
        runner.kill()

    def acted(exchange: Exchange) -> None:
        effects.act(exchange)
        runner.kill()

    def answering(exchange: Exchange) -> None:
        effects.act(exchange)
        chunked(delta("Sho"), whole=False)(exchange)
        runner.kill()

    def answered(exchange: Exchange) -> None:
        effects.answer(exchange)
        runner.kill()

    found = {"read": read, "acted": acted, "answering": answering, "answered": answered}
    return unread(before) if point == "unread" else found[point]


@pytest.mark.parametrize("dedupe", [True, False], ids=["dedupes", "plain"])
@pytest.mark.parametrize("point", ["unread", "read", "acted", "answering", "answered"])
def test_killed_while_it_sends(
    world: World, server: RawServer, runner: Runner, tmp_path: Path, point: str, *, dedupe: bool
) -> None:
    effects = Effects(dedupe=dedupe)
    server.answers = [killing(runner, effects, point), effects.answer]
    world.change(idempotent=dedupe)
    names = [world.queued(f"Text {number}") for number in range(2)]
    world.agree(uses=9)
    runner.start(world, tmp_path)
    runner.go()
    ended = runner.ended()
    assert ended == [signal.SIGKILL] or point == "answered"
    come_to_an_end(world, names)
    states = [world.state(name) for name in names]
    first = {State.ANSWERED} if dedupe or point == "answered" else {State.UNKNOWN}
    if point == "answered" and not dedupe:  # killed before or after the receipt was written
        first = {State.ANSWERED, State.UNKNOWN}
    assert states[0] in first
    assert states[1] is State.ANSWERED
    expect_truth(world, effects, names)


@pytest.mark.parametrize("seed", range(8))
def test_killed_at_any_time(
    world: World, server: RawServer, runner: Runner, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    dedupe = seed % 2 == 0
    effects = Effects(dedupe=dedupe)
    server.answers = [effects.answer]
    world.change(idempotent=dedupe)
    names = [world.queued(f"Text {number}") for number in range(3)]
    world.agree(uses=9)
    for _ in range(2):
        runner.start(world, tmp_path)
        runner.go()
        time.sleep(dice.uniform(0, 0.15))  # where in the drain that is does not matter
        runner.kill()
        runner.ended()
        world.later(120)
    come_to_an_end(world, names)
    expect_truth(world, effects, names)
    if dedupe:
        assert {world.state(name) for name in names} == {State.ANSWERED}


def come_to_an_end(world: World, names: list[str]) -> None:
    """Go on as the next process would, until nothing waits any more."""
    for _ in range(10):
        world.later(3700)
        world.drain()
        if not world.queue.entries(OPEN):
            break
    assert [entry.operation.operation_id for entry in world.queue.entries()] == names  # none lost


def expect_truth(world: World, effects: Effects, names: list[str]) -> None:
    """What the queue says is what the server did."""
    assert all(count == 1 for count in effects.done.values())
    receipts = {receipt.operation_id for receipt in world.queue.receipts()}
    for number, name in enumerate(names):
        entry = world.entry(name)
        key = entry.operation.idempotency_key if effects.dedupe else f"Text {number}"
        if entry.state is State.ANSWERED:
            assert effects.done[key] == 1
            assert name in receipts
            assert world.queue.answer(name)
        else:
            assert entry.state is State.UNKNOWN
            assert not effects.dedupe
