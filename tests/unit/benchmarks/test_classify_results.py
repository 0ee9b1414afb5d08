"""The figures of the classifier of tasks are those of the results file, and its bound held."""

from __future__ import annotations

from benchmarks.classify import PAGE, with_table
from benchmarks.setup import read_results


def test_the_page_has_not_drifted_from_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page


def test_the_bound_held_and_the_cost_is_within_its_goal() -> None:
    results = read_results("classify")
    scenario = results["scenario"]
    for found in results["sets"].values():
        tried = found["trials"]
        assert tried["tasks_enabled"] > 20
        assert tried["tasks_above_target"] <= (1 - scenario["confidence"]) * tried["tasks_enabled"]
        assert found["us"]["p99"] < scenario["goal_p99_us"]


def test_the_results_hold_no_text() -> None:
    for found in read_results("classify")["sets"].values():
        for one in found["evidence"]["tasks"]:
            assert one["task"] in {"call", "calls", "code", "sums", "writing"}
