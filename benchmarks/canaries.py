"""Facts hidden in a long text and asked for at its end: whether a cache still knows them.

Everything is teacher-forced: the digits of an answer count as recalled where each is the likeliest
token, and a wrong answer does not spoil the next question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Window", "make_window", "recalled"]

Encode = Callable[[str], tuple[int, ...]]

# (what it is called, its code); in the text and at the end in this order.
CODES = (
    ("red", "4817"),
    ("blue", "9035"),
    ("green", "2761"),
    ("black", "6148"),
    ("white", "7392"),
    ("yellow", "1580"),
    ("brown", "8264"),
    ("silver", "3906"),
)
_FACT = "\nThe code of the {name} door is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Tokens to evaluate.

    Attributes:
        tokens: The text with the facts in it, then the questions with their answers.
        text_tokens: How many of them are the text.
        answers: For each question, where the tokens of its answer begin and end.
    """

    tokens: tuple[int, ...]
    text_tokens: int
    answers: tuple[tuple[int, int], ...]


def make_window(encode: Encode, text: str, length: int, *, scored: int) -> Window:
    """Return a window of a length whose facts are spread evenly over its text.

    The last ``scored`` tokens of the text are free of facts, so that they are the text's alone.
    """
    facts = [
        (encode(_FACT.format(name=name)), encode(f" {code}"), encode(".\n")) for name, code in CODES
    ]
    tail: list[int] = []
    spans = []
    for question, answer, end in facts:
        tail += question
        spans.append((len(tail), len(tail) + len(answer)))
        tail += [*answer, *end]
    stated = [(*question, *answer, *end) for question, answer, end in facts]
    plain = length - len(tail) - sum(map(len, stated))
    words = encode(text[: length * 8])[:plain]
    assert len(words) == plain, "the text is too short for this window"
    body: list[int] = []
    step = (plain - scored) // len(stated)
    for i, fact in enumerate(stated):
        body += [*words[i * step : (i + 1) * step], *fact]
    body += words[len(stated) * step :]
    at = len(body)
    return Window(
        tokens=(*body, *tail),
        text_tokens=at,
        answers=tuple((at + begin, at + end) for begin, end in spans),
    )


def recalled(window: Window, logprobs: npt.NDArray[np.float32], first: int) -> tuple[int, float]:
    """Return how many answers are recalled whole, and the mean log-probability of their tokens.

    Args:
        window: What was evaluated.
        logprobs: Shape (positions, vocabulary): of the tokens from ``first`` on.
        first: Which token of the window the first row predicts.
    """
    whole, scores = 0, []
    for begin, end in window.answers:
        targets: Sequence[int] = window.tokens[begin:end]
        found = logprobs[begin - first : end - first]
        whole += bool((found.argmax(axis=1) == np.asarray(targets)).all())
        scores += [float(row[token]) for row, token in zip(found, targets, strict=True)]
    return whole, float(np.mean(scores))
