"""Sequences of one context: each keeps the engine contract while another one is busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from edgewise.core.recipe import LoadMode, RunConfig
from edgewise.errors import UnsupportedError
from edgewise.runtimes.ik.library import IkLibrary
from edgewise.runtimes.llamacpp import adapter
from edgewise.runtimes.llamacpp.engine import LlamaCppEngine
from edgewise.runtimes.protocol import Engine, SharedEngine, VerifyingEngine
from edgewise.testing.contract import check_engine
from edgewise.testing.report import Verdict

pytestmark = [pytest.mark.model, pytest.mark.slow]

TEXT = "The old bridge was closed for repairs last winter, so everyone had to take the long road."
OTHER = "Rule 7: when the tide is at nine feet, the keeper of gate five opens the sluice by a turn."


def config(**fields: Any) -> RunConfig:
    fields = {"context_length": 160, "batch_tokens": 32, "parallel": 2, **fields}
    return RunConfig(flash_attention=True, load_mode=LoadMode.MMAP, **fields)


@pytest.fixture(scope="module")
def pair(smollm2_path: Path) -> Iterator[tuple[SharedEngine, SharedEngine]]:
    engine = adapter.engine(smollm2_path, config())
    assert isinstance(engine, SharedEngine)
    first, second = engine.sequences
    yield first, second
    engine.close()


def ids(engine: Engine, text: str) -> list[int]:
    return engine.tokenize(text, add_special=True, parse_special=False)


class Busy:
    """Another sequence that evaluates and decodes all the time."""

    def __init__(self, engine: Engine) -> None:
        self.steps = 0
        self._engine = engine
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        tokens = ids(self._engine, OTHER)
        while not self._stop.is_set():
            self._engine.rewind(0)
            self._engine.prefill(tokens)
            for token in tokens[:20]:
                self._engine.decode(token)
                self.steps += 1


def test_a_sequence_keeps_the_contract_while_another_is_busy(
    pair: tuple[SharedEngine, SharedEngine],
) -> None:
    with Busy(pair[1]) as busy:
        checks = check_engine(pair[0], adapter.capabilities(), end_token_ids=(2,))
    assert [check for check in checks if check.verdict is not Verdict.PASS] == []
    assert busy.steps > 20
    assert isinstance(pair[0], VerifyingEngine)


def test_a_state_goes_from_one_sequence_to_another(
    pair: tuple[SharedEngine, SharedEngine],
) -> None:
    first, second = pair
    tokens = ids(first, TEXT)
    for engine in pair:
        engine.rewind(0)
    first.prefill(tokens[:-1])
    state = first.save_state()
    expected = first.decode(tokens[-1]).copy()
    second.prefill(ids(second, OTHER))
    second.restore_state(state)
    assert np.array_equal(second.decode(tokens[-1]), expected)
    assert first.position == second.position == len(tokens)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_joined_step_gives_what_it_gives_alone_or_says_so(
    smollm2_path: Path, threads: int
) -> None:
    single = LlamaCppEngine(
        smollm2_path, config(parallel=1, context_length=512, threads=threads, batch_tokens=128)
    )
    shared = adapter.engine(
        smollm2_path, config(context_length=512, threads=threads, batch_tokens=128)
    )
    assert isinstance(shared, SharedEngine)
    try:
        tokens = (ids(single, TEXT + OTHER) * 12)[:320]
        for length in (40, 320):
            expected = _answer(single, tokens[:length])
            found = _together(shared.sequences, tokens[:length])
            for number, engine in enumerate(shared.sequences):
                same = all(map(np.array_equal, found[number], expected))
                assert same or engine.rounded_steps, (length, number)
                if length == 40 or threads == 1:
                    assert same
                engine.rest()
    finally:
        single.close()
        shared.close()


def _answer(engine: Engine, prompt: list[int]) -> list[Any]:
    engine.rewind(0)
    rows = [engine.prefill(prompt).copy()]
    rows += [engine.decode(token).copy() for token in prompt[:24]]
    return rows


def _together(engines: Sequence[Engine], prompt: list[int]) -> list[list[Any]]:
    with ThreadPoolExecutor(len(engines)) as pool:
        return list(pool.map(lambda engine: _answer(engine, prompt), engines))


def test_more_than_a_runtime_can_is_refused(smollm2_path: Path) -> None:
    for refused in (config(parallel=65), config(parallel=33)):
        with pytest.raises(UnsupportedError) as caught:
            adapter.engine(smollm2_path, refused)
        assert caught.value.code == "parallel-unsupported"
    assert IkLibrary.sequences_max == 1
