"""Which steps a prompt is evaluated in, by what the cache held before."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.run.scripted_engine import ScriptedEngine

from edgewise.run.evaluation import Cache
from edgewise.run.prefixes import TOKENS_MIN, PrefixCache
from edgewise.run.prompting import Prompt

SYSTEM = [1 + i % 30 for i in range(90)]
QUESTIONS = ([31, 32, 33, 34, 35], [31, 32, 33, 36, 37, 38])


class SteppingEngine(ScriptedEngine):
    """Remembers for each token in its cache which step it was evaluated in."""

    step_tokens = 16

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, int]] = []

    def prefill(
        self, tokens: Sequence[int], *, progress: Callable[[int], None] | None = None
    ) -> Any:
        logits = None
        for start in range(0, len(tokens), self.step_tokens):
            piece = tokens[start : start + self.step_tokens]
            self.steps[self.position :] = [(self.position, len(piece))] * len(piece)
            logits = super().prefill(piece)
        return logits

    def rewind(self, position: int) -> None:
        super().rewind(position)
        del self.steps[position:]

    def save_state(self) -> bytes:
        return json.dumps([self.cache, self.steps]).encode()

    def restore_state(self, state: bytes) -> None:
        self.cache, steps = json.loads(state)
        self.steps = [tuple(step) for step in steps]


def ask(cache: Cache, prompt: Prompt) -> int:
    reused, _ = cache.reuse(prompt)
    cache.evaluate(prompt, lambda done: None)
    return reused


def prompt(question: list[int], system: list[int] = SYSTEM) -> Prompt:
    return Prompt(tokens=[*system, *question], pinned=len(system))


def clean(asked: Prompt) -> list[tuple[int, int]]:
    engine = SteppingEngine()
    ask(Cache(engine, PrefixCache(1 << 20)), asked)
    return engine.steps


@given(st.lists(st.integers(1, 39), max_size=120) | st.integers(0, 95).map(lambda n: SYSTEM[:n]))
def test_a_pinned_part_is_evaluated_as_in_a_clean_run(before: list[int]) -> None:
    engine = SteppingEngine()
    cache = Cache(engine, PrefixCache(0))
    if before:
        ask(cache, Prompt(tokens=before))
    for question in QUESTIONS:
        ask(cache, prompt(question))
        assert engine.cache == [*SYSTEM, *question]
        assert engine.steps == clean(prompt(question))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 40, 48, 70, 90]),  # how much of the system message, pinned
            st.integers(0, 90),  # from where on it is another one
            st.lists(st.integers(31, 39), min_size=1, max_size=50),
            st.lists(st.integers(31, 39), max_size=3),  # the answer
        ),
        min_size=2,
        max_size=8,
    ),
    st.sampled_from([0, 1 << 20]),
)
def test_a_pinned_part_is_clean_whatever_was_asked_before(
    asked: list[tuple[int, int, list[int], list[int]]], quota: int
) -> None:
    engine = SteppingEngine()
    cache = Cache(engine, PrefixCache(quota))
    for length, other_from, question, answer in asked:
        system = [token if at < other_from else 39 for at, token in enumerate(SYSTEM[:length])]
        now = prompt(question, system)
        ask(cache, now)
        assert engine.cache == cache.tokens == now.tokens
        assert engine.steps[:length] == clean(now)[:length]
        for token in answer:
            engine.decode(token)
            engine.steps.append((engine.position, 1))
            cache.tokens.append(token)


def test_what_a_step_does_not_cut_is_kept() -> None:
    engine = SteppingEngine()
    cache = Cache(engine, PrefixCache(0))
    ask(cache, prompt(QUESTIONS[0]))
    other = [*SYSTEM[:70], 39, 39]
    assert ask(cache, prompt(QUESTIONS[0], other)) == 64
    assert engine.steps == clean(prompt(QUESTIONS[0], other))


def test_a_conversation_that_goes_on_is_kept_whole() -> None:
    engine = SteppingEngine()
    cache = Cache(engine, PrefixCache(0))
    ask(cache, prompt(QUESTIONS[0]))
    for token in (7, 8, 9):
        engine.decode(token)
        cache.tokens.append(token)
    longer = [*QUESTIONS[0], 7, 8, 9, 10, 11]
    assert ask(cache, prompt(longer)) == len(SYSTEM) + 8


@pytest.mark.parametrize(("more", "kept"), [(TOKENS_MIN - 1, 0), (TOKENS_MIN, TOKENS_MIN)])
def test_few_shared_tokens_behind_the_pinned_part_are_evaluated_again(more: int, kept: int) -> None:
    cache = Cache(SteppingEngine(), PrefixCache(0))
    shared = [1 + i % 39 for i in range(more)]
    ask(cache, prompt([*shared, 38, 38]))
    assert ask(cache, prompt([*shared, 39, 39])) == len(SYSTEM) + kept


def test_without_saved_states_all_that_is_shared_is_kept() -> None:
    cache = Cache(SteppingEngine(), None)
    ask(cache, Prompt(tokens=SYSTEM[:5]))
    assert ask(cache, prompt(QUESTIONS[0])) == 5 - 1 + 1
