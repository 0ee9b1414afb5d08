"""Tokens with log-probabilities in OpenAI's two shapes."""

from __future__ import annotations

import math

from edgewise.core.outcome import TokenLogprob
from edgewise.serve.spelling import chat_logprobs, completion_logprobs, spell

EURO = "\u20ac".encode()


def token(
    data: bytes, logprob: float | None = -0.5, *top: tuple[int, bytes, float]
) -> TokenLogprob:
    return TokenLogprob(id=1, data=data, logprob=logprob, top=top)


def test_chat_tokens_keep_their_bytes() -> None:
    content = chat_logprobs([token(b"a"), token(EURO[:2], -1.0, (5, EURO[:1], -2.0))]).content
    assert content[0].token == "a"
    assert bytes(content[1].bytes) == EURO[:2]
    assert content[1].top_logprobs[0].logprob == -2.0


def test_completion_tokens_stand_side_by_side() -> None:
    found = completion_logprobs([token(b"a", None), token(b"bc", -1.0, (1, b"x", -0.1))])
    assert found.tokens == ["a", "bc"]
    assert found.token_logprobs == [None, -1.0]
    assert found.top_logprobs == [None, {"x": -0.1}]
    assert found.text_offset == [0, 1]


def test_offsets_count_characters_also_where_tokens_split_them() -> None:
    pieces = [b"a", EURO[:1], EURO[1:], b"b"]
    found = completion_logprobs([token(piece) for piece in pieces])
    assert found.text_offset == [0, 1, 1, 2]
    assert found.tokens[1] == "bytes:\\xe2"
    assert spell([token(piece) for piece in pieces]) == "a\u20acb"
    assert completion_logprobs([token(b"x")], start=7).text_offset == [7]


def test_the_likelier_of_two_tokens_with_one_spelling_stays() -> None:
    found = completion_logprobs([token(b"a", -1.0, (1, b"x", -0.1), (2, b"x", -3.0))])
    assert found.top_logprobs == [{"x": -0.1}]


def test_impossible_tokens_are_numbers_that_json_has() -> None:
    assert chat_logprobs([token(b"a", -math.inf)]).content[0].logprob == -9999.0
