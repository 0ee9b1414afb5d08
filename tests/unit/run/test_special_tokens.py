"""Control tokens in a text: the same as by looking for each, in a fraction of the time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.run.special_tokens import SpecialTokens

BITS = st.text(st.sampled_from("<|>ab[]^-\\▁\n"), max_size=8)


def one_by_one(tokens: list[str], text: str) -> list[str]:
    return [token for token in dict.fromkeys(tokens) if token and token in text]


@given(st.lists(BITS, max_size=20), st.lists(BITS, max_size=20).map("".join))
def test_it_finds_what_a_search_for_each_finds(tokens: list[str], text: str) -> None:
    assert SpecialTokens(tokens).spelled_in(text) == one_by_one(tokens, text)


def test_tokens_within_tokens_and_over_each_other_are_all_found() -> None:
    tokens = ["<ab>", "ab", "b><", "><c", "<", "zz"]
    assert SpecialTokens(tokens).spelled_in("x<ab><c") == ["<ab>", "ab", "b><", "><c", "<"]
    assert SpecialTokens(()).spelled_in("x") == []


MANY = ["<pad>", "<bos>", *(f"<unused{i}>" for i in range(6242)), *("\n" * n for n in range(2, 7))]


@pytest.mark.parametrize(
    "filling", ["some words, a <b> and \n\n", "<", "<unused", "\n", "<unused7"]
)
def test_thousands_of_tokens_take_no_time(filling: str) -> None:
    special = SpecialTokens(MANY)
    text = (filling * 20_000)[:20_000]
    started = time.perf_counter()
    found = special.spelled_in(text)
    assert time.perf_counter() - started < 1
    assert found == one_by_one(MANY, text)
