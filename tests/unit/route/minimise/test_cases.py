"""Recall and precision on the labelled cases: a floor for each kind, and the page that shows them."""

from __future__ import annotations

import pytest
from benchmarks.minimise import (
    BY_DESIGN,
    PAGE,
    RESULTS,
    figures,
    look,
    read_cases,
    read_results,
    tables,
)

# A little below what is measured, so that a change that loses a case is seen.
FLOORS = {  # kind: (recall, precision)
    "CARD": (0.95, 1.0),
    "EMAIL": (0.89, 0.97),
    "IBAN": (0.96, 1.0),
    "IDNUMBER": (0.94, 0.97),
    "IPADDR": (0.88, 1.0),
    "MACADDR": (0.75, 1.0),
    "PERSON": (0.88, 0.97),
    "PHONE": (0.92, 0.97),
    "SECRET": (0.91, 0.98),
    "URL": (0.85, 1.0),
}


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, int]]:
    found = list(look(read_cases()))
    assert len(found) >= 400
    return {row["kind"]: row for row in figures(found)}


@pytest.mark.parametrize("kind", FLOORS)
def test_each_kind_keeps_its_floor(kind: str, rows: dict[str, dict[str, int]]) -> None:
    row = rows[kind]
    recall, precision = FLOORS[kind]
    assert row["labelled"] >= 2
    assert row["covered"] >= recall * row["labelled"]
    assert row["right"] >= precision * row["replaced"]


def test_every_kind_that_is_labelled_has_a_floor(rows: dict[str, dict[str, int]]) -> None:
    assert set(rows) == {*FLOORS, *BY_DESIGN}


def test_the_committed_results_are_of_these_cases(rows: dict[str, dict[str, int]]) -> None:
    assert read_results()["kinds"] == [rows[kind] for kind in sorted(rows)]


def test_the_page_is_what_the_results_give() -> None:
    assert RESULTS.exists()
    assert tables(read_results()) in PAGE.read_text("utf-8")
