"""Guessing what comes next from what has been said before, when that pays.

Copies, edits and extractions repeat long runs of their prompt. When the last tokens occurred
before, the tokens that followed them are guessed and verified together in one pass. A pass over
several tokens costs more than one over a single token, and how much more differs by device and
model; so the cost is learned as it goes, and a guess is made only when its expected gain exceeds
it (the expected number of accepted tokens of Leviathan, Kalman & Matias 2023, section 3.1).

How far a match is trusted depends on its length and on what became of the guesses before. Guesses
are bought on credit: an answer may lose a few steps to wrong ones, and more only after right ones
have gained them. So a text that repeats itself by chance loses next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from edgewise.core.outcome import GuessSource

__all__ = ["PassCosts", "PromptLookup"]

_MATCH_TOKENS: Final = 4
_SIZES: Final = (1, 3, 7, 15)
_LEARN: Final = 0.2
# A pass must promise this much before it is tried: guesses are made on averages.
_WORTH: Final = 1.05
# What a match of at least so many tokens is worth at first: accepted and failed guesses, as if
# they had been seen. From copies, edits, extractions and free text of a small model.
_PRIORS: Final = ((16, 30.0, 1.0), (8, 10.0, 1.0), (5, 5.0, 1.0), (0, 2.0, 1.0))
_MATCH_MAX: Final = 16
_TRUST_MAX: Final = 0.98
# Steps that an answer may lose: at once, and for each token it has; for the longest matches, which
# are seldom wrong, some more.
_CREDIT: Final = 1.6
_CREDIT_PER_TOKEN: Final = 0.012
_OVERDRAFT: Final = 4.0


@dataclass(slots=True)
class PassCosts:
    """What verifying costs on this engine, in passes over a single token.

    Attributes:
        slope: Cost of each token after the first, where a size was not seen yet; the start is
            typical of a laptop's processor.
        single_s: Seconds of a pass over one token, ``None`` before the first.
        exact: Whether passes over several tokens give the very logits that passes over single
            ones give, by the bits of the cache's length: kernels change with it.
    """

    slope: float = 0.45
    single_s: float | None = None
    exact: dict[int, bool] = field(default_factory=dict)
    _slopes: dict[int, float] = field(default_factory=dict)

    def single(self, seconds: float) -> None:
        """Learn from a pass over one token."""
        before = self.single_s
        self.single_s = seconds if before is None else before + _LEARN * (seconds - before)

    def several(self, tokens: int, seconds: float) -> None:
        """Learn from a pass over several tokens."""
        if self.single_s:
            seen = min(4.0, max(0.0, (seconds / self.single_s - 1) / (tokens - 1)))
            before = self._slopes.get(tokens, self.slope)
            self._slopes[tokens] = before + _LEARN * (seen - before)
            self.slope += _LEARN / 2 * (seen - self.slope)

    def of(self, tokens: int) -> float:
        """Return what a pass over so many tokens costs."""
        return 1 + self._slopes.get(tokens, self.slope) * (tokens - 1)

    def gain(self, guesses: int, trust: float) -> float:
        """Return how many single steps' worth of tokens a pass gives for each step it costs."""
        expected = (1 - trust ** (guesses + 1)) / (1 - trust)
        return expected / self.of(guesses + 1)


class PromptLookup:
    """Guesses by looking the last tokens up in everything before them.

    Not thread-safe. ``extend`` is called with every token of the answer, ``guess`` whenever a
    next pass is due, ``learn`` with what became of a guess.
    """

    def __init__(self, prompt: list[int], costs: PassCosts) -> None:
        """Index the prompt."""
        self._tokens = list(prompt)
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = _MATCH_TOKENS
        self._costs = costs
        self._seen = [[accepted, failed] for _, accepted, failed in _PRIORS]
        self._level = 0
        self._credit = _CREDIT
        self._guessed = self._accepted = self._steps = 0
        self._off = ""
        self._index()

    def extend(self, token: int) -> None:
        """Take a token of the answer."""
        self._tokens.append(token)
        self._credit += _CREDIT_PER_TOKEN

    def guess(self, most: int) -> list[int]:
        """Return guesses for the next tokens, at most ``most``; empty when it does not pay."""
        self._index()
        at = self._ends.get(tuple(self._tokens[-_MATCH_TOKENS:]))
        if at is None or most < 1:
            return []
        length = self._match_length(at)
        self._level = next(i for i, (least, _, _) in enumerate(_PRIORS) if length >= least)
        size = self._size(*self._seen[self._level])
        return self._tokens[at : at + min(size, most)]

    def _size(self, accepted: float, failed: float) -> int:
        """Return how many guesses promise most among those that can be afforded; 0 for none."""
        trust = min(_TRUST_MAX, accepted / (accepted + failed))
        credit = self._credit + (0 if self._level else _OVERDRAFT)
        affordable = [size for size in _SIZES if self._costs.of(size + 1) - 1 <= credit]
        gains = [(self._costs.gain(size, trust), size) for size in affordable]
        best, size = max(gains, default=(0.0, 0))
        return size if best >= _WORTH else 0

    def learn(self, guessed: int, accepted: int) -> None:
        """Take note of how many guesses were right."""
        self._guessed += guessed
        self._accepted += accepted
        self._steps += 1
        self._credit += accepted + 1 - self._costs.of(guessed + 1)
        # Each accepted guess is a success, the first wrong one a failure; old ones fade.
        seen = self._seen[self._level]
        seen[0] = 0.9 * seen[0] + accepted
        seen[1] = 0.9 * seen[1] + (accepted < guessed)

    def give_up(self, why: str) -> None:
        """Guess no more in this answer."""
        self._off = why

    def result(self) -> GuessSource | None:
        """Return what guessing came to, ``None`` when there was no guess and no reason not to."""
        if not self._steps and not self._off:
            return None
        return GuessSource(
            source="lookup",
            guessed=self._guessed,
            accepted=self._accepted,
            steps=self._steps,
            off=self._off,
        )

    def _index(self) -> None:
        """Note where each run of tokens ended last; the newest run is left out, to match it."""
        tokens = self._tokens
        for end in range(self._indexed, len(tokens)):
            self._ends[tuple(tokens[end - _MATCH_TOKENS : end])] = end
        self._indexed = max(self._indexed, len(tokens))

    def _match_length(self, at: int) -> int:
        tokens, length = self._tokens, 0
        while length < _MATCH_MAX and at - 1 - length >= 0:
            if tokens[at - 1 - length] != tokens[-1 - length]:
                break
            length += 1
        return length
