"""Texts are cut between characters as readers see them, never within one."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.run.context.characters import is_border
from edgewise.run.context.cutting import halves, head, tail

# One reader's character each, by family.
WHOLE = {
    "plain": ["a", "é", "日", "😀", "\n", " ", "ß"],
    "line end": ["\r\n"],
    "flag": ["🇩🇪", "🇫🇷", "🇺🇳"],
    "flag of a region": ["🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"],
    "joined": ["👩‍👩‍👧", "🏳️‍🌈", "❤️‍🔥", "👩🏽‍🚀"],
    "skin tone": ["👍🏽", "🧑🏿"],
    "key cap": ["1️⃣", "#️⃣"],
    "marks": ["e\u0301", "a\u0308\u0323", "שׁ", "ก็", "กำ"],
    "syllable": ["한", "각", "ᄒ\u1161\u11ab", "가\u11a8"],
    "conjunct": ["क्ष", "नि", "स्ते", "த்", "র্ক"],
    "prepended": ["\u0600\u0661"],
    "half width": ["ｶﾞ"],
    "non-joiner": ["क्\u200cष"[:3]],
}
CLUSTERS = [one for family in WHOLE.values() for one in family]
# A flag's letters pair up from the left, and a letter behind a virama joins in every script.
TEXTS = st.lists(st.sampled_from(CLUSTERS), max_size=30)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_there_is_no_border_in_a_character(cluster: str) -> None:
    assert not any(is_border(cluster, at) for at in range(1, len(cluster)))
    for text in (f"a{cluster}", f"。{cluster}"):
        assert is_border(text, 1)
    assert is_border(f"{cluster}.", len(cluster)) == (cluster != "\u0600")


def edges(clusters: list[str]) -> set[int]:
    return {0, *itertools.accumulate(map(len, clusters))}


def tokenize(text: str) -> list[int]:
    return list(text.encode())


def detokenize(tokens: list[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


@given(TEXTS)
def test_every_border_is_between_characters(clusters: list[str]) -> None:
    text = "".join(clusters)
    borders = {at for at in range(1, len(text)) if is_border(text, at)}
    assert borders <= edges(clusters)


@given(TEXTS, st.integers(0, 400))
def test_no_cut_is_within_a_character(clusters: list[str], count: int) -> None:
    text = "".join(clusters)
    tokens = tokenize(text)
    count = min(count, len(tokens))
    after = tail(text, tokens, count, detokenize)
    before = head(text, tokens, count, detokenize)
    assert text.endswith(after)
    assert text.startswith(before)
    assert len(text) - len(after) in edges(clusters)
    assert len(before) in edges(clusters)
    assert len(tokenize(before)) <= count <= len(tokens) - len(tokenize(after))
    first, second = halves(text)
    assert first + second == text
    assert len(first) in edges(clusters)


@given(
    st.lists(
        st.sampled_from(["🇩🇪", "🇫🇷", "👍🏽", "👩‍👩‍👧", "e\u0301", "x"]), min_size=1, max_size=30
    )
)
def test_of_flags_and_families_no_more_is_lost_than_one(clusters: list[str]) -> None:
    text = "".join(clusters)
    tokens = tokenize(text)
    for count in range(len(tokens) + 1):
        lost = len(tokens) - count - len(tokenize(tail(text, tokens, count, detokenize)))
        assert lost < max(len(one.encode()) for one in clusters)


@pytest.mark.parametrize("unit", ["🇩", "\u0301", "\u200d", "क्", "👩\u200d", "ᄀ", "\u0600"])
def test_long_runs_take_linear_time(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    tokens = tokenize(text)
    started = time.perf_counter()
    for count in (0, 1, len(tokens) // 2, len(tokens) - 1):
        tail(text, tokens, count, detokenize)
        head(text, tokens, count, detokenize)
    assert time.perf_counter() - started < 5
