"""The ledger adds what is known and never counts what is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.values import UNKNOWN, ledger, size

from edgewise.core.ledger import DraftMemory, MemoryLedger
from edgewise.core.quantity import Estimated, Measured, Unknown

LINES = ("weights_bytes", "kv_cache_bytes", "workspace_bytes", "runtime_bytes", "app_bytes")


def test_peak_and_worker() -> None:
    book = ledger()
    assert tuple(book.lines) == LINES
    peak, worker = book.peak_bytes, book.worker_bytes
    assert isinstance(peak, Estimated)
    assert isinstance(worker, Estimated)
    assert (peak.value, worker.value) == (54123, 4123)
    assert "app" in peak.source
    assert isinstance(peak.value, int)


def test_a_sum_of_measured_lines_is_an_estimate() -> None:
    measured = Measured(value=1, source="clock")
    assert ledger(**dict.fromkeys(LINES, measured)).peak_bytes == Estimated(
        value=5, source="weights + kv_cache + workspace + runtime + app"
    )


def test_a_drafts_lines_count_and_are_the_workers() -> None:
    draft = DraftMemory(weights_bytes=size(9), kv_cache_bytes=size(1), workspace_bytes=size(2))
    book, without = ledger(draft=draft), ledger()
    assert tuple(book.lines) == (*LINES, *draft.lines)
    for total, before in (
        (book.peak_bytes, without.peak_bytes),
        (book.worker_bytes, without.worker_bytes),
    ):
        assert isinstance(total, Estimated)
        assert isinstance(before, Estimated)
        assert total.number == before.number + 12
    unknown = msgspec.structs.replace(draft, workspace_bytes=UNKNOWN)
    peak = ledger(draft=unknown).peak_bytes
    assert isinstance(peak, Unknown)
    assert "draft_workspace_bytes" in peak.reason


@pytest.mark.parametrize("line", LINES)
def test_one_unknown_line(line: str) -> None:
    book = ledger(**{line: UNKNOWN})
    for total in (book.peak_bytes, book.worker_bytes):
        assert isinstance(total, Unknown)
        assert line in total.reason
        assert not any(other in total.reason for other in LINES if other != line)


@settings(deadline=None)
@given(st.sets(st.sampled_from(LINES), min_size=1))
def test_every_unknown_line_is_named(lines: set[str]) -> None:
    peak = ledger(**dict.fromkeys(lines, UNKNOWN)).peak_bytes
    assert isinstance(peak, Unknown)
    assert {line for line in LINES if line in peak.reason} == lines


def test_unknown_budget_does_not_touch_the_peak() -> None:
    assert ledger(budget_bytes=UNKNOWN).peak_bytes == ledger().peak_bytes


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**50), min_size=5, max_size=5))
def test_peak_is_the_exact_sum(values: list[int]) -> None:
    lines: dict[str, Any] = {name: size(value) for name, value in zip(LINES, values, strict=True)}
    book = ledger(**lines)
    peak, worker = book.peak_bytes, book.worker_bytes
    assert not isinstance(peak, Unknown)
    assert not isinstance(worker, Unknown)
    assert peak.value == sum(values)
    assert worker.value == sum(values[:-1])


def test_round_trip() -> None:
    book = ledger(app_bytes=UNKNOWN)
    assert msgspec.json.decode(msgspec.json.encode(book), type=MemoryLedger) == book
