"""Signals are those of the distributions that tokens were chosen from."""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.run.scripted_engine import ScriptedEngine
from tests.unit.run.test_decoding import decoded

from edgewise.core.outcome import Completed, Event, FinishReason
from edgewise.core.request import Message, Request, Sampling
from edgewise.core.signals import MARGIN_MAX_NATS
from edgewise.core.structure import Structure, StructureKind
from edgewise.errors import InputError
from edgewise.run.answer import Answer
from edgewise.run.messages import GenerateParams
from edgewise.run.probe import probe
from edgewise.run.session import Session
from edgewise.run.signals import SignalMeter, signals_of

CLOSE = 2e-4  # of float32 logits
FACTS: dict[str, Any] = {
    "finish": "stop",
    "validator": "not-run",
    "prompt_tokens": 3,
    "context_tokens": 10,
}


def reference(logits: np.ndarray[Any, Any], token: int) -> tuple[float, float, float]:
    """Return entropy, margin and log-probability by their definitions, in float64."""
    x = logits.astype(np.float64)
    p = np.exp(x - x.max())
    p /= p.sum()
    some = p[p > 0]
    entropy = float(-(some * np.log(some)).sum()) / math.log(len(x))
    first, second = np.sort(x)[::-1][:2]
    return entropy, min(first - second, MARGIN_MAX_NATS), float(np.log(p[token]))


rows = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@settings(max_examples=60, deadline=None)
@given(random=rows, size=st.integers(2, 3000), scale=st.sampled_from([0.0, 0.1, 3.0, 12.0]))
def test_figures_are_those_of_the_definitions(random: Any, size: int, scale: float) -> None:
    meter, wanted = SignalMeter(), []
    for _ in range(4):
        logits = (random.normal(size=size) * scale + random.normal() * 50).astype(np.float32)
        before = logits.copy()
        token = int(logits.argmax())
        meter.see(logits, None, token)
        assert np.array_equal(before, logits)
        wanted.append(reference(logits, token))
    raw = meter.result(**FACTS).raw
    entropies, margins, logprobs = zip(*wanted, strict=True)
    assert raw.tokens == 4
    assert raw.entropy_mean == pytest.approx(np.mean(entropies), abs=CLOSE)
    assert raw.entropy_max == pytest.approx(max(entropies), abs=CLOSE)
    assert raw.margin_mean == pytest.approx(np.mean(margins), abs=CLOSE)
    assert raw.margin_min == pytest.approx(min(margins), abs=CLOSE)
    assert raw.margin_first == pytest.approx(margins[0], abs=CLOSE)
    assert raw.logprob_mean == pytest.approx(np.mean(logprobs), abs=CLOSE)
    assert raw.logprob_min == pytest.approx(min(logprobs), abs=CLOSE)


def test_ties_and_certainty() -> None:
    meter = SignalMeter()
    meter.see(np.zeros(16, np.float32), None, 3)
    flat = meter.result(**FACTS).raw
    assert (flat.entropy_mean, flat.margin_min) == (pytest.approx(1), 0)
    assert flat.logprob_mean == pytest.approx(-math.log(16))
    meter = SignalMeter()
    meter.see(np.array([200, 0, 0], np.float32), None, 0)
    sure = meter.result(**FACTS).raw
    assert (sure.entropy_mean, sure.margin_min) == (pytest.approx(0, abs=1e-6), MARGIN_MAX_NATS)


def test_what_a_structure_leaves_is_counted_where_it_leaves_a_choice() -> None:
    meter = SignalMeter()
    logits = np.array([5, 4, 3, 1], np.float32)
    forced = np.array([-np.inf, -np.inf, 3, -np.inf], np.float32)
    open_ = np.array([-np.inf, 4, 3, -np.inf], np.float32)
    meter.see(logits, forced, 2)
    found = meter.result(**FACTS)
    assert found.raw.tokens == 1
    assert (found.allowed.tokens, found.allowed.entropy_mean, found.allowed.margin_min) == (
        0,
        0,
        MARGIN_MAX_NATS,
    )
    meter.see(logits, open_, 1)
    found = meter.result(**FACTS)
    assert (found.raw.tokens, found.allowed.tokens) == (2, 1)
    p = 1 / (1 + math.exp(-1))
    entropy = -(p * math.log(p) + (1 - p) * math.log(1 - p)) / math.log(4)
    assert found.allowed.entropy_mean == pytest.approx(entropy, abs=1e-6)
    assert found.allowed.margin_first == pytest.approx(1)
    assert found.allowed.logprob_mean == pytest.approx(math.log(p), abs=1e-6)


def test_logits_that_are_no_numbers_give_no_signals() -> None:
    meter = SignalMeter()
    meter.see(np.array([1, math.nan, 2], np.float32), None, 0)
    assert meter.result(**FACTS).raw is None


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.lists(st.integers(1, 6), min_size=3, max_size=30).map(lambda part: part * 2),
    limit=st.integers(1, 60),
    temperature=st.sampled_from([0.0, 0.9]),
)
def test_signals_change_no_token_and_guesses_change_no_signal(
    prompt: list[int], limit: int, temperature: float
) -> None:
    fields: dict[str, Any] = {"limit": limit}
    if temperature:
        fields["sampling"] = Sampling(temperature=temperature, seed=3)
    plain, text, cached = decoded(ScriptedEngine(), prompt, guess=False, **fields)
    measured, *rest = decoded(ScriptedEngine(), prompt, guess=False, signals=True, **fields)
    assert rest == [text, cached]
    assert plain.meter is None
    one = signals_of(measured, prompt_tokens=len(prompt), context_tokens=400)
    assert (one.raw.tokens if one.raw else 0) == measured.completion_tokens
    guessed, *_ = decoded(ScriptedEngine(), prompt, guess=True, exact=True, signals=True, **fields)
    other = signals_of(guessed, prompt_tokens=len(prompt), context_tokens=400)
    assert other.features() == pytest.approx(one.features())


def answered(**fields: Any) -> Answer:
    given_ = {"max_tokens": 9, "sampling": Sampling(), "stop": (), "deadline_s": None, **fields}
    answer = Answer(GenerateParams(signals=True, **given_), 9, lambda _notice: None)
    answer.finish = FinishReason.STOP
    return answer


def test_the_validator() -> None:
    schema = Structure(kind=StructureKind.JSON)
    facts = {"prompt_tokens": 1, "context_tokens": 9}
    assert signals_of(answered(), **facts).validator == "not-run"
    assert signals_of(answered(structure=schema), **facts).validator == "passed"
    cut = answered(structure=schema)
    cut.finish = FinishReason.LENGTH
    assert signals_of(cut, **facts).validator == "not-run"
    failed = answered()
    failed.events.append(Event(code="tool-call-invalid", message="no"))
    assert signals_of(failed, **facts).validator == "failed"


def test_what_it_costs_is_reported_and_little() -> None:
    """Half a millisecond a token would be a tenth of a step of a small model; it takes far less."""
    logits = np.random.default_rng(0).normal(size=49_152).astype(np.float32)
    meter = SignalMeter()
    meter.see(logits, None, 0)
    started = time.process_time()
    for _ in range(200):
        meter.see(logits, None, 0)
    spent_ms = (time.process_time() - started) * 1e3 / 200
    assert spent_ms < 0.5
    assert meter.result(**FACTS).taken_ms > 0


HELLO = Request(
    messages=(Message(role="user", content="Name three colours of the rainbow."),),
    max_tokens=24,
    signals=True,
)


@pytest.mark.model
@pytest.mark.slow
def test_signals_of_a_real_answer(session: Session) -> None:
    outcome = session.ask(HELLO)
    assert isinstance(outcome, Completed)
    signals = outcome.signals
    assert signals.raw.tokens == outcome.tokens.completion
    assert signals.prompt_tokens == outcome.tokens.prompt
    assert 0 < signals.raw.entropy_mean < signals.raw.entropy_max <= 1
    assert signals.allowed is None
    logged = session.ask(msgspec.structs.replace(HELLO, logprobs=2))
    assert logged.text == outcome.text
    logprobs = [float(one.logprob or 0) for one in logged.logprobs]
    assert logged.signals.raw.logprob_mean == pytest.approx(np.mean(logprobs), abs=1e-3)
    margins = [one.top[0][2] - one.top[1][2] for one in logged.logprobs]
    assert logged.signals.raw.margin_min == pytest.approx(min(margins), abs=1e-3)
    assert session.ask(msgspec.structs.replace(HELLO, signals=False)).signals is None
    chosen = msgspec.structs.replace(
        HELLO, structure=Structure(kind=StructureKind.CHOICE, choices=("red", "blue"))
    )
    outcome = session.ask(chosen)
    assert outcome.signals.validator == "passed"
    assert 0 < outcome.signals.allowed.tokens <= outcome.signals.raw.tokens


@pytest.mark.model
@pytest.mark.slow
def test_a_probe_shows_nothing_and_its_prefill_is_used(session: Session) -> None:
    found = probe(session, HELLO, tokens=3)
    assert found.signals.raw.tokens == found.tokens.completion == 3
    assert found.total_ms.number >= found.prefill_ms.number > 0
    assert "text" not in str(found.__struct_fields__)
    outcome = session.ask(found.request)
    assert outcome.tokens.reused == outcome.tokens.prompt - 1
    assert outcome.signals.raw.margin_first == pytest.approx(
        found.signals.raw.margin_first, abs=1e-3
    )


@pytest.mark.model
@pytest.mark.slow
def test_a_probe_draws_as_the_answer_does_and_keeps_to_the_deadline(session: Session) -> None:
    drawn = msgspec.structs.replace(
        HELLO, sampling=Sampling(temperature=1.2), deadline_s=60.0, max_tokens=2
    )
    found = probe(session, drawn, tokens=8)
    assert found.tokens.completion <= 2
    assert found.request.sampling.seed is not None
    assert found.request.deadline_s < 60
    with pytest.raises(InputError):
        probe(session, drawn, tokens=0)
