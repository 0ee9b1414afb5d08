"""A calibration as a whole: bound, slices, refusals, and what it reports."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.unit.route.calibrate.made import made_cases, true_rate

from edgewise.core.canonical import digest_of
from edgewise.errors import InputError, UnsupportedError
from edgewise.route.calibrate import (
    CalibrateSettings,
    CalibrationReport,
    Case,
    calibrate_cases,
    parse_cases,
    read_lines,
)
from edgewise.route.calibrate.learning import learn
from edgewise.route.calibrate.measures import risks_of, wrong_of

RECORDED = Path(__file__).parents[4] / "benchmarks" / "results" / "route.jsonl"
QUICK = CalibrateSettings(bootstrap_rounds=0)


def calibrated(cases, **changes) -> CalibrationReport:
    settings = msgspec.structs.replace(QUICK, **changes)
    return calibrate_cases(cases, settings, dataset_sha256="d" * 64)


def learned(cases, **changes):
    settings = msgspec.structs.replace(QUICK, **changes)
    return learn(cases, settings, dataset_sha256="d" * 64, measured=False).evidence


@pytest.mark.slow
def test_the_bound_holds_through_fit_and_all_on_synthetic_cases() -> None:
    """Of 100 trials, each with a fit of its own; what is kept is judged by the known rate."""
    random = np.random.default_rng(0)
    held, enabled = 0, 0
    grid = [
        Case(id=str(i), signals={"u": float(u)}, correct=True)
        for i, u in enumerate(np.linspace(0, 1, 4001))
    ]
    for _ in range(100):
        evidence = learned(made_cases(600, int(random.integers(2**40))), signals=("u",))
        (one,) = evidence.thresholds
        if one.threshold is None:
            held += 1
            continue
        enabled += 1
        kept = risks_of(evidence.score, grid) <= one.threshold  # a rising score: up to some u
        held += true_rate(float(np.linspace(0, 1, 4001)[kept].max(initial=0))) <= 0.1
    assert held >= 95
    assert enabled >= 80


@pytest.mark.slow
def test_the_bound_holds_on_resamples_of_recorded_signals() -> None:
    """The pool is the distribution that each trial draws from, so its error rate is the true one."""
    pool = parse_cases(read_lines(RECORDED.read_bytes()))
    wrong = wrong_of(pool)
    target = float(wrong.mean()) * 0.7  # what takes a choice: less than keeping all would give
    random = np.random.default_rng(1)
    held, enabled = 0, 0
    for trial in range(100):
        drawn = [
            msgspec.structs.replace(pool[place], id=f"{trial}-{number}")
            for number, place in enumerate(random.integers(0, len(pool), len(pool)))
        ]
        evidence = learned(drawn, target_error=target)
        (one,) = evidence.thresholds
        if one.threshold is None:
            held += 1
            continue
        enabled += 1
        kept = risks_of(evidence.score, pool) <= one.threshold
        held += bool(wrong[kept].mean() <= target)
    assert held >= 95
    assert enabled >= 10


def test_what_it_proves_and_reports() -> None:
    cases = made_cases(900, 3, noise=2)
    report = calibrated(cases, bootstrap_rounds=200)
    evidence = report.evidence
    assert report.enabled
    assert (report.cases, evidence.n_fit, evidence.n_calibrate) == (900, 360, 540)
    (one,) = evidence.thresholds
    assert one.slice == "all"
    assert one.kept_wrong / one.kept < 0.1
    assert one.delta == pytest.approx(0.05)
    assert report.signals[0].signal == "u"
    telling = {signal.signal: signal for signal in report.signals}
    assert telling["u"].above_chance
    assert telling["u"].aurc_without > 0.01
    assert not telling["noise_0"].above_chance
    curves = {curve.name: curve for curve in report.curves}
    assert curves.keys() == {"combined", "random", "oracle"}  # no baseline was recorded
    assert curves["oracle"].aurc < curves["combined"].aurc < curves["random"].aurc
    assert interval(curves["combined"].aurc_interval)[0] < curves["combined"].aurc
    assert curves["combined"].risk_at["1"] == pytest.approx(
        sum(not c.correct for c in cases) / 900, abs=0.03
    )
    assert curves["random"].risk_at["0.1"] == pytest.approx(curves["random"].risk_at["1"])


def test_the_same_cases_give_the_same_evidence_in_any_order() -> None:
    cases = made_cases(300, 4, noise=3)
    one = calibrated(cases)
    other = calibrated(tuple(reversed(cases)))
    assert digest_of(one.evidence) == digest_of(other.evidence)
    assert one == other


def test_baselines_are_compared() -> None:
    random = np.random.default_rng(5)
    cases = [
        msgspec.structs.replace(
            case,
            signals={
                **case.signals,
                "entropy_mean": case.signals["u"] + 0.3 * random.normal(),
                "self_yes": float(random.random()),
            },
        )
        for case in made_cases(600, 5)
    ]
    report = calibrated(cases, bootstrap_rounds=200)
    curves = {curve.name: curve for curve in report.curves}
    assert interval(curves["self-assessment"].excess_interval)[0] > 0
    assert interval(curves["entropy-only"].excess_interval)[1] > 0
    assert curves["combined"].excess_interval is None
    assert "self_yes" not in {term.signal for term in report.evidence.score.terms}
    asked = calibrated(cases, signals=("u", "self_yes"))
    assert {term.signal for term in asked.evidence.score.terms} == {"u", "self_yes"}


def interval(found: tuple[float, float] | None) -> tuple[float, float]:
    assert found is not None
    return found


def reasons(report: CalibrationReport) -> dict[str, list[str]]:
    return {one.slice: [r.code for r in one.refusals] for one in report.evidence.thresholds}


def test_ten_cases() -> None:
    report = calibrated(made_cases(10, 6))
    assert not report.enabled
    assert reasons(report) == {"all": ["too-few-cases"]}
    assert report.refusals
    assert report.evidence.score is None
    assert report.curves == ()
    assert report.signals == ()


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_one_class(rate: float) -> None:
    report = calibrated(made_cases(200, 7, wrong_at=rate))
    assert not report.enabled
    assert reasons(report) == {"all": ["one-class"]}


def test_one_case() -> None:
    assert not calibrated(made_cases(1, 8)).enabled


def test_a_score_that_tells_nothing_is_not_enabled_even_where_all_may_be_kept() -> None:
    report = calibrated(made_cases(800, 9, wrong_at=0.04, noise=2))
    assert not report.enabled
    assert "no-better-than-chance" in reasons(report)["all"]


def test_a_target_that_is_out_of_reach() -> None:
    report = calibrated(made_cases(400, 10), target_error=0.002)
    assert reasons(report) == {"all": ["too-few-cases"]}
    hard = [
        msgspec.structs.replace(case, correct=case.correct and number % 3 != 0)
        for number, case in enumerate(made_cases(900, 10))
    ]
    report = calibrated(hard, target_error=0.05)
    assert reasons(report) == {"all": ["bound-not-reached"]}
    assert report.steps["all"][0].bound > 0.05


def test_constant_signals() -> None:
    cases = [msgspec.structs.replace(c, signals={"k": 1.0}) for c in made_cases(200, 11)]
    assert reasons(calibrated(cases)) == {"all": ["no-signals"]}


def test_a_signal_that_some_cases_lack_is_left_out_and_named() -> None:
    cases = list(made_cases(300, 12, noise=1))
    signals = dict(cases[0].signals)
    del signals["noise_0"]
    cases[0] = msgspec.structs.replace(cases[0], signals=signals)
    report = calibrated(cases)
    assert [term.signal for term in report.evidence.score.terms] == ["u"]
    assert any("noise_0" in note and "1 of 300" in note for note in report.notes)
    report = calibrated(cases, signals=("u", "nonsense"))
    assert any("nonsense" in note for note in report.notes)


def test_slices_have_thresholds_of_their_own_and_share_the_risk() -> None:
    easy = made_cases(900, 13, slices={"kind": "easy", "x": "1"})
    hard = [
        msgspec.structs.replace(case, correct=case.correct and number % 2 == 0)
        for number, case in enumerate(made_cases(900, 14, slices={"kind": "hard"}))
    ]
    few = made_cases(3, 15, slices={"kind": "few"})
    without = made_cases(5, 16)
    report = calibrated((*easy, *hard, *few, *without), slice_by="kind")
    found = {one.slice: one for one in report.evidence.thresholds}
    assert found.keys() == {"", "easy", "few", "hard"}
    assert found["easy"].threshold is not None
    assert reasons(report) == {
        "": ["slice-missing"],
        "easy": [],
        "few": ["too-few-cases"],
        "hard": ["bound-not-reached"],
    }
    # Three cases can never be tested, so two slices share what may go wrong.
    assert [one.delta for one in found.values()] == pytest.approx([0.025] * 4)
    assert sum(one.share for one in found.values()) == pytest.approx(1)
    assert sum(one.cases for one in found.values()) == report.evidence.n_calibrate


@pytest.mark.slow
def test_the_bounds_of_all_slices_hold_together() -> None:
    random = np.random.default_rng(17)
    broken = 0
    for _ in range(60):
        groups = [
            made_cases(250, int(random.integers(2**40)), slices={"k": str(k)}) for k in range(4)
        ]
        evidence = learned([c for group in groups for c in group], slice_by="k", signals=("u",))
        grid = np.linspace(0, 1, 1001)
        cases = [Case(id=str(u), signals={"u": float(u)}, correct=True) for u in grid]
        risks = risks_of(evidence.score, cases)
        broken += any(
            true_rate(float(grid[risks <= one.threshold].max(initial=0))) > 0.1
            for one in evidence.thresholds
            if one.threshold is not None
        )
    assert broken <= 3


@pytest.mark.parametrize(
    ("sizes", "tested"),
    [
        ([1000, 1000, 1000], 3),
        ([1000, 3, 3], 1),
        ([1000, 1000, 3], 2),
        # 36 cases are enough at half of 5% and not at all of it for two: both bounds or none.
        ([36, 36], 2),
        ([30, 30], 2),  # enough one by one, not together: neither is tested
        ([3, 3], 1),
        ([45, 45, 41, 41, 41], 4),
    ],
)
def test_what_may_go_wrong_is_shared_by_all_that_are_tested(sizes, tested: int) -> None:
    from edgewise.route.calibrate.bounds import least_cases
    from edgewise.route.calibrate.thresholds import shared_delta

    delta = shared_delta(
        {str(k): size for k, size in enumerate(sizes)},
        target=QUICK.target_error,
        confidence=QUICK.confidence,
    )
    assert delta == pytest.approx(0.05 / tested)
    assert sum(size >= least_cases(0.1, delta) for size in sizes) <= tested


def test_without_numpy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UnsupportedError) as caught:
        calibrated(made_cases(10, 1))
    assert caught.value.code == "numpy-missing"


def test_without_slices_the_mixture_is_named() -> None:
    report = calibrated(made_cases(300, 18, slices={"kind": "a"}))
    assert any("mixture" in note for note in report.notes)


def test_cut_answers_are_never_kept() -> None:
    cases = [
        msgspec.structs.replace(
            case,
            signals={**case.signals, "cut": float(number % 4 == 0)},
            correct=case.correct and number % 4 != 0,
        )
        for number, case in enumerate(made_cases(800, 19))
    ]
    report = calibrated(cases)
    (one,) = report.evidence.thresholds
    assert one.threshold is not None
    assert report.evidence.score.risk({"u": 0.0, "cut": 1.0}) is None
    assert one.kept <= 0.75 * one.cases


@pytest.mark.parametrize(
    "field",
    [
        {"target_error": 0.0},
        {"target_error": 1.0},
        {"target_error": float("nan")},
        {"confidence": 0.4},
        {"confidence": 1.0},
        {"fit_share": 0.0},
        {"seed": -1},
        {"bootstrap_rounds": -1},
    ],
)
def test_settings_out_of_range(field) -> None:
    with pytest.raises(InputError) as caught:
        CalibrateSettings(**field)
    assert caught.value.code == "calibration-invalid"
    assert caught.value.context["field"] in field
