"""Planning is total, and never contradicts itself when one input grows."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unit.core.values import SMOLLM2, UNKNOWN, size, tier

from edgewise.core.quantity import Estimated, Quantity, Unknown
from edgewise.core.recipe import KvType, RunConfig
from edgewise.models.architecture import ModelShape
from edgewise.planner import Candidate, Plan, Verdict, make_plan
from edgewise.runtimes.llamacpp.footprint import footprint

pytestmark = pytest.mark.slow

ORDER = [Verdict.FITS, Verdict.FITS_WITH_CHANGES, Verdict.DOES_NOT_FIT]
GROWING = (
    "n_embd",
    "head_dim_k",
    "head_dim_v",
    "vocab_size",
    "weights_bytes",
)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    layers = draw(st.integers(1, 40))
    width = st.integers(1, 1 << 15)
    per_layer = st.one_of(
        st.integers(1, 128).map(lambda n: (n,) * layers),
        st.lists(st.integers(1, 128), min_size=layers, max_size=layers).map(tuple),
    )
    window = draw(st.none() | st.integers(1, 1 << 16))
    slides = st.lists(st.booleans(), min_size=layers, max_size=layers).map(tuple)
    weights = draw(st.integers(1, 2**42))
    return dataclasses.replace(
        SMOLLM2,
        n_layers=layers,
        n_embd=draw(width),
        n_ff=(draw(width),) * layers,
        n_heads=draw(per_layer),
        n_kv_heads=draw(per_layer),
        head_dim_k=draw(st.integers(1, 512)),
        head_dim_v=draw(st.integers(1, 512)),
        vocab_size=draw(st.integers(1, 1 << 20)),
        context_length_trained=draw(st.integers(1, 1 << 31)),
        sliding_window=window,
        is_sliding=(False,) * layers if window is None else draw(slides),
        parameter_count=draw(st.integers(1, 2**43)),
        weights_bytes=weights,
        weights_bytes_per_token=draw(st.integers(0, weights)),
    )


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    flash = draw(st.booleans())
    return RunConfig(
        context_length=draw(st.integers(1, 1 << 31) | st.integers(1, 5000)),
        kv_type=draw(st.sampled_from([KvType.F16, KvType.Q8_0])) if flash else KvType.F16,
        flash_attention=flash,
        threads=draw(st.integers(1, 256)),
        batch_tokens=draw(st.integers(1, 4096)),
    )


amounts = st.integers(0, 2**53) | st.integers(0, 2**33) | st.floats(0, 2.0**53)
quantities = st.just(UNKNOWN) | amounts.map(size)


def plan(
    shape: ModelShape | None, config: RunConfig, app: Quantity, budget: Quantity, **fields: Any
) -> Plan:
    candidate = Candidate(
        shape=shape,
        shape_missing="no rules",
        weights_bytes=1000,
        run_config=config,
        app_bytes=app,
        facts={"name": "x"},
    )
    return make_plan(candidate, tier(budget, **fields), footprint)


def peak(shape: ModelShape, config: RunConfig) -> float:
    found = plan(shape, config, size(0), size(0)).memory.peak_bytes
    assert isinstance(found, Estimated)
    return found.number


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return list(itertools.chain.from_iterable(map(numbers, value.values())))
    if isinstance(value, list | tuple):
        return list(itertools.chain.from_iterable(map(numbers, value)))
    return [value] if isinstance(value, int | float) else []


@given(st.none() | shapes(), configs(), quantities, quantities, quantities, quantities)
def test_total_and_never_nan(
    shape: ModelShape | None,
    config: RunConfig,
    app: Quantity,
    budget: Quantity,
    bandwidth: Quantity,
    compute: Quantity,
) -> None:
    result = plan(
        shape,
        config,
        app,
        budget,
        memory_bandwidth_bytes_s=bandwidth,
        compute_gflops=compute,
    )
    assert result.reasons
    assert all(result.reasons)
    found = numbers(msgspec.to_builtins(result))
    assert all(math.isfinite(number) and number >= 0 for number in found)
    assert b"NaN" not in msgspec.json.encode(result)
    unknown = shape is None or isinstance(app, Unknown) or isinstance(budget, Unknown)
    if unknown:
        assert result.verdict in {Verdict.UNKNOWN, Verdict.DOES_NOT_FIT}
    else:
        assert result.verdict is not Verdict.UNKNOWN
    assert bool(result.changes) == (result.verdict is Verdict.FITS_WITH_CHANGES)
    assert (result.shortfall_bytes is not None) == (result.verdict is Verdict.DOES_NOT_FIT)
    if isinstance(budget, Unknown):
        assert result.verdict is Verdict.UNKNOWN
    assert all(change.saves_bytes > 0 for change in result.changes)


@given(shapes(), configs(), st.integers(1, 1 << 31))
def test_more_context_never_takes_less(shape: ModelShape, config: RunConfig, more: int) -> None:
    longer = min(1 << 31, config.context_length + more)
    other = msgspec.structs.replace(config, context_length=longer)
    assert peak(shape, other) >= peak(shape, config)


@given(shapes(), configs(), st.sampled_from(GROWING), st.integers(1, 1 << 20))
def test_a_larger_model_never_takes_less(
    shape: ModelShape, config: RunConfig, field: str, more: int
) -> None:
    changed: dict[str, Any] = {field: getattr(shape, field) + more}
    larger = dataclasses.replace(shape, **changed)
    assert peak(larger, config) >= peak(shape, config)


@given(shapes(), configs())
def test_one_more_layer_takes_more(shape: ModelShape, config: RunConfig) -> None:
    deeper = dataclasses.replace(
        shape,
        n_layers=shape.n_layers + 1,
        **{
            name: getattr(shape, name) + getattr(shape, name)[-1:]
            for name in ("n_ff", "n_heads", "n_kv_heads", "is_sliding")
        },
    )
    assert peak(deeper, config) > peak(shape, config)


@given(shapes(), configs(), amounts, amounts, st.integers(0, 2**52))
def test_a_bigger_budget_is_never_worse(
    shape: ModelShape, config: RunConfig, app: float, budget: float, more: int
) -> None:
    before = plan(shape, config, size(app), size(budget))
    after = plan(shape, config, size(app), size(budget + more))
    assert ORDER.index(after.verdict) <= ORDER.index(before.verdict)
    if before.shortfall_bytes is not None and after.shortfall_bytes is not None:
        assert after.shortfall_bytes <= before.shortfall_bytes


@given(shapes(), configs(), st.floats(0, 1.2))
def test_changes_make_it_fit(shape: ModelShape, config: RunConfig, share: float) -> None:
    budget = int(peak(shape, config) * share)
    result = plan(shape, config, size(0), size(budget))
    assume(result.verdict is Verdict.FITS_WITH_CHANGES)
    data = msgspec.to_builtins(config)
    data.update({change.setting: change.after for change in result.changes})
    after = msgspec.convert(data, type=RunConfig, strict=False)
    assert peak(shape, after) <= budget


@given(shapes(), configs(), amounts)
def test_the_shortfall_is_exact(shape: ModelShape, config: RunConfig, budget: float) -> None:
    result = plan(shape, config, size(0), size(int(budget)))
    if result.shortfall_bytes is None:
        return
    enough = plan(shape, config, size(0), size(int(budget) + result.shortfall_bytes))
    assert enough.verdict is not Verdict.DOES_NOT_FIT
    short = plan(shape, config, size(0), size(int(budget) + result.shortfall_bytes - 1))
    if result.shortfall_bytes < 2**52:
        assert short.verdict is Verdict.DOES_NOT_FIT
