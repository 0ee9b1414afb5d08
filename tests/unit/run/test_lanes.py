"""Several requests at once on one loaded model: each as if it were alone, and one worker."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import seeded_home
from tests.unit.serve.fakes import serving

from edgewise.core.outcome import Completed, Failed, FinishReason, Outcome
from edgewise.core.request import Message, Request, Sampling
from edgewise.core.structure import Structure, StructureKind
from edgewise.run.messages import PrefixSettings
from edgewise.run.session import Session
from edgewise.serve.limits import Limits
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.opening import open_session, open_sessions
from edgewise.workflow.up import bring_up
from edgewise.workflow.up_report import UpRequest

pytestmark = [pytest.mark.model, pytest.mark.slow]

SUBJECTS = ("a lighthouse keeper", "an old bridge", "a bakery at night", "a slow river")
LONG = "The keeper of the gate writes down the height of the tide every hour. " * 28


def request(text: str, **fields) -> Request:
    fields.setdefault("max_tokens", 40)
    return Request(messages=(Message(role="user", content=text),), **fields)


def endless(tokens: int = 600, **fields) -> Request:
    """One that goes on to its limit, whatever the rounding of joined steps makes the model say."""
    digits = Structure(kind=StructureKind.REGEX, source="[0-9 ]{4000}")
    return request("Count from one on.", max_tokens=tokens, structure=digits, **fields)


STORIES = [
    *(request(f"Write a story about {subject}.") for subject in SUBJECTS[:2]),
    request(f"Write a poem about {SUBJECTS[2]}.", sampling=Sampling(temperature=0.9, seed=7)),
    request(f"Say something about {SUBJECTS[3]}. {LONG[:700]}"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose active deployment answers four requests at once."""
    found = Home(seeded_home(tmp_path_factory.mktemp("lanes") / "home"))
    asked = UpRequest(offline=True, parallel=4, context_length=1024)
    report = bring_up(Context(found), asked)
    assert report.status == "ready", report.reasons
    assert report.plan is not None
    assert report.plan.run_config.parallel == 4
    return found


@contextlib.contextmanager
def opened(home: Home, **options) -> Iterator[list[Session]]:
    sessions = open_sessions(Context(home), **options)
    try:
        yield sessions
    finally:
        for session in sessions:
            session.close()


@pytest.fixture
def sessions(home: Home) -> Iterator[list[Session]]:
    with opened(home) as found:
        yield found


class Asking:
    """A request in a thread of its own."""

    def __init__(self, session: Session, asked: Request) -> None:
        self.session = session
        self.began = threading.Event()
        self.outcome: Outcome | None = None
        self.ended_s = 0.0
        self._asked = asked
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.outcome = self.session.ask(self._asked, on_text=lambda _: self.began.set())
        self.ended_s = time.perf_counter()

    def end(self) -> Outcome:
        self._thread.join(300)
        assert self.outcome is not None, "it does not end"
        return self.outcome

    def completed(self) -> Completed:
        outcome = self.end()
        assert isinstance(outcome, Completed), outcome
        return outcome


def alone(session: Session, asked: Request) -> str:
    outcome = session.ask(asked)
    assert isinstance(outcome, Completed), outcome
    return outcome.text


def rounded(outcome: Completed) -> bool:
    return any(event.code == "steps-joined-rounded" for event in outcome.events)


def test_four_at_once_answer_as_each_does_alone(sessions: list[Session]) -> None:
    assert len(sessions) == 4
    expected = [alone(sessions[0], story) for story in STORIES]
    running = [Asking(*pair) for pair in zip(sessions, STORIES, strict=True)]
    found = [asking.completed() for asking in running]
    for outcome, text in zip(found, expected, strict=True):
        assert outcome.text == text or rounded(outcome)
    assert len({session.worker_pid for session in sessions}) == 1


def test_what_one_client_says_never_reaches_another(sessions: list[Session]) -> None:
    """Each knows a word of its own, and is asked for it while the others ask for theirs."""
    words = ("OSPREY-4711", "LANTERN-2093", "JUNIPER-8842", "COBALT-6650")
    for _ in range(2):
        running = [
            Asking(session, request(f"My code word is {word}. Repeat my code word.", max_tokens=24))
            for session, word in zip(sessions, words, strict=True)
        ]
        for asking, word in zip(running, words, strict=True):
            text = asking.completed().text
            assert not [other for other in words if other != word and other in text]


def test_a_cancel_while_decoding_leaves_the_other_unharmed(sessions: list[Session]) -> None:
    expected = alone(sessions[0], STORIES[0])
    other = Asking(sessions[1], endless())
    assert other.began.wait(120)
    running = Asking(sessions[0], STORIES[0])
    assert running.began.wait(120)
    began = time.perf_counter()
    sessions[1].cancel()
    assert other.completed().finish is FinishReason.CANCELLED
    assert other.ended_s - began < 10
    outcome = running.completed()
    assert outcome.text == expected or rounded(outcome)
    assert alone(sessions[1], STORIES[1])


def test_a_cancel_while_a_prompt_is_evaluated_leaves_the_other_unharmed(
    sessions: list[Session],
) -> None:
    expected = alone(sessions[0], STORIES[0])
    running = Asking(sessions[0], STORIES[0])
    assert running.began.wait(120)
    other = Asking(sessions[1], request(LONG + "What does the keeper do?"))
    while sessions[1]._pending is None:
        time.sleep(0.001)
    time.sleep(0.05)
    began = time.perf_counter()
    sessions[1].cancel()
    cancelled = other.completed()
    assert other.ended_s - began < 10
    assert cancelled.finish is FinishReason.CANCELLED
    assert cancelled.text == ""
    outcome = running.completed()
    assert outcome.text == expected or rounded(outcome)


def test_a_deadline_ends_one_and_not_the_other(sessions: list[Session]) -> None:
    expected = alone(sessions[0], STORIES[0])
    late = endless(deadline_s=0.5)
    other, running = Asking(sessions[1], late), Asking(sessions[0], STORIES[0])
    assert other.completed().finish is FinishReason.DEADLINE
    outcome = running.completed()
    assert outcome.text == expected or rounded(outcome)


def test_a_killed_worker_ends_all_three_and_is_started_once(sessions: list[Session]) -> None:
    long = endless()
    running = [Asking(session, long) for session in sessions[:3]]
    assert all(asking.began.wait(120) for asking in running)
    killed = sessions[0].worker_pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    for asking in running:
        outcome = asking.end()
        assert isinstance(outcome, Failed)
        assert outcome.error["code"] == "worker-killed"
    again = [Asking(session, request("Say hello.", max_tokens=4)) for session in sessions]
    assert all(asking.completed().text for asking in again)
    assert len({session.worker_pid for session in sessions} - {killed}) == 1


def test_closing_one_session_cancels_its_answer_and_no_other(sessions: list[Session]) -> None:
    long = endless(200)
    closed, stays = Asking(sessions[0], long), Asking(sessions[1], STORIES[0])
    assert closed.began.wait(120)
    assert stays.began.wait(120)
    sessions[0].close()
    outcome = closed.end()
    assert isinstance(outcome, Failed)
    assert outcome.error["code"] == "session-closed"
    assert stays.completed().text
    sessions[1].close()
    assert sessions[1].worker_pid is None


def test_a_conversation_finds_its_cache_again_and_a_saved_beginning_is_shared(home: Home) -> None:
    system = Message(role="system", content=LONG[:900])
    quota = PrefixSettings(memory_bytes=64 << 20)
    with opened(home, prefixes=quota) as sessions:
        first = [
            Asking(session, Request(messages=(system, _user(f"Question {n}?")), max_tokens=4))
            for n, session in enumerate(sessions)
        ]
        assert all(asking.completed() for asking in first)
        messages = (system, _user("Question 2?"), Message(role="assistant", content="Yes."))
        outcome = sessions[0].ask(Request(messages=(*messages, _user("And?")), max_tokens=4))
        assert isinstance(outcome, Completed)
        assert outcome.tokens.reused is not None
        assert outcome.tokens.reused > 150


def _user(text: str) -> Message:
    return Message(role="user", content=text)


def test_the_server_answers_several_clients_at_once(sessions: list[Session]) -> None:
    expected = [alone(sessions[0], story) for story in STORIES[:2]]
    with serving(*sessions, limits=Limits(grace_s=1.0)) as served:

        def post(number: int) -> Any:
            asked = STORIES[number % 2]
            body = {
                "model": httpx.get(f"{served.url}/v1/models").json()["data"][0]["id"],
                "messages": [{"role": "user", "content": asked.messages[0].content}],
                "max_tokens": asked.max_tokens,
                "user": f"client {number}",
            }
            url = f"{served.url}/v1/chat/completions"
            return httpx.post(url, json=body, timeout=300).json()

        with ThreadPoolExecutor(7) as pool:
            answers = [pool.submit(post, number) for number in range(6)]
            most = 0
            while not all(answer.done() for answer in answers):
                most = max(most, httpx.get(f"{served.url}/readyz").json()["running"])
                time.sleep(0.02)
        for number, answer in enumerate(answers):
            found = answer.result()
            said = [event["code"] for event in found["edgewise"].get("events", ())]
            text = found["choices"][0]["message"]["content"]
            assert text == expected[number % 2] or "steps-joined-rounded" in said
    assert most == 4


def test_one_session_of_such_a_bundle_answers_by_itself(home: Home) -> None:
    with open_session(Context(home)) as session:
        assert alone(session, request("Say hello.", max_tokens=4))


def test_a_runtime_that_cannot_refuses_before_anything_is_done(tmp_path: Path) -> None:
    from edgewise.errors import UnsupportedError

    with pytest.raises(UnsupportedError) as caught:
        bring_up(Context(Home(tmp_path)), UpRequest(runtime="onnx-genai", parallel=2))
    assert caught.value.code == "parallel-unsupported"
