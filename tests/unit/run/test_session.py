"""Sessions end to end, on the real model in a real worker."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec
import pytest

from edgewise.core.outcome import Completed, Declined, Failed, FinishReason, Outcome, Route
from edgewise.core.quantity import Measured, Unknown
from edgewise.core.request import DataClass, Message, Request, Sampling
from edgewise.core.state import DeviceState, ThermalState
from edgewise.core.units import binary
from edgewise.errors import InputError
from edgewise.route import DEFAULT_POLICY
from edgewise.run.session import Session
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.opening import open_session

pytestmark = pytest.mark.model

STORY = "Write a long story about a lighthouse keeper who learns to play the cello."


def ask(session: Session, text: str, **fields) -> Completed:
    outcome = session.ask(request(text, **fields))
    assert isinstance(outcome, Completed), outcome
    return outcome


def request(text: str, **fields) -> Request:
    return Request(messages=(Message(role="user", content=text),), **fields)


def test_an_answer_with_its_provenance(session: Session) -> None:
    pieces: list[str] = []
    outcome = session.ask(request(STORY, max_tokens=24), on_text=pieces.append)
    assert isinstance(outcome, Completed)
    assert outcome.text == "".join(pieces)
    assert outcome.finish is FinishReason.LENGTH
    assert outcome.tokens.completion == 24
    assert outcome.provenance.route.route is Route.LOCAL
    assert outcome.provenance.fingerprint == session.bundle.fingerprint
    assert outcome.provenance.policy_version == DEFAULT_POLICY.version
    assert outcome.provenance.template == "gguf:tokenizer.chat_template"
    assert outcome.provenance.seed is None
    timings = outcome.timings
    parts = (timings.queue_ms, timings.prefill_ms, timings.decode_ms)
    assert all(isinstance(q, Measured) for q in (*parts, timings.ttft_ms, timings.total_ms))
    spent = sum(float(q.number) for q in parts if isinstance(q, Measured))
    assert spent <= timings.total_ms.number + 1
    assert timings.queue_ms.number < timings.ttft_ms.number < timings.total_ms.number
    assert outcome.memory_peak_bytes["worker"].number > 100 << 20
    data = msgspec.json.encode(outcome)
    assert msgspec.json.decode(data, type=Outcome) == outcome


def test_greedy_answers_repeat_and_prefixes_are_reused(session: Session) -> None:
    first, second = (ask(session, STORY, max_tokens=16) for _ in range(2))
    assert first.text == second.text
    assert first.tokens.reused == 0
    assert second.tokens.reused == second.tokens.prompt - 1


def test_an_answer_does_not_depend_on_what_came_before(session: Session) -> None:
    alone = ask(session, STORY, max_tokens=16).text
    ask(session, "List ten animals.", max_tokens=40)
    assert ask(session, STORY, max_tokens=16).text == alone


def test_a_conversation_reuses_its_history(session: Session) -> None:
    first = ask(session, "Name one colour.", max_tokens=12)
    follow = Request(
        messages=(
            Message(role="user", content="Name one colour."),
            Message(role="assistant", content=first.text),
            Message(role="user", content="And another one?"),
        ),
        max_tokens=8,
    )
    second = session.ask(follow)
    assert isinstance(second, Completed)
    assert second.tokens.reused >= first.tokens.prompt


def test_the_seed_decides_and_is_reported(session: Session) -> None:
    warm = Sampling(temperature=1.0, top_k=50, seed=7)
    first, second = (ask(session, STORY, max_tokens=16, sampling=warm) for _ in range(2))
    assert first.text == second.text
    assert first.provenance.seed == 7
    drawn = ask(session, STORY, max_tokens=16, sampling=Sampling(temperature=1.0))
    assert drawn.provenance.seed is not None
    again = Sampling(temperature=1.0, seed=drawn.provenance.seed)
    assert ask(session, STORY, max_tokens=16, sampling=again).text == drawn.text


def test_a_stop_text_ends_the_answer_and_is_not_in_it(session: Session) -> None:
    whole = ask(session, STORY, max_tokens=40).text
    stop = whole[30:34]
    outcome = ask(session, STORY, max_tokens=40, stop=(stop,))
    assert outcome.finish is FinishReason.STOP
    assert stop not in outcome.text
    assert whole.startswith(outcome.text)


def test_the_model_can_end_its_turn(session: Session) -> None:
    outcome = ask(session, "Say hello.", max_tokens=200)
    assert outcome.finish is FinishReason.STOP
    assert "<|im_end|>" not in outcome.text


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_prompt_and_answer_are_reserved_together(session: Session, extra: int) -> None:
    used = ask(session, STORY, max_tokens=1).tokens.prompt
    room = session.bundle.deployment.compute.run_config.context_length - used
    if extra <= 0:
        outcome = ask(session, STORY, max_tokens=room + extra, stop=(" ",))
        assert outcome.finish is FinishReason.STOP
        return
    with pytest.raises(InputError) as caught:
        session.ask(request(STORY, max_tokens=room + extra))
    assert caught.value.code == "context-too-small"
    assert caught.value.context["prompt_tokens"] == used
    assert ask(session, STORY, max_tokens=1).tokens.completion == 1


def test_a_prompt_longer_than_the_context_is_refused_and_the_next_works(session: Session) -> None:
    with pytest.raises(InputError) as caught:
        session.ask(request("word " * 5000))
    assert caught.value.code == "prompt-too-long"
    assert caught.value.context["prompt_tokens"] > 5000
    assert "--context" in (caught.value.hint or "")
    assert ask(session, "Hi", max_tokens=2).tokens.completion == 2


def test_cancel_ends_the_answer_and_the_next_works(session: Session) -> None:
    pieces: list[float] = []
    cancelled: list[float] = []

    def on_text(_text: str) -> None:
        pieces.append(time.perf_counter())
        if len(pieces) == 2:
            cancelled.append(time.perf_counter())
            session.cancel()

    outcome = session.ask(request(STORY, max_tokens=400), on_text=on_text)
    ended = time.perf_counter()
    assert isinstance(outcome, Completed)
    assert outcome.finish is FinishReason.CANCELLED
    assert 0 < outcome.tokens.completion < 400
    assert ended - cancelled[0] < 1.0  # not the promise (0.1 s), which a busy machine may miss
    assert ask(session, "Hi", max_tokens=2).tokens.completion == 2


def test_an_interrupt_cancels_the_answer(session: Session) -> None:
    ask(session, "Hi", max_tokens=2)

    def on_text(_text: str) -> None:
        raise KeyboardInterrupt

    outcome = session.ask(request(STORY, max_tokens=400), on_text=on_text)
    assert isinstance(outcome, Completed)
    assert outcome.finish is FinishReason.CANCELLED
    assert ask(session, "Hi", max_tokens=2).tokens.completion == 2


@pytest.mark.parametrize("deadline", [0.001, 0.3])
def test_a_deadline_cuts_the_answer(session: Session, deadline: float) -> None:
    ask(session, "Hi", max_tokens=2)
    started = time.perf_counter()
    outcome = ask(session, STORY, max_tokens=1000, deadline_s=deadline)
    assert outcome.finish is FinishReason.DEADLINE
    assert time.perf_counter() - started < deadline + 0.3
    assert ask(session, "Hi", max_tokens=2).tokens.completion == 2


def test_one_request_at_a_time(session: Session) -> None:
    caught: list[InputError] = []

    def on_text(_text: str) -> None:
        if not caught:
            try:
                session.ask(request("Hi"))
            except InputError as error:
                caught.append(error)

    ask_outcome = session.ask(request(STORY, max_tokens=8), on_text=on_text)
    assert isinstance(ask_outcome, Completed)
    assert caught[0].code == "session-busy"


def test_closing_ends_the_worker(ready_home: Path) -> None:
    with open_session(Context(Home(ready_home))) as opened:
        ask(opened, "Hi", max_tokens=2)
        pid = opened.worker_pid
        assert pid is not None
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert opened.worker_pid is None


def test_fifty_requests_leave_memory_flat(session: Session) -> None:
    def resident() -> int:
        lines = Path(f"/proc/{session.worker_pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    sizes = []
    for number in range(50):
        ask(session, f"Say something about the number {number}.", max_tokens=4)
        sizes.append(resident())
    # The first requests touch the workspace; after that nothing may grow with their number.
    late = sizes[10:]
    assert max(late) - min(late) < 2 * 1024, sizes


def declined(session: Session, state: DeviceState | None = None, **fields) -> Declined:
    if state is not None:
        session._read_state = lambda: state
    outcome = session.ask(request("Hi", **fields))
    assert isinstance(outcome, Declined), outcome
    assert session.worker_pid is None
    return outcome


def test_too_little_memory_declines_before_anything_is_loaded(session: Session) -> None:
    state = DeviceState(memory_available_bytes=Measured(value=50 << 20, source="test"))
    outcome = declined(session, state)
    assert outcome.provenance.route.route is Route.DECLINE
    needed = session.bundle.memory.worker_bytes
    assert not isinstance(needed, Unknown)
    assert f"{binary(needed.number - (50 << 20))} short" in outcome.reasons[0]


def test_a_critical_temperature_declines(session: Session) -> None:
    outcome = declined(session, DeviceState(thermal=ThermalState.CRITICAL))
    assert any("thermal" in reason for reason in outcome.reasons)


def test_an_unknown_task_declines(session: Session) -> None:
    assert "translate" in declined(session, task="translate").reasons[0]


@pytest.mark.parametrize("data_class", list(DataClass))
def test_every_data_class_runs_locally(session: Session, data_class: DataClass) -> None:
    outcome = ask(session, "Hi", max_tokens=1, data_class=data_class)
    assert outcome.provenance.route.route is Route.LOCAL


def test_a_deployment_without_evidence_on_this_device_is_declined(
    ready_home: Path, tmp_path: Path
) -> None:
    import shutil

    copy = tmp_path / "copied"
    shutil.copytree(ready_home, copy, copy_function=os.link)
    shutil.rmtree(copy / "evidence")
    with open_session(Context(Home(copy))) as opened:
        assert "no evidence of qualification" in declined(opened).reasons[0]


def test_cancel_with_nothing_running_is_harmless(session: Session) -> None:
    thread = threading.Thread(target=session.cancel)
    thread.start()
    thread.join()
    assert ask(session, "Hi", max_tokens=1).tokens.completion == 1


@pytest.mark.parametrize("kind", [ValueError, GeneratorExit])
def test_a_reader_that_fails_ends_the_generation(session: Session, kind: type) -> None:
    ask(session, "Hi", max_tokens=2)

    def on_text(_text: str) -> None:
        raise kind

    with pytest.raises(kind):
        session.ask(request(STORY, max_tokens=900), on_text=on_text)
    after = ask(session, "Hi", max_tokens=2)
    # Left running, the story would have kept the worker busy for seconds.
    assert after.timings.queue_ms.number < 1000
    assert after.timings.total_ms.number < 2000


def test_closing_while_it_answers_says_so(session: Session) -> None:
    def on_text(_text: str) -> None:
        threading.Thread(target=session.close).start()

    outcome = session.ask(request(STORY, max_tokens=900), on_text=on_text)
    assert isinstance(outcome, Failed)
    assert outcome.error["code"] == "session-closed"


def test_a_huge_prompt_is_the_users_not_the_templates(session: Session) -> None:
    with pytest.raises(InputError) as caught:
        session.ask(request("word " * 1_000_000))
    assert caught.value.code == "prompt-too-long"
