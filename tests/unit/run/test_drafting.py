"""A draft model: it follows any conversation, changes no answer, and costs little where it fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.run.scripted_engine import END, VOCABULARY, ScriptedEngine
from tests.unit.run.test_decoding import decoded, prompts

from edgewise.core.structure import Structure, StructureKind
from edgewise.errors import AdapterError
from edgewise.run import draft_model, drafting
from edgewise.run.draft_model import BALANCE, DraftModel, likeliest
from edgewise.run.drafting import DraftGuesses
from edgewise.run.speculation import PassCosts
from edgewise.run.structure import Constrainer
from edgewise.runtimes.protocol import CancelledError

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 7]
# Nothing that is measured changes them, so that a busy machine decides nothing.
HOUR_S = 3600.0


class FixedCosts(PassCosts):
    """Passes that always cost the same; a draft's seconds are nothing beside an hour."""

    def single(self, seconds: float) -> None:
        del seconds

    def several(self, tokens: int, seconds: float) -> None:
        del tokens, seconds


def costs(slope: float = 0.01) -> PassCosts:
    return FixedCosts(slope=slope, single_s=HOUR_S)


class Draft(ScriptedEngine):
    """Says what the model says, but now and then another token."""

    def __init__(
        self, *, wrong: float = 0.0, fails_after: int | None = None, **fields: Any
    ) -> None:
        super().__init__(**fields)
        self.wrong = wrong
        self.fails_after = fails_after

    def logits(self, history: Sequence[int]) -> np.ndarray[Any, Any]:
        values = super().logits(history)
        random = np.random.default_rng([len(history), *history[-2:]])
        if random.random() < self.wrong:
            values[1 + int(random.integers(VOCABULARY - 1))] += 30
        else:
            values *= 8  # as sure as a model is
        return values

    def _step(self) -> None:
        super()._step()
        if self.fails_after is not None and self.evaluated > self.fails_after:
            raise AdapterError("decode-failed", "it broke")


def model(engine: ScriptedEngine, **fields: Any) -> DraftModel:
    return DraftModel(engine=engine, size_ratio=0.05, **fields)


def guesses_of(draft: DraftModel, slope: float = 0.01) -> DraftGuesses:
    return DraftGuesses(draft, costs(slope), {END})


@settings(max_examples=120)
@given(
    prompt=prompts,
    limit=st.integers(1, 80),
    wrong=st.sampled_from([0.0, 0.3, 1.0]),
    ties=st.floats(0, 0.6),
)
def test_a_drafted_answer_is_the_answer(
    prompt: list[int], limit: int, wrong: float, ties: float
) -> None:
    plain = decoded(ScriptedEngine(ties=ties), prompt, guess=False, limit=limit)
    engine, draft = ScriptedEngine(ties=ties), model(Draft(wrong=wrong, ties=ties))
    drafted = decoded(engine, prompt, guess=True, limit=limit, draft=draft, own=costs())
    assert drafted[1] == plain[1]
    assert drafted[0].finish == plain[0].finish
    assert drafted[2] == plain[2] == engine.cache
    assert draft.held == draft.engine.cache  # type: ignore[attr-defined]


def test_a_draft_that_is_right_saves_passes_and_is_counted_apart() -> None:
    plain, fast = ScriptedEngine(), ScriptedEngine()
    decoded(plain, PROMPT, guess=False, limit=60)
    answer, _, _ = decoded(fast, PROMPT, guess=True, limit=60, draft=model(Draft()), own=costs())
    assert answer.speculation is not None
    assert answer.speculation.method == "prompt-lookup+draft"
    by = {one.source: one for one in answer.speculation.sources}
    assert by["draft"].accepted > 15
    assert by["draft"].drafted >= by["draft"].guessed >= by["draft"].accepted
    assert by["draft"].off == ""
    total = sum(one.accepted for one in by.values())
    assert answer.speculation.accepted == total
    assert fast.evaluated < plain.evaluated * 0.75


def test_what_was_said_before_is_looked_up_first() -> None:
    copied = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8] * 3
    answer, _, _ = decoded(
        ScriptedEngine(), copied, guess=True, limit=60, draft=model(Draft()), own=costs()
    )
    assert answer.speculation is not None
    by = {one.source: one.accepted for one in answer.speculation.sources}
    assert by["lookup"] > by.get("draft", 0)


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 5), min_size=1, max_size=30),  # the conversation now
            st.lists(st.integers(1, 5), max_size=4),  # what is thought of after it
        ),
        max_size=12,
    )
)
def test_it_follows_whatever_becomes_of_the_conversation(
    turns: list[tuple[list[int], list[int]]],
) -> None:
    engine = ScriptedEngine()
    draft = model(engine)
    for history, thoughts in turns:
        missing = draft.missing(history)
        logits = draft.follow(history)
        assert 1 <= missing <= len(history)
        assert (logits == engine.logits(history)).all()
        for token in thoughts:
            draft.evaluate([token])
        assert draft.held == engine.cache == [*history, *thoughts]


class Clock:
    """Counts what the model and the draft would take, in steps of the model."""

    def __init__(self) -> None:
        self.steps = 0.0

    def perf_counter(self) -> float:
        return self.steps * HOUR_S


class TimedDraft(Draft):
    """Takes a fifth of the model's time for a step, and less for a token of a longer piece."""

    def __init__(self, clock: Clock, **fields: Any) -> None:
        super().__init__(**fields)
        self._clock = clock

    def prefill(self, tokens: Sequence[int], **fields: Any) -> np.ndarray[Any, Any]:
        self._clock.steps += 0.2 if len(tokens) == 1 else max(0.2, 0.03 * len(tokens))
        return super().prefill(tokens, **fields)


@pytest.mark.parametrize("wrong", [0.6, 1.0])
@pytest.mark.parametrize("slope", [0.1, 0.45])
def test_what_may_be_lost_is_bounded(
    wrong: float, slope: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every guess is wrong: no more is lost than the balance, its refills, and one round."""
    clock, answers, tokens = Clock(), 20, 60
    for module in (draft_model, drafting):
        monkeypatch.setattr(module, "time", clock)
    draft = model(TimedDraft(clock, wrong=wrong))
    verified = 0.0
    for answer in range(answers):
        guesses = guesses_of(draft, slope)
        history = [1 + (answer + i) % 30 for i in range(20)]
        for token in range(tokens):
            if guess := guesses.guess([*history], 8, tokens - token):
                verified += slope * len(guess)
                guesses.learn(len(guess), 0)
            guesses.extend()
            history.append(1 + (7 * token + answer) % 30)
    assert clock.steps > 0.5  # it was tried
    one_round = 8 * (0.2 + slope)
    assert clock.steps + verified <= BALANCE + 0.01 * answers * tokens + one_round


def test_a_dear_draft_is_not_asked_and_that_is_said() -> None:
    engine = Draft()
    draft = model(engine, step_s=HOUR_S * 0.7)
    guesses = guesses_of(draft, slope=0.45)
    assert guesses.guess(PROMPT, 8, 60) == []
    assert engine.evaluated == 0
    found = guesses.result()
    assert (found.guessed, found.drafted) == (0, 0)
    assert "cost more" in found.off


def test_a_long_conversation_is_caught_up_with_only_for_a_long_answer() -> None:
    long = [1 + i % 30 for i in range(300)]
    draft = model(Draft(), step_s=HOUR_S / 10, token_s=HOUR_S / 25)
    assert guesses_of(draft, 0.3).guess(long, 8, 5) == []
    assert not draft.held
    draft.answer_tokens = 300.0
    assert guesses_of(draft, 0.3).guess(long, 8, 300)
    assert draft.held


def test_it_goes_on_without_a_draft_that_fails_and_says_so() -> None:
    plain = decoded(ScriptedEngine(), PROMPT, guess=False, limit=60)
    draft = model(Draft(fails_after=6))
    answer, text, cached = decoded(
        ScriptedEngine(), PROMPT, guess=True, limit=60, draft=draft, own=costs()
    )
    assert (text, cached) == (plain[1], plain[2])
    (event,) = [one for one in answer.events if one.code != "invalid-utf8-from-model"]
    assert (event.code, event.context["code"]) == ("draft-failed", "decode-failed")
    assert answer.speculation is not None
    assert "it broke" in answer.speculation.sources[-1].off
    again, _, _ = decoded(ScriptedEngine(), PROMPT, guess=True, limit=60, draft=draft, own=costs())
    assert "draft-failed" not in {one.code for one in again.events}
    assert again.speculation is not None
    assert "it broke" in again.speculation.sources[-1].off
    assert draft.held == draft.engine.cache  # type: ignore[attr-defined]


@pytest.mark.parametrize("after", range(1, 12))
def test_a_cancel_while_it_drafts_leaves_both_as_they_are_said(after: int) -> None:
    engine, draft = ScriptedEngine(), Draft()
    draft.cancel_after = after
    beside = model(draft)
    answer, _, cached = decoded(engine, PROMPT, guess=True, limit=60, draft=beside, own=costs())
    assert answer.finish == "cancelled"
    assert cached == engine.cache
    assert beside.held == draft.cache
    with pytest.raises(CancelledError):
        beside.follow(PROMPT)


def test_a_structure_allows_every_guess() -> None:
    engine = ScriptedEngine()
    matcher = Constrainer(engine, [END]).matcher(
        Structure(kind=StructureKind.REGEX, source="(bc){3}d")
    )
    seen = []
    for beginning in (b"", b"b", b"bcb"):
        at = matcher.fork()
        for byte in beginning:
            at.accept(byte - 96)
        guesses = guesses_of(model(Draft(), typical=0.9)).guess(
            [*PROMPT, *(byte - 96 for byte in beginning)], 8, 60, at
        )
        seen.append(beginning + bytes(96 + token for token in guesses if token != END))
        assert b"bcbcbcd".startswith(seen[-1])
        at.accept(b"bcbcbcd"[len(beginning)] - 96)  # it was left as it was
    assert max(map(len, seen)) > 3


@pytest.mark.parametrize("peak", [0.0, 1.0, 3.0, 60.0, float("nan")])
def test_how_sure_it_is(peak: float) -> None:
    logits = np.zeros(64, dtype=np.float32)
    logits[7] = peak
    token, level = likeliest(logits)
    draft = model(ScriptedEngine())
    assert token == (7 if peak > 0 or np.isnan(peak) else 0)
    expected = {0.0: 0.2, 60.0: 0.95}.get(peak)
    if expected is not None:
        assert draft.trust(level) == pytest.approx(expected, abs=0.03)
