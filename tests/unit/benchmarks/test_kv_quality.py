"""The KV cache page says what was measured, and what a window is made of."""

from __future__ import annotations

import json

import numpy as np
import pytest
from benchmarks.canaries import CODES, make_window, recalled
from benchmarks.kv_quality import PAGE, RESULTS, with_table


def test_the_page_is_what_the_results_give() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page


def test_no_row_is_there_twice_or_outside_the_scenario() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    scenario = results["scenario"]
    wanted = {
        (runtime, length, kv)
        for runtime in scenario["builds"]
        for length in scenario["context_lengths"]
        for kv in scenario["kv_types"][runtime][1:]
    }
    found = [(r["runtime"], r["context_length"], r["kv_type"]) for r in results["rows"]]
    assert set(found) <= wanted
    assert len(found) == len(set(found))


def characters(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


@pytest.mark.parametrize(("length", "scored"), [(700, 20), (1000, 64)])
def test_a_window_has_its_facts_before_the_scored_text_and_its_questions_after(
    length: int, scored: int
) -> None:
    window = make_window(characters, "x" * 5000, length, scored=scored)
    assert len(window.tokens) == length
    text = "".join(map(chr, window.tokens[: window.text_tokens]))
    tail = "".join(map(chr, window.tokens[window.text_tokens :]))
    assert set(text[-scored:]) == {"x"}
    for (name, code), (begin, end) in zip(CODES, window.answers, strict=True):
        fact = f"The code of the {name} door is {code}."
        assert text.count(fact) == tail.count(fact) == 1
        assert "".join(map(chr, window.tokens[begin:end])) == f" {code}"


def test_an_answer_is_recalled_where_each_of_its_tokens_is_the_likeliest() -> None:
    window = make_window(characters, "x" * 5000, 700, scored=20)
    first = window.text_tokens
    logprobs = np.full((700 - first, 128), -9.0, dtype=np.float32)
    for at in range(first, 700):
        logprobs[at - first, window.tokens[at]] = -0.5
    assert recalled(window, logprobs, first) == (len(CODES), -0.5)
    begin, _ = window.answers[3]
    logprobs[begin - first, 0] = 0.0
    assert recalled(window, logprobs, first) == (len(CODES) - 1, -0.5)
