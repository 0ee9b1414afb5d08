"""Tokens of a text are counted once."""

from __future__ import annotations

from collections import Counter

from tests.unit.run.context.conversations import chat, echo, fitted, size, tokenize

from edgewise.core.request import ContextPolicy
from edgewise.run.context import TokenCounts


class Counting:
    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __call__(self, text: str) -> list[int]:
        self.seen[text] += 1
        return tokenize(text)


def test_a_text_is_tokenised_once_while_it_is_remembered() -> None:
    tokens = Counting()
    count = TokenCounts(tokens, limit=2)
    one, two, three = ("x" * 30, "y" * 31, "z" * 32)
    assert [count(one), count(two), count(one), count(three)] == [30, 31, 30, 32]
    assert count(one) == 30
    assert count(two) == 31  # the one that was not asked for the longest time is gone
    assert tokens.seen == {one: 1, two: 2, three: 1}
    assert count("a lone \ud800 surrogate is a text too".replace("\ud800", "?")) > 0


def test_texts_that_differ_in_one_character_are_two() -> None:
    count = TokenCounts(tokenize)
    assert count("é" * 30) == 60
    assert count("é" * 29 + "e") == 59


def test_a_conversation_that_grows_is_counted_turn_by_turn() -> None:
    talk = [(f"question {n:02} " + "q" * 30, f"answer {n:02} " + "a" * 30) for n in range(40)]
    tokens = Counting()
    count = TokenCounts(tokens)
    policy = ContextPolicy.SUMMARISE
    for turns in (30, 31, 32):
        messages = chat(*talk[:turns], last=talk[turns][0])
        room = size(chat(*talk[:20], last="x"))
        with_memo = fitted(messages, policy, room, summarise=echo, count=count)
        assert with_memo == fitted(messages, policy, room, summarise=echo)
    asked = [text for text in tokens.seen if text.startswith(("question", "answer"))]
    assert len(asked) == 65
    assert all(tokens.seen[text] == 1 for text in asked)
