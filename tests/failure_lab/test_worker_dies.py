"""The worker is killed, crashes or hangs in the middle of an answer; the next request works."""

from __future__ import annotations

import os
import signal

import pytest

from edgewise.core.outcome import Completed, Failed
from edgewise.core.request import Message, Request
from edgewise.run.session import Session

pytestmark = pytest.mark.model

STORY = Request(
    messages=(Message(role="user", content="Write a long story about a lighthouse."),),
    max_tokens=400,
)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, "worker-killed"),
        (signal.SIGSEGV, "worker-crashed"),
        (signal.SIGABRT, "worker-crashed"),
        (signal.SIGSTOP, "worker-hung"),
    ],
)
def test_an_answer_breaks_off_typed_and_the_next_one_works(
    session: Session, number: signal.Signals, code: str
) -> None:
    short = Request(messages=STORY.messages, max_tokens=3)
    assert isinstance(session.ask(short), Completed)
    session._process.worker._idle_timeout_s = 1.0
    pieces: list[str] = []

    def on_text(text: str) -> None:
        if not pieces:
            os.kill(session.worker_pid or 0, number)
        pieces.append(text)

    outcome = session.ask(STORY, on_text=on_text)
    assert isinstance(outcome, Failed)
    assert outcome.error["code"] == code
    assert outcome.error["type"] == "AdapterError"
    assert outcome.partial_text == "".join(pieces)
    assert session.worker_pid is None
    again = session.ask(short)
    assert isinstance(again, Completed)
    assert again.tokens.completion == 3


def test_a_worker_killed_between_requests_is_replaced(session: Session) -> None:
    short = Request(messages=STORY.messages, max_tokens=3)
    session.ask(short)
    before = session.worker_pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    while session._process.worker.alive:
        pass
    assert isinstance(session.ask(short), Completed)
    assert session.worker_pid != before
