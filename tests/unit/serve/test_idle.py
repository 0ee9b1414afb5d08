"""A server that rests hands the model's memory back, and loads it for the next request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.unit.serve.fakes import FakeSession, serving, wait_for

from edgewise.serve.idle import IdleRelease
from edgewise.serve.limits import Limits
from edgewise.serve.turns import Turns

ASK = {"model": "fake-1b", "messages": [{"role": "user", "content": "Hi"}]}


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def resting(after_s: float | None) -> tuple[IdleRelease, Clock, list[str], FakeSession]:
    clock, lines, session = Clock(), list[str](), FakeSession()
    session.resident = True
    return IdleRelease(after_s, log=lines.append, clock=clock), clock, lines, session


def test_the_time_counts_from_the_end_of_the_last_answer_of_all_lanes() -> None:
    idle, clock, lines, session = resting(60.0)
    assert idle.wait_s(session) == 60.0
    idle.began()
    idle.began()
    clock.now = 100.0
    idle.ended()
    assert idle.wait_s(session) == 60.0
    idle.release(session)
    assert session.released == 0, "another lane is answering"
    clock.now = 130.0
    idle.ended()
    clock.now = 189.0
    assert idle.wait_s(session) == pytest.approx(1.0)
    idle.release(session)
    assert session.released == 0
    clock.now = 190.0
    idle.release(session)
    assert session.released == 1
    assert lines == ["nobody asked for 60 s: 1.0 MiB handed back in 10 ms; state kept: no"]
    assert idle.wait_s(session) is None, "there is nothing left to hand back"
    idle.release(session)
    assert session.released == 1


def test_without_a_time_nothing_is_handed_back() -> None:
    idle, clock, _, session = resting(None)
    clock.now = 1e9
    assert idle.wait_s(session) is None
    idle.release(session)
    assert session.released == 0


def test_a_model_that_has_just_begun_to_answer_is_left_alone() -> None:
    idle, clock, lines, session = resting(5.0)
    clock.now = 5.0
    session.running = 1
    idle.release(session)
    assert session.resident
    assert lines == ["the model was not handed back: session-busy"]
    assert idle.wait_s(session) == 5.0


def test_a_line_that_stays_empty_says_so() -> None:
    turns: Turns[str] = Turns(total_max=2, per_client_max=2)
    with pytest.raises(TimeoutError):
        turns.take(0.0)
    turns.put("a", "one")
    assert turns.take(0.0) == "one"
    turns.close()
    assert turns.take(0.0) is None


def test_a_server_that_rests_is_ready_without_a_model() -> None:
    session = FakeSession()

    def ready(url: str) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{url}/readyz").json()
        return found

    with serving(session, limits=Limits(grace_s=1.0, release_after_s=0.05)) as served:
        assert not ready(served.url)["loaded"]
        for n in (1, 2):
            assert httpx.post(f"{served.url}/v1/chat/completions", json=ASK).status_code == 200
            wait_for(lambda: not session.resident)
            assert session.released == n
        after = ready(served.url)
        assert after["status"] == "ready"
        assert not after["loaded"]
        assert after["release_after_s"] == 0.05
        assert sum("handed back" in line for line in served.lines) == 2
