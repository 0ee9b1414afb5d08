"""What every engine must do, run on the llama.cpp engine with real weights.

The suite is driven by declared capabilities: what an engine declares impossible must be refused.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from edgewise.errors import InputError, IntegrityError
from edgewise.runtimes.llamacpp import adapter
from edgewise.runtimes.llamacpp.engine import LlamaCppEngine
from edgewise.runtimes.protocol import CancelledError, Engine

pytestmark = pytest.mark.model

TEXT = (
    "The old bridge was closed for repairs last winter, so everyone in the village had to take "
    "the long road around the lake until the ice was gone."
)
HARD = [
    "naïve café",
    "数字123と漢字",
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "a\r\n\tb  c",
    "e\u0301 \u00e9",
    "",
    " x",
    "x ",
]


def tokens(engine: Engine, text: str = TEXT) -> list[int]:
    return engine.tokenize(text, add_special=True, parse_special=False)


def test_it_is_an_engine(engine: LlamaCppEngine) -> None:
    assert isinstance(engine, Engine)


@pytest.mark.parametrize("text", HARD)
def test_hard_texts_come_back(engine: Engine, text: str) -> None:
    ids = engine.tokenize(text, add_special=False, parse_special=False)
    assert b"".join(engine.token_bytes(i) for i in ids).decode() == text


def test_control_tokens_are_parsed_only_when_asked(engine: Engine) -> None:
    spelled = "<|im_end|>"
    assert engine.tokenize(spelled, add_special=False, parse_special=True) == [2]
    plain = engine.tokenize(spelled, add_special=False, parse_special=False)
    assert 2 not in plain
    assert len(plain) > 1
    assert engine.token_bytes(2) == b""


def test_prefill_and_decode_agree(engine: Engine) -> None:
    ids = tokens(engine)
    at_once = engine.prefill(ids).copy()
    engine.rewind(0)
    logits = engine.prefill(ids[:1])
    for token in ids[1:]:
        logits = engine.decode(token)
    assert int(logits.argmax()) == int(at_once.argmax())
    assert kl(at_once, logits) < 0.02


def test_rewind_equals_a_clean_run(engine: Engine) -> None:
    ids = tokens(engine)
    clean = engine.prefill(ids[:16]).copy()
    engine.decode(5)
    engine.decode(6)
    engine.rewind(15)
    again = engine.decode(ids[15])
    assert engine.position == 16
    assert int(again.argmax()) == int(clean.argmax())
    assert kl(clean, again) < 0.02


def test_no_request_sees_the_one_before(engine: Engine) -> None:
    ids = tokens(engine)
    clean = engine.prefill(ids).copy()
    engine.rewind(0)
    engine.prefill(tokens(engine, "Numbers: 1 2 3 4 5 6 7 8 9 and so on. " * 6))
    engine.rewind(0)
    np.testing.assert_array_equal(engine.prefill(ids), clean)


def test_state_restores_to_the_same_logits(engine: Engine) -> None:
    assert adapter.capabilities().state_save
    engine.prefill(tokens(engine))
    position, state = engine.position, engine.save_state()
    expected = engine.decode(11).copy()
    engine.rewind(0)
    engine.prefill(tokens(engine, "Something else entirely."))
    engine.restore_state(state)
    assert engine.position == position
    np.testing.assert_array_equal(engine.decode(11), expected)


@pytest.mark.parametrize("damage", ["cut", "flip", "header", "empty", "longer"])
def test_a_damaged_state_is_refused_and_the_cache_is_empty(engine: Engine, damage: str) -> None:
    engine.prefill(tokens(engine))
    state = bytearray(engine.save_state())
    if damage == "cut":
        del state[-10:]
    elif damage == "flip":
        state[len(state) // 2] ^= 1
    elif damage == "header":
        state[9] ^= 0xFF
    elif damage == "empty":
        state.clear()
    else:
        state += b"x"
    with pytest.raises(IntegrityError):
        engine.restore_state(bytes(state))
    assert engine.position == 0


def test_a_state_of_another_configuration_is_refused(engine: Engine, smollm2_path: Path) -> None:
    import msgspec
    from tests.conftest import QUICK

    from edgewise.core.recipe import KvType

    engine.prefill(tokens(engine))
    state = engine.save_state()
    other = LlamaCppEngine(smollm2_path, msgspec.structs.replace(QUICK, kv_type=KvType.Q8_0))
    try:
        with pytest.raises(IntegrityError) as caught:
            other.restore_state(state)
    finally:
        other.close()
    assert caught.value.code == "state-of-another-engine"


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_the_edge_of_the_context(engine: Engine, extra: int) -> None:
    ids = (tokens(engine) * 40)[: engine.context_length + extra]
    if extra > 0:
        with pytest.raises(InputError) as caught:
            engine.prefill(ids)
        assert caught.value.code == "context-full"
        assert engine.position == 0
        return
    engine.prefill(ids)
    assert engine.position == len(ids)
    for _ in range(-extra):
        engine.decode(5)
    with pytest.raises(InputError):
        engine.decode(5)
    engine.rewind(4)
    assert np.isfinite(engine.decode(5)).all()


def test_cancel_stops_a_prefill_and_the_engine_goes_on(engine: Engine) -> None:
    ids = (tokens(engine) * 20)[:500]
    engine.prefill(ids[:8])
    before = engine.decode(ids[8]).copy()
    engine.rewind(8)
    started = threading.Event()
    latency: list[float] = []

    def cancel() -> None:
        started.wait()
        latency.append(time.perf_counter())
        engine.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()

    def progress(_done: int) -> None:
        started.set()

    with pytest.raises(CancelledError):
        engine.prefill(ids[8:], progress=progress)
    stopped = time.perf_counter() - latency[0]
    thread.join()
    engine.clear_cancel()
    assert engine.position == 8
    # The step that is running is aborted: milliseconds, and far below a whole prefill when busy.
    assert stopped < 0.5
    np.testing.assert_array_equal(engine.decode(ids[8]), before)


def test_cancel_before_a_step_stops_it(engine: Engine) -> None:
    engine.prefill(tokens(engine))
    position = engine.position
    engine.cancel()
    with pytest.raises(CancelledError):
        engine.decode(5)
    assert engine.position == position
    engine.clear_cancel()
    engine.decode(5)
    assert engine.position == position + 1


@pytest.mark.parametrize("bad", [-1, 10**6])
def test_a_token_outside_the_vocabulary_is_refused(engine: Engine, bad: int) -> None:
    with pytest.raises(InputError):
        engine.prefill([1, bad])
    with pytest.raises(InputError):
        engine.prefill([])


@pytest.mark.parametrize("position", [-1, 99])
def test_rewind_outside_what_was_evaluated_is_refused(engine: Engine, position: int) -> None:
    engine.prefill(tokens(engine)[:8])
    with pytest.raises(InputError):
        engine.rewind(position)


def test_memory_is_flat_over_requests(engine: Engine) -> None:
    ids = tokens(engine)
    for _ in range(3):
        engine.rewind(0)
        engine.prefill(ids)
    before = engine.memory().resident_bytes.number
    for _ in range(20):
        engine.rewind(0)
        engine.prefill(ids)
        engine.decode(7)
    assert engine.memory().resident_bytes.number - before < 4 << 20


def test_the_partition_is_observed(engine: Engine) -> None:
    report = engine.partition()
    assert report.fallbacks == ()
    # 30 layers of 7 matrices and the output matrix.
    assert sum(report.operators["MUL_MAT"].values()) == 30 * 7 + 1
    assert sum(report.operators["FLASH_ATTN_EXT"].values()) == 30
    assert sum(report.weights.values()) == 30 * 7 + 1
    assert report.features


def test_the_memory_report_knows_the_kv_cache(engine: Engine) -> None:
    report = engine.memory()
    # 30 layers, 3 heads of 64, keys and values in f16, 512 cells.
    assert report.kv_cache_bytes.number == pytest.approx(30 * 3 * 64 * 2 * 2 * 512, rel=0.01)
    assert report.weights_bytes.number == pytest.approx(96_576_768, rel=0.01)
    assert report.peak_resident_bytes.number >= report.resident_bytes.number


def kl(reference: np.ndarray, other: np.ndarray) -> float:
    a, b = (x.astype(np.float64) - x.max() for x in (reference, other))
    a -= np.log(np.exp(a).sum())
    b -= np.log(np.exp(b).sum())
    return float((np.exp(a) * (a - b)).sum())


def test_engines_come_and_go_in_one_process(engine: Engine, smollm2_path: Path) -> None:
    from tests.conftest import QUICK

    for _ in range(3):
        LlamaCppEngine(smollm2_path, QUICK).close()
    engine.prefill(tokens(engine))
    assert engine.memory().kv_cache_bytes.number > 0
