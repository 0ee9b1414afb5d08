"""Guesses, saved states and log-probabilities, on the real model in a real worker."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from edgewise.core.outcome import Completed, FinishReason
from edgewise.core.quantity import Measured
from edgewise.core.request import Message, Request, Sampling
from edgewise.errors import InputError
from edgewise.run.messages import PrefixSettings
from edgewise.run.session import Session
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.opening import open_session

pytestmark = [pytest.mark.model, pytest.mark.slow]

RECORD = (
    "Maria Gonzalez was born on 14 March 1987 and lives at 221 Willow Creek Lane, Springfield. "
    "She is a senior turbine engineer at the Northwind Renewable Energy Cooperative, since 2014."
)
COPY = f"Repeat this text exactly, word for word, three times:\n\n{RECORD}"
RULES = "\n".join(f"Rule {n}: at {n * 3 % 17} feet, open gate {n * 7 % 11}." for n in range(1, 40))
MEMORY = PrefixSettings(memory_bytes=64 << 20)
DISK = PrefixSettings(memory_bytes=64 << 20, disk_bytes=64 << 20)


def ask(session: Session, *messages: Message, **fields) -> Completed:
    outcome = session.ask(Request(messages=messages, **fields))
    assert isinstance(outcome, Completed), outcome
    return outcome


def user(text: str) -> Message:
    return Message(role="user", content=text)


def ruled(session: Session, question: str) -> Completed:
    return ask(session, Message(role="system", content=RULES), user(question), max_tokens=24)


@pytest.mark.parametrize(
    "prompt", [COPY, f"Write the numbers of this text as a list:\n{RECORD}", "Tell me a story."]
)
def test_guessing_changes_no_answer(session: Session, prompt: str) -> None:
    ask(session, user(prompt), max_tokens=1)  # both then begin with the same reused prompt
    guessed = ask(session, user(prompt), max_tokens=120)
    plain = ask(session, user(prompt), max_tokens=120, speculate=False)
    assert guessed.text == plain.text
    assert guessed.tokens.completion == plain.tokens.completion
    assert plain.speculation is None


def test_a_copy_is_guessed(session: Session) -> None:
    found = ask(session, user(COPY), max_tokens=150).speculation
    assert found is not None
    assert found.accepted > found.steps
    assert found.accepted <= found.guessed


def test_nothing_is_guessed_when_tokens_are_drawn(session: Session) -> None:
    drawn = ask(session, user(COPY), max_tokens=60, sampling=Sampling(temperature=0.5, seed=1))
    assert drawn.speculation is None


def test_a_restored_prefix_gives_the_answer_of_a_clean_run(ready_home: Path) -> None:
    def answers(session: Session) -> tuple[Completed, Completed]:
        first = ruled(session, "What does rule 3 say?")
        ask(session, user("Name an animal."), max_tokens=2)
        return first, ruled(session, "What does rule 3 say?")

    with open_session(Context(Home(ready_home)), prefixes=MEMORY) as session:
        clean, restored = answers(session)
    assert clean.tokens.reused < 32 <= restored.tokens.reused
    assert restored.text == clean.text
    assert isinstance(clean.timings.ttft_ms, Measured)
    assert restored.timings.ttft_ms.number < clean.timings.ttft_ms.number


def test_another_process_restores_from_disk_and_damage_costs_only_time(ready_home: Path) -> None:
    context = Context(Home(ready_home))
    with open_session(context, prefixes=DISK) as session:
        clean = ruled(session, "What does rule 5 say?")
    files = list((ready_home / "prefixes").rglob("*.prefix"))
    assert files
    with open_session(context, prefixes=DISK) as session:
        restored = ruled(session, "What does rule 5 say?")
    assert restored.tokens.reused > 200
    assert restored.text == clean.text
    for path in (ready_home / "prefixes").rglob("*.prefix"):
        body = bytearray(path.read_bytes())
        body[len(body) // 2] ^= 1
        path.write_bytes(body)
    with open_session(context, prefixes=DISK) as session:
        again = ruled(session, "What does rule 5 say?")
    assert again.tokens.reused < 32
    assert again.text == clean.text


def test_without_settings_nothing_is_written(session: Session, ready_home: Path) -> None:
    before = set((ready_home / "prefixes").rglob("*"))
    ruled(session, "What does rule 7 say?")
    assert set((ready_home / "prefixes").rglob("*")) == before


def test_log_probabilities_of_an_answer(session: Session) -> None:
    answer = ask(session, user("Name a colour."), max_tokens=8, logprobs=4)
    assert len(answer.logprobs) == answer.tokens.completion
    assert b"".join(one.data for one in answer.logprobs).decode() == answer.text
    for one in answer.logprobs:
        assert one.logprob is not None
        assert one.top[0][0] == one.id  # greedy
        assert math.isclose(one.top[0][2], one.logprob, abs_tol=1e-6)
        assert sum(math.exp(p) for _, _, p in one.top) <= 1 + 1e-6


def test_a_raw_prompt_is_scored(session: Session) -> None:
    text = "The capital of France is Paris."
    outcome = session.ask(Request(prompt=text, echo=True, logprobs=1, max_tokens=0))
    assert isinstance(outcome, Completed)
    scored = outcome.prompt_logprobs
    assert scored[0].logprob is None
    assert b"".join(one.data for one in scored).decode().strip() == text
    assert all(one.logprob is not None and one.logprob < 0 for one in scored[1:])
    assert outcome.text == ""
    assert outcome.finish is FinishReason.LENGTH
    ids = tuple(one.id for one in scored)
    again = session.ask(Request(prompt=ids, echo=True, logprobs=0, max_tokens=0))
    assert isinstance(again, Completed)
    assert [one.logprob for one in again.prompt_logprobs] == [one.logprob for one in scored]
    sensible = sum(one.logprob or 0 for one in scored)
    nonsense = session.ask(
        Request(prompt="Paris France of is capital The.", echo=True, logprobs=0, max_tokens=0)
    )
    assert isinstance(nonsense, Completed)
    assert sum(one.logprob or 0 for one in nonsense.prompt_logprobs) < sensible


def test_a_raw_prompt_is_continued_without_a_template(session: Session) -> None:
    outcome = session.ask(Request(prompt="One, two, three, four,", max_tokens=4))
    assert isinstance(outcome, Completed)
    assert "five" in outcome.text


def test_a_token_that_is_none(session: Session) -> None:
    with pytest.raises(InputError, match="token-invalid"):
        session.ask(Request(prompt=(1, 10_000_000), max_tokens=4))
    assert ask(session, user("Hello"), max_tokens=2).text


def test_loading_ahead(session: Session) -> None:
    spent = session.warm()
    assert spent > 1
    assert session.worker_pid is not None
    assert session.warm() < spent
    assert ask(session, user("Hello"), max_tokens=2).text
