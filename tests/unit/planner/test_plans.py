"""Verdicts, and the changes and shortfalls that come with them."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from tests.unit.core.values import GEMMA3, SMOLLM2, UNKNOWN, size, tier

from edgewise.core.quantity import Estimated, Quantity, Unknown
from edgewise.core.recipe import KvType, RunConfig
from edgewise.models.architecture import ModelShape
from edgewise.planner import Candidate, DraftCandidate, Plan, Verdict, make_plan
from edgewise.runtimes.llamacpp.footprint import footprint

LONG = RunConfig(context_length=8192, flash_attention=True)
APP = size(64 << 20)


def candidate(
    shape: ModelShape | None = SMOLLM2,
    config: RunConfig = LONG,
    app: Quantity = APP,
    **fields: Any,
) -> Candidate:
    return Candidate(
        shape=shape,
        shape_missing=fields.pop("shape_missing", "no rules for 'mamba'"),
        weights_bytes=fields.pop("weights_bytes", 100_000_000),
        run_config=config,
        app_bytes=app,
        facts={"name": "test", "sha256": None},
        **fields,
    )


def plan(what: Candidate, budget: Quantity, **fields: Any) -> Plan:
    return make_plan(what, tier(budget, **fields), footprint)


def peak(config: RunConfig, shape: ModelShape = SMOLLM2, app: Quantity = APP) -> int:
    found = plan(candidate(shape, config, app), size(0)).memory.peak_bytes
    assert isinstance(found, Estimated)
    assert isinstance(found.value, int)
    return found.value


def applied(result: Plan) -> RunConfig:
    data = msgspec.to_builtins(result.run_config)
    for change in result.changes:
        assert str(getattr(result.run_config, change.setting)) == change.before
        data[change.setting] = change.after
    return msgspec.convert(data, type=RunConfig, strict=False)


def smallest(config: RunConfig) -> RunConfig:
    return msgspec.structs.replace(
        config, kv_type=KvType.Q8_0, flash_attention=True, context_length=512
    )


@pytest.mark.parametrize("spare", [0, 1, 1 << 30])
def test_fits(spare: int) -> None:
    result = plan(candidate(), size(peak(LONG) + spare))
    assert result.verdict is Verdict.FITS
    assert (result.changes, result.shortfall_bytes) == ((), None)
    assert "below the budget" in result.reasons[0]
    assert result.run_config == LONG


def test_one_byte_less_needs_the_least_change() -> None:
    result = plan(candidate(), size(peak(LONG) - 1))
    assert result.verdict is Verdict.FITS_WITH_CHANGES
    (change,) = result.changes
    assert (change.setting, change.before, change.after) == ("kv_type", "f16", "q8_0")
    assert change.saves_bytes == peak(LONG) - peak(applied(result))
    assert change.saves_bytes == (180 << 20) * 30 // 64


def test_flash_attention_alone_when_it_is_enough() -> None:
    slow = msgspec.structs.replace(LONG, flash_attention=False)
    result = plan(candidate(config=slow), size(peak(slow) - 1))
    (change,) = result.changes
    assert (change.setting, change.before, change.after) == ("flash_attention", "False", "True")


@pytest.mark.parametrize("shape", [SMOLLM2, GEMMA3], ids=["smollm2", "gemma3"])
@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("kv_type", [KvType.F16, KvType.Q8_0])
@pytest.mark.parametrize("context_length", [513, 700, 2048, 8192, 100_000])
def test_changes_suffice_and_each_is_needed(
    shape: ModelShape, flash: bool, kv_type: KvType, context_length: int
) -> None:
    if kv_type is KvType.Q8_0 and not flash:
        return
    config = RunConfig(context_length=context_length, kv_type=kv_type, flash_attention=flash)
    low, high = peak(smallest(config), shape), peak(config, shape)
    assert low < high
    for step in range(33):
        budget = low + (high - 1 - low) * step // 32
        result = plan(candidate(shape, config), size(budget))
        assert result.verdict is Verdict.FITS_WITH_CHANGES
        assert result.changes
        after = applied(result)
        assert peak(after, shape) <= budget
        assert all(change.saves_bytes > 0 for change in result.changes)
        saved = sum(change.saves_bytes for change in result.changes)
        assert saved == high - peak(after, shape)
        for change in result.changes:
            back = {change.setting: getattr(config, change.setting)}
            if change.setting == "flash_attention" and after.kv_type is KvType.Q8_0:
                continue  # the quantised cache needs it
            without = msgspec.structs.replace(after, **back)
            assert peak(without, shape) > budget, f"{change.setting} was not needed"


@pytest.mark.parametrize("short", [1, 12345, 1 << 27])
def test_does_not_fit_says_exactly_what_is_missing(short: int) -> None:
    low = peak(smallest(LONG))
    result = plan(candidate(), size(low - short))
    assert result.verdict is Verdict.DOES_NOT_FIT
    assert (result.shortfall_bytes, result.changes) == (short, ())
    assert result.reasons
    assert plan(candidate(), size(low)).verdict is Verdict.FITS_WITH_CHANGES


def test_nothing_smaller_than_the_smallest_context() -> None:
    config = RunConfig(context_length=100, kv_type=KvType.Q8_0, flash_attention=True)
    result = plan(candidate(config=config), size(peak(config) - 7))
    assert (result.verdict, result.shortfall_bytes) == (Verdict.DOES_NOT_FIT, 7)


def test_no_budget_at_all() -> None:
    assert plan(candidate(), size(0)).shortfall_bytes == peak(smallest(LONG))


# -- unknown is not the same as no


def test_unknown_budget() -> None:
    result = plan(candidate(), UNKNOWN)
    assert result.verdict is Verdict.UNKNOWN
    assert result.shortfall_bytes is None
    assert any("budget" in reason and "nobody looked" in reason for reason in result.reasons)


def test_unknown_shape() -> None:
    result = plan(candidate(None), size(1 << 40))
    assert result.verdict is Verdict.UNKNOWN
    assert any("kv_cache_bytes" in reason for reason in result.reasons)
    for line in (result.memory.kv_cache_bytes, result.memory.workspace_bytes):
        assert line == Unknown(reason="no rules for 'mamba'")
    for bound in (result.decode.ceiling_tok_s, result.prefill.ceiling_tok_s):
        assert isinstance(bound, Unknown)
    assert isinstance(result.memory.weights_bytes, Estimated)


def test_unknown_shape_and_budget_names_both() -> None:
    reasons = " ".join(plan(candidate(None), UNKNOWN).reasons)
    assert "kv_cache_bytes" in reasons
    assert "budget: nobody looked" in reasons


@pytest.mark.parametrize("short", [1, 4096])
def test_the_known_lines_alone_are_too_much(short: int) -> None:
    known = 100_000_000 + (64 << 20)
    result = plan(candidate(None), size(known - short))
    assert (result.verdict, result.shortfall_bytes) == (Verdict.DOES_NOT_FIT, short)
    assert any("known lines alone" in reason for reason in result.reasons)
    assert any("kv_cache_bytes" in reason for reason in result.reasons)
    assert plan(candidate(None), size(known)).verdict is Verdict.UNKNOWN


def test_an_unknown_app_is_no_refusal_while_a_smaller_context_may_fit() -> None:
    low = peak(smallest(LONG), app=size(0))
    assert peak(LONG, app=size(0)) > low
    assert plan(candidate(app=UNKNOWN), size(low)).verdict is Verdict.UNKNOWN
    result = plan(candidate(app=UNKNOWN), size(low - 5))
    assert (result.verdict, result.shortfall_bytes) == (Verdict.DOES_NOT_FIT, 5)


# -- what else a plan says


@pytest.mark.parametrize("context_length", [8192, 8193])
def test_longer_than_trained_is_remarked(context_length: int) -> None:
    config = RunConfig(context_length=context_length, flash_attention=True)
    reasons = plan(candidate(config=config), size(1 << 40)).reasons
    assert any("trained for" in reason for reason in reasons) is (context_length == 8193)


def test_what_other_programs_use_counts() -> None:
    """The budget is what is there now; the total of the device does not matter."""
    result = plan(candidate(), size(1 << 20), memory_total_bytes=size(1 << 40))
    assert result.verdict is Verdict.DOES_NOT_FIT


def test_a_plan_survives_json() -> None:
    for what in (candidate(), candidate(None), candidate(app=UNKNOWN)):
        for budget in (size(0), size(1 << 40), UNKNOWN):
            result = plan(what, budget)
            data = msgspec.json.encode(result)
            assert b"NaN" not in data
            assert msgspec.json.decode(data, type=Plan) == result


def test_planning_is_pure() -> None:
    assert plan(candidate(), size(1 << 28)) == plan(candidate(), size(1 << 28))


def test_a_larger_model_takes_more() -> None:
    wider = dataclasses.replace(SMOLLM2, vocab_size=2 * SMOLLM2.vocab_size)
    assert peak(LONG, wider) > peak(LONG)


def test_a_draft_counts_with_weights_cache_and_workspace() -> None:
    small = dataclasses.replace(SMOLLM2, weights_bytes=SMOLLM2.weights_bytes // 4)
    draft = DraftCandidate(shape=small, weights_bytes=small.weights_bytes)
    alone, both = plan(candidate(), size(1 << 40)), plan(candidate(draft=draft), size(1 << 40))
    lines, own = both.memory, footprint(small, LONG)
    assert lines.draft is not None
    assert lines.draft.weights_bytes == own.weights_bytes
    assert lines.draft.kv_cache_bytes == own.kv_cache_bytes
    assert lines.draft.workspace_bytes == own.workspace_bytes
    extra = [own.weights_bytes, own.kv_cache_bytes, own.workspace_bytes]
    more = sum(int(getattr(line, "number", 0)) for line in extra) + own.model_bytes
    before, after = alone.memory.peak_bytes, both.memory.peak_bytes
    assert isinstance(before, Estimated)
    assert isinstance(after, Estimated)
    assert after.number == before.number + more
    # What a process takes before a model is not counted twice.
    assert own.model_bytes < getattr(own.runtime_bytes, "number", 0)


def test_a_draft_can_be_what_does_not_fit() -> None:
    small = dataclasses.replace(SMOLLM2, weights_bytes=SMOLLM2.weights_bytes // 4)
    draft = DraftCandidate(shape=small, weights_bytes=small.weights_bytes)
    budget = size(peak(LONG))
    assert plan(candidate(), budget).verdict is Verdict.FITS
    result = plan(candidate(draft=draft), budget)
    assert result.verdict is Verdict.FITS_WITH_CHANGES
    assert plan(candidate(draft=draft), size(peak(smallest(LONG)))).verdict is Verdict.DOES_NOT_FIT


def test_a_draft_of_unknown_shape_leaves_the_plan_open() -> None:
    draft = DraftCandidate(shape=None, shape_missing="no rules for 'mamba'", weights_bytes=7)
    result = plan(candidate(draft=draft), size(1 << 40))
    assert result.verdict is Verdict.UNKNOWN
    assert "draft_kv_cache_bytes" in result.reasons[0]
