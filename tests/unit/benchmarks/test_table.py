"""The README's benchmark table is the one that the committed results give."""

from __future__ import annotations

import json
import statistics

from benchmarks.table import MEMORY_RESULTS, README, RESULTS, make_table, with_tables


def test_the_readme_has_not_drifted_from_the_results() -> None:
    readme = README.read_text(encoding="utf-8")
    assert with_tables(readme) == readme


def test_the_table_shows_the_median() -> None:
    _, *trials, _ = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    rates = [t["decode_tok_s"] for t in trials if t["contender"] == "edgewise"]
    assert f"| {statistics.median(rates):.0f} (" in make_table()


def test_every_contender_did_the_same_work() -> None:
    header, *trials, overhead = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert len(overhead["pairs"]) == header["scenario"]["overhead_pairs"]
    assert {t["tokens"] for t in trials} == {header["scenario"]["decode_tokens"]}
    names = [c["name"] for c in header["scenario"]["contenders"]]
    # In turn: A B C D A B C D ...
    assert [t["contender"] for t in trials] == names * header["scenario"]["rounds"]


def test_every_plan_is_within_a_tenth_of_the_measurement() -> None:
    lines = [json.loads(line) for line in MEMORY_RESULTS.read_text().splitlines()]
    combinations = {(line["model"], line["context_length"], line["kv_type"]) for line in lines}
    assert len(combinations) == 12
    for line in lines:
        assert 0.9 <= line["ratio"] <= 1.1, line
