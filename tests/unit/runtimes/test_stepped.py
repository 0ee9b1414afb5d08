"""What every token-by-token engine inherits, on an engine whose cache is a list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgewise.core.quantity import Unknown
from edgewise.core.recipe import RunConfig
from edgewise.errors import AdapterError, InputError, IntegrityError, UnsupportedError
from edgewise.runtimes.protocol import CancelledError
from edgewise.runtimes.reports import MemoryReport, PartitionReport
from edgewise.runtimes.stepped import SteppedEngine, refuse_hints

NOTHING = Unknown(reason="a list")


class Codec:
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [ord(c) % 16 for c in text]

    def token_bytes(self, token: int) -> bytes:
        return bytes([97 + token])


class ListEngine(SteppedEngine):
    """Its logits say what the cache holds: the count of each token so far."""

    runtime = "list"

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            context_length=settings.pop("context_length", 12),
            vocab_size=16,
            step_tokens=settings.pop("step_tokens", 4),
            codec=Codec(),
        )
        self.cache: list[int] = []
        self.cuts_only_to: tuple[int, ...] | None = settings.pop("cuts_only_to", None)
        self.fail_at: int | None = None
        self.steps: list[int] = []

    def _evaluate(self, tokens: list[int]) -> Any:
        for token in tokens:
            self.cache.append(token)
            if len(self.cache) == self.fail_at:
                raise AdapterError("native", "it broke half-way")
        self.steps.append(len(tokens))
        return np.bincount(self.cache, minlength=16).astype(np.float32)

    def _truncate(self, position: int) -> None:
        if self.cuts_only_to is not None and position not in self.cuts_only_to:
            raise UnsupportedError("cannot-cut", "not there")
        del self.cache[position:]

    def memory(self) -> MemoryReport:
        raise NotImplementedError

    def partition(self) -> PartitionReport:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to free."""


class SavingEngine(ListEngine):
    runtime = "saving"
    model = "m"

    def _identity(self) -> tuple[object, ...]:
        return (self.model,)

    def _save(self) -> bytes:
        return bytes(self.cache)

    def _load(self, body: memoryview, position: int) -> None:
        assert len(body) == position
        self.cache = list(body)


def test_prefill_runs_in_steps_and_says_how_far() -> None:
    engine = ListEngine()
    seen: list[int] = []
    logits = engine.prefill(range(10), progress=seen.append)
    assert engine.steps == [4, 4, 2]
    assert seen == [4, 8, 10]
    assert engine.position == 10
    assert logits.sum() == 10


@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        ([], "prompt-empty"),
        ([-1], "token-invalid"),
        ([16], "token-invalid"),
        ([0] * 13, "context-full"),
    ],
)
def test_bad_tokens_are_refused_before_anything_runs(tokens: list[int], code: str) -> None:
    engine = ListEngine()
    with pytest.raises(InputError) as caught:
        engine.prefill(tokens)
    assert caught.value.code == code
    assert engine.steps == []
    assert engine.position == 0


def test_the_edge_of_the_context() -> None:
    engine = ListEngine()
    engine.prefill([1] * 11)
    engine.decode(2)
    with pytest.raises(InputError, match="12 are taken"):
        engine.decode(3)
    assert engine.position == 12
    assert engine.cache[-1] == 2


def test_a_step_that_fails_half_way_leaves_what_was_there() -> None:
    engine = ListEngine()
    engine.prefill([1, 2])
    engine.fail_at = 5
    with pytest.raises(AdapterError):
        engine.prefill([3, 4, 5, 6, 7])
    assert engine.cache == [1, 2]
    assert engine.position == 2
    engine.fail_at = None
    assert engine.decode(3).sum() == 3


def test_where_no_cut_is_possible_a_failure_leaves_nothing() -> None:
    engine = ListEngine(cuts_only_to=(0,))
    engine.prefill([1, 2])
    engine.fail_at = 4
    with pytest.raises(AdapterError):
        engine.prefill([3, 4])
    assert engine.cache == []
    assert engine.position == 0


def test_cancel_stops_at_the_next_step_and_is_armed_again() -> None:
    engine = ListEngine()
    with pytest.raises(CancelledError):
        engine.prefill([1] * 12, progress=lambda _done: engine.cancel())
    assert engine.steps == [4]
    assert (engine.position, engine.cache) == (0, [])
    assert engine.cancelled
    with pytest.raises(CancelledError):
        engine.decode(1)
    engine.clear_cancel()
    assert engine.decode(1).sum() == 1


def test_rewind() -> None:
    engine = ListEngine()
    engine.prefill([1, 2, 3])
    for bad in (-1, 4):
        with pytest.raises(InputError):
            engine.rewind(bad)
    engine.rewind(3)
    engine.rewind(1)
    assert (engine.position, engine.cache) == (1, [1])
    blocked = ListEngine(cuts_only_to=(0,))
    blocked.prefill([1, 2])
    with pytest.raises(UnsupportedError):
        blocked.rewind(1)
    assert blocked.position == 2


def test_an_engine_without_states_refuses_both_ways() -> None:
    engine = ListEngine()
    with pytest.raises(UnsupportedError) as caught:
        engine.save_state()
    assert caught.value.code == "state-save-unsupported"
    other = SavingEngine()
    other.prefill([1])
    with pytest.raises(IntegrityError):
        engine.restore_state(other.save_state())


def test_a_state_comes_back_and_a_damaged_one_does_not() -> None:
    engine = SavingEngine()
    engine.prefill([1, 2, 3])
    state = engine.save_state()
    engine.rewind(0)
    engine.prefill([9])
    engine.restore_state(state)
    assert (engine.position, engine.cache) == (3, [1, 2, 3])
    for bad in (b"", state[:30], state[:-1], state[:-1] + b"\x07", state + b"x"):
        with pytest.raises(IntegrityError) as caught:
            engine.restore_state(bad)
        assert caught.value.code == "state-damaged"
        assert engine.position == 0


def test_a_state_of_another_model_or_a_larger_context_is_refused() -> None:
    engine, other, small = SavingEngine(), SavingEngine(), SavingEngine(context_length=2)
    engine.prefill([1, 2, 3])
    other.model = "n"
    for refusing in (other, small):
        with pytest.raises(IntegrityError) as caught:
            refusing.restore_state(engine.save_state())
        assert caught.value.code == "state-of-another-engine"


def test_hints_that_nobody_knows_are_refused() -> None:
    config = RunConfig(hints=(("repack", "1"), ("colour", "red")))
    with pytest.raises(UnsupportedError, match="'colour'"):
        refuse_hints("r", config, ("repack",))
    refuse_hints("r", RunConfig(hints=(("repack", "1"),)), ("repack",))
