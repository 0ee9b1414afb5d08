"""What a session does when memory runs short, on the real model; only the readings are made up."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.serve.fakes import open_descriptors

from edgewise.core.outcome import Completed, Event, Failed, Outcome
from edgewise.core.quantity import Measured
from edgewise.core.request import Message, Request
from edgewise.device.pressure import PressureLevel, Reading
from edgewise.errors import InputError, ResourceError
from edgewise.run.memory_watch import MemoryWatch
from edgewise.run.messages import PrefixSettings
from edgewise.run.session import Session
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.opening import open_session

pytestmark = [pytest.mark.model, pytest.mark.slow]

CALM, TIGHT, CRITICAL = PressureLevel.CALM, PressureLevel.TIGHT, PressureLevel.CRITICAL
MEMORY = PrefixSettings(memory_bytes=64 << 20)
DISK = PrefixSettings(memory_bytes=64 << 20, disk_bytes=64 << 20)
STORY = (
    "Write a long story about a lighthouse keeper who learns to play the cello. He lives alone on "
    "an island in the north, with a dog that is afraid of gulls, and every second Tuesday a boat "
    "brings him flour, lamp oil, letters and the news from the harbour. Begin in a storm."
)
# Every prompt begins with the template's own system message, which is kept by itself.
PROMPT_START = 30
READING = Reading(
    level=CALM,
    easing=CALM,
    reason="made up",
    available_bytes=1 << 30,
    room_bytes=1 << 30,
    next_s=0.005,
)


class Readings:
    """Stands in the place of a reader: what a test says is what is read."""

    def __init__(self) -> None:
        self.now = READING
        self.after_shrinking: Reading | None = None
        self.taken = 0

    def __call__(self) -> Readings:
        return self

    def set(self, level: PressureLevel, **fields: Any) -> None:
        self.now = dataclasses.replace(READING, level=level, easing=level, **fields)

    def read(self) -> Reading:
        self.taken += 1
        found = self.now
        if self.after_shrinking is not None and found.level is CRITICAL:
            self.now, self.after_shrinking = self.after_shrinking, None
        return found

    def pressure_files(self) -> list[Path]:
        return []


class Watched:
    """A session, the readings it acts on, and the events it told at once."""

    def __init__(self, home: Path, prefixes: PrefixSettings | None) -> None:
        self.readings = Readings()
        self.told: list[Event] = []
        self.session = open_session(
            Context(Home(home)), prefixes=prefixes, on_event=self.told.append
        )
        self.session._process.guard._new_reader = self.readings  # type: ignore[assignment]

    def told_of(self, code: str) -> Event:
        wait_for(lambda: any(event.code == code for event in self.told))
        return next(event for event in self.told if event.code == code)


@pytest.fixture
def watched(ready_home: Path, tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(prefixes: PrefixSettings | None = None) -> Watched:
        home = tmp_path / f"home-{len(made)}"  # states are written there
        shutil.copytree(ready_home, home, copy_function=os.link)
        made.append(Watched(home, prefixes))
        return made[-1]

    yield make
    for one in made:
        one.session.close()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "it does not come to pass"
        time.sleep(0.002)


def ask(session: Session, *texts: str, **fields: object) -> Completed:
    outcome = session.ask(request(*texts, **fields))
    assert isinstance(outcome, Completed), outcome
    return outcome


def request(*texts: str, **fields: object) -> Request:
    roles = ("user", "assistant")
    messages = tuple(Message(role=roles[n % 2], content=text) for n, text in enumerate(texts))
    return Request(messages=messages, **fields)  # type: ignore[arg-type]


def codes(outcome: Outcome) -> list[str]:
    return [event.code for event in outcome.events]


def fill(one: Watched) -> None:
    """Have a conversation displaced, so that its state is saved in the worker's memory."""
    ask(one.session, STORY, max_tokens=40)
    ask(one.session, "List ten animals, please, and what they eat.", max_tokens=2)


def test_an_answer_is_ended_before_the_kernel_kills_and_the_next_one_works(
    watched: Callable[..., Watched],
) -> None:
    one = watched()
    ask(one.session, "Hi", max_tokens=2)
    pid = one.session.worker_pid
    assert pid is not None
    pieces: list[str] = []

    def on_text(text: str) -> None:
        pieces.append(text)
        one.readings.set(CRITICAL, room_bytes=5 << 20)

    outcome = one.session.ask(request(STORY, max_tokens=1500), on_text=on_text)
    assert isinstance(outcome, Failed)
    assert outcome.error["code"] == "memory-pressure"
    assert outcome.error["type"] == "ResourceError"
    assert outcome.error["retryable"]
    assert outcome.error["context"]["room_bytes"] == 5 << 20
    assert "made up" in outcome.error["message"]
    assert outcome.partial_text == "".join(pieces) != ""
    assert not Path(f"/proc/{pid}").exists()
    assert not one.session.resident
    again = one.session.ask(request("Hi", max_tokens=2))
    assert isinstance(again, Failed), "there is no room to load it"
    assert again.error["code"] == "memory-pressure"
    with pytest.raises(ResourceError) as caught:
        one.session.warm()
    assert caught.value.code == "memory-pressure"
    one.readings.set(CALM)
    after = ask(one.session, "Hi", max_tokens=2)
    (reloaded,) = after.events
    assert reloaded.code == "model-reloaded"
    assert reloaded.context["why"] == "memory-pressure"
    assert 0 < reloaded.context["load_ms"] <= after.timings.queue_ms.number
    assert not ask(one.session, "Hi", max_tokens=2).events


def test_pressure_while_it_loads_ends_the_loading(watched: Callable[..., Watched]) -> None:
    one = watched()
    read = one.readings.read

    def critical_from_the_second() -> Reading:
        if one.readings.taken == 1:
            one.readings.set(CRITICAL)
        return read()

    one.readings.read = critical_from_the_second  # type: ignore[method-assign]
    outcome = one.session.ask(request("Hi", max_tokens=2))
    assert isinstance(outcome, Failed)
    assert outcome.error["code"] == "memory-pressure"
    assert one.session.worker_pid is None


def test_a_model_that_rests_is_handed_back_with_its_state(
    watched: Callable[..., Watched],
) -> None:
    one = watched()
    ask(one.session, STORY, max_tokens=4)
    worker = one.session._process.worker
    assert worker is not None
    one.readings.set(CRITICAL)
    event = one.told_of("memory-handed-back")
    assert not worker.alive
    assert event.context["resident_bytes"]["value"] > 100 << 20
    assert event.context["kept_tokens"] == 0
    assert event.context["note"] == "no disk is set aside for states"
    one.readings.set(CALM)
    after = ask(one.session, STORY, max_tokens=4)
    assert codes(after) == ["memory-handed-back", "model-reloaded"]


@pytest.mark.parametrize(("room", "kept"), [(1 << 30, True), (20 << 20, False), (None, False)])
def test_a_state_is_written_first_where_there_is_room(
    watched: Callable[..., Watched], room: int | None, kept: bool
) -> None:
    one = watched(DISK)
    first = ask(one.session, STORY, max_tokens=8)
    one.readings.set(CRITICAL, room_bytes=room)
    event = one.told_of("memory-handed-back")
    assert (event.context["kept_tokens"] > 0) is kept
    one.readings.set(CALM)
    after = ask(one.session, STORY, first.text, "Go on.", max_tokens=8)
    assert (after.tokens.reused > PROMPT_START) is kept


def test_shrinking_drops_states_in_memory_and_says_what_it_brought(
    watched: Callable[..., Watched],
) -> None:
    one = watched(MEMORY)
    fill(one)
    one.readings.set(TIGHT)
    event = one.told_of("memory-shrunk")
    assert event.context["dropped_bytes"] > 500_000
    fell = msgspec.convert(event.context["resident_fell_bytes"], Measured)
    assert fell.number > event.context["dropped_bytes"] / 2
    back = ask(one.session, STORY, max_tokens=4)
    assert codes(back) == ["memory-shrunk"]
    assert back.tokens.reused < PROMPT_START, "its state was dropped"
    fill(one)
    back = ask(one.session, STORY, max_tokens=4)
    assert back.tokens.reused < PROMPT_START, "while memory is tight nothing is kept"


def test_states_are_kept_again_when_memory_is_back(watched: Callable[..., Watched]) -> None:
    one = watched(MEMORY)
    ask(one.session, "Hi", max_tokens=2)
    watch = one.session._process.guard._watch
    assert watch is not None
    watch.stop()  # from here on the test makes its steps
    now = [0.0]
    guard, worker = one.session._process.guard, one.session._process.worker
    assert worker is not None
    stepped = MemoryWatch(guard, worker, one.readings, clock=lambda: now[0])  # type: ignore[arg-type]
    one.readings.set(TIGHT)
    assert stepped.step() == READING.next_s
    one.readings.set(CALM)
    for now[0] in (1.0, 5.9):
        stepped.step()
    fill(one)
    assert ask(one.session, STORY, max_tokens=1).tokens.reused < PROMPT_START
    now[0] = 6.1
    stepped.step()
    fill(one)
    assert ask(one.session, STORY, max_tokens=1).tokens.reused > PROMPT_START
    assert len([event for event in one.told if event.code == "memory-shrunk"]) == 1


def test_shrinking_works_while_it_answers_and_changes_no_answer(
    watched: Callable[..., Watched],
) -> None:
    one = watched(MEMORY)
    clean = ask(one.session, STORY, max_tokens=120).text
    ask(one.session, "List ten animals, please, and what they eat.", max_tokens=2)

    def on_text(_text: str) -> None:
        one.readings.set(TIGHT)

    outcome = one.session.ask(request(STORY, max_tokens=120), on_text=on_text)
    assert isinstance(outcome, Completed)
    assert outcome.text == clean
    assert codes(outcome) == ["memory-shrunk"]


def test_shrinking_can_be_enough(watched: Callable[..., Watched]) -> None:
    one = watched(MEMORY)
    fill(one)
    one.readings.after_shrinking = READING
    one.readings.set(CRITICAL)
    one.told_of("memory-shrunk")
    assert one.session.resident
    assert codes(ask(one.session, "Hi", max_tokens=1)) == ["memory-shrunk"]


def test_where_nobody_can_watch_it_is_said_once(watched: Callable[..., Watched]) -> None:
    one = watched()
    one.readings.set(CALM, watched=False)
    one.session.warm()
    one.told_of("memory-not-watched")
    assert codes(ask(one.session, "Hi", max_tokens=1)) == ["memory-not-watched"]
    one.session.release()
    assert codes(ask(one.session, "Hi", max_tokens=1)) == ["model-reloaded"]


def test_the_watch_lives_as_long_as_the_model(watched: Callable[..., Watched]) -> None:
    def watches() -> int:
        return sum(thread.name == "memory" for thread in threading.enumerate())

    before, descriptors = watches(), open_descriptors()
    one = watched()
    assert watches() == before
    for _ in range(2):
        ask(one.session, "Hi", max_tokens=1)
        assert watches() == before + 1
        one.session.release()
        assert watches() == before
    assert open_descriptors() == descriptors


# Release and restore.


def conversation(one: Watched, *, released: bool) -> list[Completed]:
    turns: list[str] = []
    outcomes = []
    for text in ("Name a fruit and say where it grows.", "And another one.", "Which is sweeter?"):
        outcomes.append(ask(one.session, *turns, text, max_tokens=30))
        turns += [text, outcomes[-1].text]
        if released:
            one.session.release(budget_s=20.0)
    return outcomes


def test_a_conversation_goes_on_after_a_release_as_if_there_had_been_none(
    watched: Callable[..., Watched],
) -> None:
    straight = conversation(watched(DISK), released=False)
    broken = conversation(watched(DISK), released=True)
    assert [o.text for o in broken] == [o.text for o in straight]
    assert [o.tokens for o in broken] == [o.tokens for o in straight]
    assert [codes(o) for o in broken] == [[], ["model-reloaded"], ["model-reloaded"]]
    assert broken[1].events[0].context["why"] == "released"


def test_a_release_says_what_it_brought(watched: Callable[..., Watched]) -> None:
    one = watched(DISK)
    first = ask(one.session, STORY, max_tokens=8)
    pid = one.session.worker_pid
    released = one.session.release(budget_s=20.0)
    assert not Path(f"/proc/{pid}").exists()
    assert not one.session.resident
    assert released.state_kept
    assert first.tokens.prompt is not None
    assert released.kept_tokens >= first.tokens.prompt
    assert released.note == ""
    assert released.resident_bytes.number > 100 << 20
    assert 0 < released.anonymous_bytes.number < released.resident_bytes.number
    assert 0 < released.ms < 20_000
    again = one.session.release()
    assert (again.resident_bytes.number, again.ms, again.state_kept) == (0, 0, False)
    assert again.note == "no model was loaded"
    assert one.session.warm() > 0
    assert one.session.release(budget_s=20.0).kept_tokens == 0, "nothing was said since"


@pytest.mark.parametrize("budget_s", [0.0, 1e-4])
def test_a_budget_too_small_for_the_state_is_kept_all_the_same(
    watched: Callable[..., Watched], budget_s: float
) -> None:
    one = watched(DISK)
    ask(one.session, STORY, max_tokens=8)
    released = one.session.release(budget_s=budget_s)
    assert not released.state_kept
    assert released.note
    assert released.ms < 2000
    assert not one.session.resident
    assert codes(ask(one.session, STORY, max_tokens=8)) == ["model-reloaded"]


def test_without_a_disk_quota_no_state_is_kept(watched: Callable[..., Watched]) -> None:
    one = watched(MEMORY)
    ask(one.session, STORY, max_tokens=8)
    assert one.session.release().note == "no disk is set aside for states"


def test_an_answer_is_not_released_under_the_reader(watched: Callable[..., Watched]) -> None:
    one = watched()
    caught: list[InputError] = []

    def on_text(_text: str) -> None:
        if not caught:
            with pytest.raises(InputError) as error:
                one.session.release()
            caught.append(error.value)

    outcome = one.session.ask(request(STORY, max_tokens=8), on_text=on_text)
    assert isinstance(outcome, Completed)
    assert caught[0].code == "session-busy"
    assert "cancel" in str(caught[0])


@pytest.mark.parametrize("budget_s", [-1.0, float("nan"), float("inf")])
def test_a_budget_that_is_no_time_is_refused(
    watched: Callable[..., Watched], budget_s: float
) -> None:
    with pytest.raises(InputError) as caught:
        watched().session.release(budget_s=budget_s)
    assert caught.value.code == "request-invalid"
    assert caught.value.context["field"] == "budget_s"
