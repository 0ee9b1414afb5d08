"""Learning a classifier: what is shown is true of cases that it did not see."""

from __future__ import annotations

import math
import random

import pytest
from tests.unit.route.classify.made import cases, lines

from edgewise.errors import InputError
from edgewise.route.calibrate.cases import read_lines
from edgewise.route.calibrate.thresholds import Scored
from edgewise.route.classify import (
    ClassifierReport,
    LearnSettings,
    TaskCase,
    TaskModel,
    learn_tasks,
    parse_task_cases,
)
from edgewise.route.classify.cases import distinct
from edgewise.route.classify.evidence import TaskShown
from edgewise.route.classify.learning import _Judged, _one

STRICT = LearnSettings(target_error=0.1)


def learned(
    found: list[TaskCase], settings: LearnSettings = STRICT
) -> tuple[ClassifierReport, TaskModel | None]:
    return learn_tasks(found, settings, dataset_sha256="0" * 64)


@pytest.fixture(scope="module")
def whole() -> tuple[ClassifierReport, TaskModel]:
    report, model = learned(cases(450))
    assert model is not None
    return report, model


def test_what_is_kept_is_right_on_new_cases(whole: tuple[ClassifierReport, TaskModel]) -> None:
    report, model = whole
    assert report.enabled
    fresh = cases(1000, seed=9)
    kept = wrong = 0
    for case in fresh:
        said = model.judge(case.prompt)
        assert said is not None
        task, risk = said
        least = report.evidence.threshold(task)
        if least is not None and 1 - risk >= least:
            kept += 1
            wrong += task != case.task
    assert kept > 800
    assert wrong / kept <= 0.1


def test_the_order_of_the_file_does_not_matter() -> None:
    found = cases(80)
    shuffled = found.copy()
    random.Random(5).shuffle(shuffled)
    (report, model), (other, same) = learned(found), learned(shuffled)
    assert report == other
    assert model.to_bytes() == same.to_bytes()


def test_figures_are_of_cases_that_nothing_was_fitted_on(
    whole: tuple[ClassifierReport, TaskModel],
) -> None:
    found = whole[0].evidence
    assert found.n_fit + found.n_held == 450
    assert sum(one.cases for one in found.tasks) == found.n_held
    assert sum(one.said for one in found.tasks) == found.n_held
    assert found.right + sum(sum(row.values()) for row in found.confusion.values()) == found.n_held
    assert 0 < found.accuracy_low < found.right / found.n_held


def test_copies_are_one_case_and_never_on_both_sides() -> None:
    found = cases(80)
    copies = [TaskCase(prompt=f" {one.prompt.upper()}\u200b", task=one.task) for one in found]
    alone, several = learned(found), learned([*found, *copies, *found])
    assert several[0].evidence.duplicates == 160
    assert several[1].to_bytes() == alone[1].to_bytes()
    assert several[0].evidence.tasks == alone[0].evidence.tasks


def test_labels_that_mean_nothing_enable_nothing() -> None:
    """Names drawn by lot: nothing can be learned, and nothing is let through."""
    report, model = learned(cases(300, noise=1.0))
    assert model is not None
    assert not report.enabled


def test_the_bound_holds_over_repetitions() -> None:
    """Of thresholds learned from scores with known errors, few let more errors through."""
    settings = LearnSettings(target_error=0.1, confidence=0.8)
    broken = enabled = 0
    for seed in range(150):
        draw = random.Random(seed)

        def judged(count: int, draw: random.Random = draw) -> list[_Judged]:
            risks = [round(draw.random() * 0.49, 6) for _ in range(count)]
            return [_Judged("a" if draw.random() >= risk / 2 else "b", "a", risk) for risk in risks]

        plain = TaskShown(task="a", cases=0, said=0, right=0, precision_low=0, delta=0.2)
        found = _one(plain, judged(200), judged(200), settings)
        if found.threshold is None:
            continue
        enabled += 1
        broken += (1 - found.threshold) / 4 > 0.1  # mean of risk / 2 up to the threshold
    assert enabled > 50
    assert broken / 150 < 0.2


def test_what_is_less_likely_than_the_others_is_never_kept() -> None:
    before = [_Judged("a", "a", 0.6) for _ in range(200)]
    plain = TaskShown(task="a", cases=0, said=0, right=0, precision_low=0, delta=0.05)
    found = _one(plain, before, before, STRICT)
    assert found.threshold is None
    certain = [_Judged("a", "a", 0.2) for _ in range(200)]
    assert _one(plain, certain, certain, STRICT).threshold > 0.5
    assert Scored([math.inf], [False]).kept(1.0) == (0, 0)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([TaskCase(prompt=f"hello {word}", task="one") for word in "abcdefghij"], "one-class"),
        (cases(30), "too-few-cases"),
        ([*cases(200), TaskCase(prompt="once", task="rare")], "too-few-cases"),
    ],
    ids=["one-class", "few", "rare"],
)
def test_refusals(found: list[TaskCase], code: str) -> None:
    report, model = learned(found)
    assert model is None
    assert not report.enabled
    assert [refusal.code for refusal in report.refusals] == [code]
    assert all(one.refusals == report.refusals for one in report.evidence.tasks)


def test_few_cases_of_a_task_are_not_enough_to_show_anything() -> None:
    report, model = learned(cases(60))
    assert model is not None
    assert not report.enabled
    assert {r.code for one in report.evidence.tasks for r in one.refusals} == {"too-few-cases"}


def test_a_task_that_nothing_is_taken_for() -> None:
    plain = TaskShown(task="a", cases=9, said=0, right=0, precision_low=0, delta=0.05)
    found = _one(plain, [], [], STRICT)
    assert found.threshold is None
    assert [refusal.code for refusal in found.refusals] == ["never-said"]


@pytest.mark.parametrize(
    "change",
    [
        {"target_error": 0},
        {"target_error": 1},
        {"target_error": math.nan},
        {"confidence": 0.4},
        {"confidence": 1},
        {"fit_share": 0},
        {"seed": -1},
    ],
    ids=str,
)
def test_settings(change: dict[str, float]) -> None:
    with pytest.raises(InputError) as caught:
        LearnSettings(**change)  # type: ignore[arg-type]
    assert caught.value.code == "classifier-invalid"


def parsed(*texts: str) -> tuple[TaskCase, ...]:
    return parse_task_cases(read_lines("\n".join(texts).encode()))


def test_reading_cases() -> None:
    found = cases(50)
    assert list(parse_task_cases(read_lines(lines(found)))) == found
    one = parsed('{"prompt": "x", "task": "a"}', "", '{"prompt": "X", "task": "a", "id": "2"}')
    assert len(one) == 2
    assert distinct(one, 0).duplicates == 1


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "x"}',
        '{"task": "a"}',
        '{"prompt": "x", "task": "A"}',
        '{"prompt": "x", "task": ""}',
        '{"prompt": "x", "task": "auto"}',
        '{"prompt": "x", "task": "a\\u001b[31m"}',
        '{"prompt": "", "task": "a"}',
        '{"prompt": "\\u200b\\u202e ", "task": "a"}',
        '{"prompt": 3, "task": "a"}',
        '{"prompt": ["x"], "task": "a"}',
        '{"prompt": "x", "task": "a", "task": "b"}',
        '{"prompt": "\\ud800", "task": "a"}',
        '{"prompt": "x", "task": "a", "label": "b"}',
        '["x", "a"]',
        "x",
    ],
    ids=lambda line: line[:36].encode("ascii", "backslashreplace").decode(),
)
def test_lines_that_are_no_case(line: str) -> None:
    with pytest.raises(InputError) as caught:
        parsed('{"prompt": "y", "task": "b"}', line)
    assert caught.value.code == "case-malformed"
    assert caught.value.context["line"] == 2


@pytest.mark.parametrize("text", ["Pay 12", "pay 99", " PAY\\u200b 00 "], ids=["a", "b", "c"])
def test_a_text_with_two_tasks_is_refused(text: str) -> None:
    first, second = '{"prompt": "pay 12", "task": "a"}', f'{{"prompt": "{text}", "task": "b"}}'
    with pytest.raises(InputError) as caught:
        parsed(first, second)
    assert caught.value.code == "cases-conflicting"
    assert caught.value.context == {"line": 2, "first": 1}
    assert "pay" not in caught.value.message.lower()


def test_too_many_tasks() -> None:
    with pytest.raises(InputError, match="33 tasks"):
        parsed(*(f'{{"prompt": "{"x" * (at + 1)}", "task": "t{at}"}}' for at in range(33)))


def test_cases_of_which_nothing_is_known_count_and_are_taken_for_no_task() -> None:
    strange = [TaskCase(prompt="q" + "z" * at, task="code") for at in range(1, 41)]
    report, _ = learned([*cases(450), *strange])
    shown = report.evidence
    assert sum(one.cases for one in shown.tasks) == shown.n_held
    said = sum(one.said for one in shown.tasks)
    assert 0 < shown.n_held - said <= len(strange)
    assert shown.right <= said
    assert "" not in {name for row in shown.confusion.values() for name in row}
