"""A classifier's file: the same bytes for the same cases, and no other bytes are let in."""

from __future__ import annotations

import json
import math

import pytest
from tests.unit.route.classify.made import cases

from edgewise.errors import IntegrityError
from edgewise.route.classify import TaskModel
from edgewise.route.classify.fitting import CASES_OF_A_WORD_MIN, fit
from edgewise.route.classify.model import score_of
from edgewise.route.classify.texts import BUCKETS, features

TASKS = ("code", "letters", "sums")


def made(count: int = 150) -> TaskModel:
    return fit([(features(c.prompt), TASKS.index(c.task)) for c in cases(count)], TASKS)


@pytest.fixture(scope="module")
def model() -> TaskModel:
    return made()


def test_it_tells_the_tasks_apart(model: TaskModel) -> None:
    fresh = cases(300, seed=2)
    said = [model.judge(case.prompt) for case in fresh]
    right = sum(one is not None and one[0] == c.task for one, c in zip(said, fresh, strict=True))
    assert right > 290


def test_the_file_gives_the_same_model(model: TaskModel) -> None:
    data = model.to_bytes()
    read = TaskModel.from_bytes(data)
    assert read.to_bytes() == data
    assert read.sha256 == model.sha256
    for case in cases(20, seed=3):
        assert read.judge(case.prompt) == model.judge(case.prompt)


def test_the_same_cases_give_the_same_bytes(model: TaskModel) -> None:
    assert made().to_bytes() == model.to_bytes()


def test_a_text_that_has_nothing_gets_no_task(model: TaskModel) -> None:
    assert model.judge("\u200b") is None


def test_a_text_in_which_nothing_is_known_gets_no_task(model: TaskModel) -> None:
    assert model.judge("zebra") is None
    assert model.judge("zebra pears") is not None


def test_a_word_of_few_cases_leaves_no_trace() -> None:
    plain = [(features(c.prompt), TASKS.index(c.task)) for c in cases(60)]
    rare = "xylophonist7"
    some = cases(60)
    for at in range(CASES_OF_A_WORD_MIN - 1):
        some[at] = type(some[at])(prompt=f"{some[at].prompt} {rare}", task=some[at].task)
    marked = [(features(c.prompt), TASKS.index(c.task)) for c in some]
    rows = json.loads(fit(marked, TASKS).to_bytes())["weights"]
    own = {b for f, _ in marked for b in f} - {b for f, _ in plain for b in f}
    assert own
    read = TaskModel.from_bytes(fit(marked, TASKS).to_bytes())
    assert all(row[bucket] == 0 for row in read._rows for bucket in own)
    assert len(rows) == len(TASKS)


def test_the_order_of_scores_is_that_of_risks_turned_round() -> None:
    risks = [at / 1e6 for at in range(0, 1_000_000, 997)]
    scores = [score_of(round(risk, 6)) for risk in risks]
    assert scores == sorted(set(scores), reverse=True)


def altered(model: TaskModel, **changes: object) -> bytes:
    return json.dumps(json.loads(model.to_bytes()) | changes).encode()


@pytest.mark.parametrize(
    "change",
    [
        {"bias": [math.nan, 0, 0]},
        {"bias": [math.inf, 0, 0]},
        {"bias": [0.5, 0, 0]},
        {"bias": [2**40, 0, 0]},
        {"bias": [0, 0]},
        {"weights": []},
        {"weights": ["AAAA"] * 3},
        {"weights": ["AAAA!"] * 3},
        {"tasks": ["code", "code", "sums"]},
        {"tasks": ["code"]},
        {"tasks": ["code", "letters", "../../x"]},
        {"tasks": ["code", "letters", 3]},
        {"schema_version": 2},
        {"form": "hashed-words-9"},
        {"more": 1},
    ],
    ids=lambda change: json.dumps(change)[:40],
)
def test_other_files_are_refused(model: TaskModel, change: dict[str, object]) -> None:
    with pytest.raises(IntegrityError) as caught:
        TaskModel.from_bytes(altered(model, **change))
    assert caught.value.code == "task-model-invalid"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"null", b"[" * 100_000, b"{}"],
    ids=["empty", "cut", "bytes", "null", "deep", "nothing"],
)
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        TaskModel.from_bytes(data)


def test_every_cut_of_a_file_is_refused(model: TaskModel) -> None:
    data = model.to_bytes()
    for end in range(0, len(data), 2 * BUCKETS + 1):
        with pytest.raises(IntegrityError):
            TaskModel.from_bytes(data[:end])
