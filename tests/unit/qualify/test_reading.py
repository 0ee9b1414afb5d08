"""An engine is held against itself: what it says token by token, and having read at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgewise.qualify.parity_messages import Reading, ScoreParams
from edgewise.qualify.parity_service import ParityService
from edgewise.runtimes.llamacpp.engine import LlamaCppEngine

pytestmark = pytest.mark.model

WINDOWS = (tuple(range(100, 141)), tuple(range(300, 341)))


class Forgetful:
    """Reads as ik_llama.cpp reads Q4_1: a step of 32 tokens or more loses what it holds."""

    def __init__(self, engine: LlamaCppEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def prefill(self, tokens: Sequence[int], **more: Any) -> Any:
        lost = len(tokens) // 2 if len(tokens) >= 32 else 0
        return self._engine.prefill([*reversed(tokens[:lost]), *tokens[lost:]], **more)


def read(engine: Any, folder: Path) -> Reading:
    service = ParityService()
    service._engine = engine
    params = ScoreParams(windows=WINDOWS, file=str(folder / "rows.npy"), read=True)
    found = service._score(params, lambda _done: None).reading
    assert found is not None
    return found


def test_an_exact_engine_says_the_same(engine: LlamaCppEngine, tmp_path: Path) -> None:
    found = read(engine, tmp_path)
    assert (found.places, found.longest_tokens) == (6, 40)
    assert found.kl_mean_nats.number < 1e-6
    assert found.top1_agreement.number == 1


def test_what_long_steps_lose_is_seen(engine: LlamaCppEngine, tmp_path: Path) -> None:
    """Two of the six places are read in 32 tokens or more: only they differ."""
    found = read(Forgetful(engine), tmp_path)
    assert found.kl_max_nats.number > 0.1
    assert found.kl_mean_nats.number > 0.03


def test_without_being_asked_nothing_is_read_again(engine: LlamaCppEngine, tmp_path: Path) -> None:
    service = ParityService()
    service._engine = engine
    params = ScoreParams(windows=WINDOWS, file=str(tmp_path / "rows.npy"))
    assert service._score(params, lambda _done: None).reading is None
