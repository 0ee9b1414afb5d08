"""What the page says of the real task follows from the signals that were recorded."""

from __future__ import annotations

import json

import pytest
from benchmarks.route import PAGE, PLOTS, RECORDED, RESULTS, cross_fitted, recorded, table
from benchmarks.setup import read_scenario


def test_the_page_shows_the_results() -> None:
    assert table(json.loads(RESULTS.read_text("utf-8"))) in PAGE.read_text("utf-8")
    assert (PLOTS / "risk-coverage.svg").is_file()


@pytest.mark.slow
def test_the_combined_score_beats_entropy_and_self_assessment() -> None:
    """Each case is scored by a model that never saw it; the intervals are over the same draws."""
    scenario = {**read_scenario("route"), "bootstrap_rounds": 500}
    found = cross_fitted(recorded(), scenario)
    for baseline in ("entropy-only", "self-assessment"):
        assert found[baseline]["excess"][0] > 0, baseline
        assert found["combined"]["aurc"] < found[baseline]["aurc"]


def test_recorded_signals_hold_no_content() -> None:
    for line in RECORDED.read_text("utf-8").splitlines():
        case = json.loads(line)
        assert set(case) == {"id", "signals", "correct", "slices", "fingerprint", "prompt_sha256"}
        assert len(case["id"]) == 24
        assert int(case["id"], 16) >= 0
        assert all(isinstance(value, int | float) for value in case["signals"].values())
        assert case["slices"]["part"] in {"simple_python", "multiple"}
