"""A draft model: a smaller one beside the model, with its vocabulary and a context of its own.

Before each proposal its context is brought to what the conversation is now, by comparing tokens:
whatever happened to the conversation meanwhile (a guess refused, a state restored, turns left out,
a cancel) needs no word to it.

What is learned of it outlives an answer: what its steps cost, how often tokens stood that it was
as sure of, and how much may yet be lost by it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgewise.run.prefixes import shared_length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgewise.runtimes.protocol import Engine

__all__ = ["BALANCE", "DraftModel", "Logits", "averaged", "likeliest"]

Logits = np.ndarray[Any, np.dtype[np.float32]]

_LEARN: Final = 0.2
_TRUST_MAX: Final = 0.97
_TYPICAL: Final = 0.75
# How sure the draft is of a token, and what that is worth at first: guesses that stood and that
# did not, as if they had been seen.
_PRIORS: Final = (
    (0.95, 3.8, 0.2),
    (0.85, 3.5, 0.5),
    (0.7, 3.1, 0.9),
    (0.5, 2.4, 1.6),
    (0.3, 1.6, 2.4),
    (0.0, 0.8, 3.2),
)
_FADE: Final = 0.97
# What may be lost at once, in the model's own steps.
BALANCE: Final = 3.0
_ANSWER_TOKENS: Final = 64.0
# Fewer tokens at once cost neither as a step nor, each, as one of a longer piece.
_PIECE_TOKENS: Final = 8


@dataclass(slots=True)
class DraftModel:
    """A loaded draft, what its context holds, and what was learned about it in this process.

    Attributes:
        engine: Evaluates tokens.
        size_ratio: Its artifact's size over the model's: what its steps are taken to cost before
            one was measured.
        failed: Why it is not used any more; empty while it is.
        step_s: Seconds of a step, ``None`` before the first.
        token_s: Seconds for each token of a longer piece, ``None`` before the first.
        answer_tokens: How long answers are here, on average.
        balance: What may be lost yet, in the model's steps.
        typical: The chance that its next token stands, before it has said which.
        gain: What a proposal has gained for each token it gave; ``None`` before one.
        held: What its context holds.
    """

    engine: Engine
    size_ratio: float
    failed: str = ""
    step_s: float | None = None
    token_s: float | None = None
    answer_tokens: float = _ANSWER_TOKENS
    balance: float = BALANCE
    typical: float = _TYPICAL
    gain: float | None = None
    held: list[int] = field(default_factory=list)
    _seen: list[list[float]] = field(
        default_factory=lambda: [[stood, fell] for _, stood, fell in _PRIORS]
    )

    def missing(self, history: list[int]) -> int:
        """Return how many tokens of a conversation it has to evaluate; the last one always."""
        return len(history) - shared_length(self.held, history)

    def follow(self, history: list[int]) -> Logits:
        """Bring its context to a conversation; return the logits after it.

        Raises:
            EdgewiseError: its runtime failed.
            CancelledError: the answer was cancelled.
        """
        shared = shared_length(self.held, history)
        if shared < len(self.held):
            self.engine.rewind(shared)
            del self.held[shared:]
        return self.evaluate(history[shared:])

    def evaluate(self, tokens: Sequence[int]) -> Logits:
        """Evaluate more tokens; return the logits after them. Errors as :meth:`follow`'s."""
        started = time.perf_counter()
        try:
            engine, one = self.engine, len(tokens) == 1
            logits = engine.decode(tokens[0]) if one else engine.prefill(tokens)
        except BaseException:
            del self.held[self.engine.position :]  # it may have lost some
            raise
        seconds = time.perf_counter() - started
        if one:
            self.step_s = averaged(self.step_s, seconds)
        elif len(tokens) >= _PIECE_TOKENS:
            self.token_s = averaged(self.token_s, seconds / len(tokens))
        self.held += tokens
        return logits

    def said(self, level: int) -> float:
        """Take note of how sure it was of a token; return the chance that it stands."""
        trust = self.trust(level)
        self.typical += _LEARN * (trust - self.typical)
        return trust

    def trust(self, level: int) -> float:
        """Return how often tokens stand that it is this sure of."""
        stood, fell = self._seen[level]
        return min(_TRUST_MAX, stood / (stood + fell))

    def learn(self, level: int, *, stood: bool) -> None:
        """Take note of what became of a token."""
        seen = self._seen[level]
        seen[0] = _FADE * seen[0] + stood
        seen[1] = _FADE * seen[1] + (not stood)

    def answered(self, tokens: int) -> None:
        """Take note of an answer's length."""
        self.answer_tokens += _LEARN * (tokens - self.answer_tokens)


def likeliest(logits: Logits) -> tuple[int, int]:
    """Return the likeliest token, and the level of how sure that is."""
    token = int(logits.argmax())
    with np.errstate(under="ignore"):
        sure = 1.0 / float(np.exp(logits - logits[token]).sum())
    # No number is as unsure as it gets.
    return token, next((i for i, (least, _, _) in enumerate(_PRIORS) if sure >= least), -1)


def averaged(before: float | None, now: float) -> float:
    """Return a running average; the first value is taken as it is."""
    return now if before is None else before + _LEARN * (now - before)
