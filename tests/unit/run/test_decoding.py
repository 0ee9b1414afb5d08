"""Guessing ahead changes nothing but the number of passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.run.scripted_engine import END, VOCABULARY, ScriptedEngine

from edgewise.core.outcome import FinishReason
from edgewise.core.request import Sampling
from edgewise.run.answer import Answer
from edgewise.run.decoding import Decoder
from edgewise.run.draft_model import DraftModel
from edgewise.run.guesser import Guesser
from edgewise.run.messages import Chunk, GenerateParams, Notice
from edgewise.run.speculation import PassCosts
from edgewise.runtimes.protocol import CancelledError, VerifyingEngine

CHEAP = PassCosts(slope=0.01, single_s=1.0)
GREEDY = Sampling()


def decoded(
    engine: ScriptedEngine,
    prompt: list[int],
    *,
    guess: bool,
    limit: int = 60,
    exact: bool = False,
    draft: DraftModel | None = None,
    own: PassCosts | None = None,
    **fields: Any,
) -> tuple[Answer, str, list[int]]:
    """Return the answer, its text, and what the cache holds.

    ``own`` costs count in the place of those that are cheap at first and learned.
    """
    shown: list[str] = []

    def emit(notice: Notice) -> None:
        assert isinstance(notice, Chunk)
        shown.append(notice.text)

    given_ = {"max_tokens": limit, "sampling": GREEDY, "stop": (), "deadline_s": None, **fields}
    answer = Answer(GenerateParams(**given_), limit, emit)
    costs = own or PassCosts(slope=CHEAP.slope, single_s=CHEAP.single_s)
    guesser = Guesser(prompt, costs, draft, {END}) if guess else None
    learned = own or PassCosts(slope=0.01, exact=dict.fromkeys(range(16), True) if exact else {})
    cached = list(prompt)
    logits = engine.prefill(prompt)
    decoder = Decoder(engine, {END}, answer, cached, guesser=guesser, costs=learned)
    try:
        decoder.run(logits)
    except CancelledError:
        del cached[engine.position :]
    answer.close()
    return answer, "".join(shown), cached


prompts = st.lists(st.integers(1, 6), min_size=3, max_size=40).map(lambda part: part * 2)
samplings = st.sampled_from(
    [GREEDY, Sampling(temperature=0.8, seed=7), Sampling(temperature=1.5, top_k=5, seed=8)]
)


@settings(max_examples=150, deadline=None)
@given(
    prompt=prompts,
    sampling=samplings,
    limit=st.integers(1, 80),
    ties=st.floats(0, 0.6),
    noise=st.sampled_from([0.0, 0.01, 1.0]),
)
def test_a_guessed_answer_is_the_answer(
    prompt: list[int], sampling: Sampling, limit: int, ties: float, noise: float
) -> None:
    plain = decoded(ScriptedEngine(ties=ties), prompt, guess=False, limit=limit, sampling=sampling)
    engine = ScriptedEngine(ties=ties, noise=noise)
    guessed = decoded(engine, prompt, guess=True, limit=limit, sampling=sampling)
    assert guessed[1] == plain[1]
    assert guessed[0].finish == plain[0].finish
    assert guessed[0].completion_tokens == plain[0].completion_tokens
    assert guessed[2] == plain[2] == engine.cache


def test_copies_take_fewer_passes() -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8] * 3
    plain, fast = ScriptedEngine(), ScriptedEngine()
    decoded(plain, prompt, guess=False, limit=60)
    answer, _, _ = decoded(fast, prompt, guess=True, limit=60)
    assert answer.speculation is not None
    assert answer.speculation.accepted > 40
    assert fast.evaluated < plain.evaluated / 2


def test_an_engine_that_rounds_otherwise_is_found_out_and_said() -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8] * 3
    answer, _, _ = decoded(ScriptedEngine(noise=1e-6), prompt, guess=True)
    assert answer.speculation is not None
    assert answer.speculation.guessed == 0
    assert "same logits" in answer.speculation.off


@settings(max_examples=60, deadline=None)
@given(prompt=prompts, ties=st.floats(0, 0.9))
def test_an_engine_that_rounds_otherwise_from_some_length_on_is_found_out(
    prompt: list[int], ties: float
) -> None:
    """As llama.cpp does with several threads, once its cache has 256 cells."""
    plain = decoded(ScriptedEngine(ties=ties), prompt, guess=False, limit=160)
    engine = ScriptedEngine(ties=ties, noise=1.0, noise_from=128)
    guessed = decoded(engine, prompt, guess=True, limit=160)
    assert guessed[1] == plain[1]
    assert guessed[2] == plain[2] == engine.cache


def test_before_that_length_it_guesses() -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8] * 3
    engine = ScriptedEngine(noise=1.0, noise_from=128)
    answer, _, _ = decoded(engine, prompt, guess=True, limit=160)
    assert answer.speculation is not None
    assert answer.speculation.accepted > 30
    assert "same logits" in answer.speculation.off


def test_without_the_trial_the_answer_would_differ() -> None:
    """What the trial is for: where it is skipped, the same engine does change answers."""
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8] * 3
    differ = 0
    for start in range(20):
        rotated = prompt[start:] + prompt[:start]
        plain = decoded(ScriptedEngine(ties=0.9), rotated, guess=False)
        noisy = decoded(ScriptedEngine(ties=0.9, noise=0.1), rotated, guess=True, exact=True)
        differ += plain[1] != noisy[1]
    assert differ


@pytest.mark.parametrize("after", range(2, 20))
@pytest.mark.parametrize("guess", [False, True])
def test_a_cancel_leaves_the_cache_as_it_is_said(after: int, guess: bool) -> None:
    engine = ScriptedEngine()
    engine.cancel_after = after
    answer, _, cached = decoded(engine, [1, 2, 3, 4] * 5, guess=guess, limit=370)
    assert answer.finish is FinishReason.CANCELLED
    assert cached == engine.cache


def test_the_context_is_never_overrun() -> None:
    for room in range(1, 25):
        prompt = [1, 2, 3, 4, 5] * 5
        engine = ScriptedEngine(context_length=len(prompt) + room)
        decoded(engine, prompt, guess=True, limit=room)


@pytest.mark.parametrize("guess", [False, True])
def test_stop_texts_end_the_answer_within_a_guess(guess: bool) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8] * 3
    whole = decoded(ScriptedEngine(), prompt, guess=False)[1]
    answer, text, _ = decoded(ScriptedEngine(), prompt, guess=guess, stop=(whole[7:10],))
    assert text == whole[:7]
    assert answer.finish is FinishReason.STOP


@pytest.mark.parametrize("guess", [False, True])
def test_log_probabilities_are_of_the_models_own_distribution(guess: bool) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8] * 3
    engine = ScriptedEngine()
    answer, text, _ = decoded(engine, prompt, guess=guess, logprobs=3, limit=20)
    assert len(answer.logprobs) == answer.completion_tokens
    history = list(prompt)
    for found in answer.logprobs:
        logits = engine.logits(history).astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum())
        assert found.logprob == pytest.approx(expected[found.id], abs=1e-5)
        assert [i for i, _, _ in found.top] == list(np.argsort(-expected)[:3])
        history.append(found.id)
    assert b"".join(one.data for one in answer.logprobs).decode() == text


def test_an_engine_with_one_row_a_step_is_no_verifying_one() -> None:
    assert isinstance(ScriptedEngine(), VerifyingEngine)
    assert ScriptedEngine.vocab_size == VOCABULARY
