"""A second architecture: sliding window, head_dim 256, a vocabulary of 262k, BOS required."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgewise.core.recipe import RunConfig
from edgewise.errors import UnsupportedError
from edgewise.models.architecture import model_shape
from edgewise.models.gguf import read_gguf
from edgewise.runtimes.llamacpp import adapter
from edgewise.runtimes.llamacpp.engine import LlamaCppEngine

pytestmark = pytest.mark.model

CONFIG = RunConfig(context_length=2048, threads=1, batch_tokens=128)


@pytest.fixture(scope="module")
def gemma(gemma_path: Path) -> Iterator[LlamaCppEngine]:
    engine = LlamaCppEngine(gemma_path, CONFIG)
    yield engine
    engine.close()


def test_the_begin_token_is_added_once(gemma: LlamaCppEngine) -> None:
    ids = gemma.tokenize("Hello", add_special=True, parse_special=False)
    assert ids[0] == 2
    assert ids.count(2) == 1


def test_a_short_rewind_equals_a_clean_run(gemma: LlamaCppEngine) -> None:
    ids = gemma.tokenize("The sea was calm that day. " * 20, add_special=True, parse_special=False)
    gemma.rewind(0)
    clean = gemma.prefill(ids[:100]).copy()
    gemma.prefill(ids[100:120])
    gemma.rewind(99)
    assert int(gemma.decode(ids[99]).argmax()) == int(clean.argmax())


def test_a_rewind_past_the_window_is_refused(gemma: LlamaCppEngine) -> None:
    ids = gemma.tokenize("The sea was calm that day. " * 220, add_special=True, parse_special=False)
    gemma.rewind(0)
    gemma.prefill(ids[:1500])
    with pytest.raises(UnsupportedError) as caught:
        gemma.rewind(600)
    assert caught.value.code == "rewind-past-window"
    assert gemma.position == 1500
    gemma.rewind(0)
    assert gemma.position == 0


def test_the_kv_cache_is_what_the_plan_says(gemma: LlamaCppEngine, gemma_path: Path) -> None:
    planned = adapter.footprint(model_shape(read_gguf(gemma_path)), CONFIG).kv_cache_bytes
    held = gemma.memory().kv_cache_bytes
    assert held.number == pytest.approx(planned.number, rel=0.01)


def test_logits_are_finite_with_a_window_passed(gemma: LlamaCppEngine) -> None:
    ids = gemma.tokenize("The sea was calm that day. " * 220, add_special=True, parse_special=False)
    gemma.rewind(0)
    assert np.isfinite(gemma.prefill(ids[:1400])).all()
