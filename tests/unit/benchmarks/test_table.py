"""The README's benchmark table is the one that the committed results give."""

from __future__ import annotations

import json
import statistics

from benchmarks.table import README, RESULTS, make_table, with_table


def test_the_readme_has_not_drifted_from_the_results() -> None:
    readme = README.read_text(encoding="utf-8")
    assert with_table(readme) == readme


def test_the_table_shows_the_median() -> None:
    _, *trials = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    rates = [t["decode_tok_s"] for t in trials if t["contender"] == "edgewise"]
    assert f"| {statistics.median(rates):.0f} (" in make_table()


def test_every_contender_did_the_same_work() -> None:
    header, *trials = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert {t["tokens"] for t in trials} == {header["scenario"]["decode_tokens"]}
    names = [c["name"] for c in header["scenario"]["contenders"]]
    # In turn: A B C D A B C D ...
    assert [t["contender"] for t in trials] == names * header["scenario"]["rounds"]
