"""Guessing what comes next from what has been said before, when that pays.

Copies, edits and extractions repeat long runs of their prompt. When the last tokens occurred
before, the tokens that followed them are guessed and verified together in one pass. A pass over
several tokens costs more than one over a single token, and how much more differs by device and
model; so the cost is learned as it goes, and a guess is made only when its expected gain exceeds
it (the expected number of accepted tokens of Leviathan, Kalman & Matias 2023, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edgewise.core.outcome import Speculation

__all__ = ["PassCosts", "PromptLookup"]

_MATCH_TOKENS: Final = 4
_SIZES: Final = (3, 7, 15)
_LEARN: Final = 0.2
# A pass must promise this much before it is tried: guesses are made on averages.
_WORTH: Final = 1.15
_TRUST_START: Final = 0.7
_TRUST_MIN: Final = 0.05
# A match this long is tried again although short ones have disappointed.
_LONG_MATCH: Final = 12
_TRUST_LONG: Final = 0.85


@dataclass(slots=True)
class PassCosts:
    """What verifying costs on this engine: ``1 + slope * (tokens - 1)`` single steps.

    Attributes:
        slope: Learned; the start is typical of a laptop's processor.
        single_s: Seconds of a pass over one token, ``None`` before the first.
        exact: Whether passes over several tokens give the very logits that passes over single
            ones give; ``None`` before it was tried.
    """

    slope: float = 0.45
    single_s: float | None = None
    exact: bool | None = None

    def single(self, seconds: float) -> None:
        """Learn from a pass over one token."""
        before = self.single_s
        self.single_s = seconds if before is None else before + _LEARN * (seconds - before)

    def several(self, tokens: int, seconds: float) -> None:
        """Learn from a pass over several tokens."""
        if self.single_s:
            seen = max(0.0, (seconds / self.single_s - 1) / (tokens - 1))
            self.slope += _LEARN * (min(seen, 4.0) - self.slope)

    def gain(self, guesses: int, trust: float) -> float:
        """Return how many single steps' worth of tokens a pass gives for each step it costs."""
        expected = (1 - trust ** (guesses + 1)) / (1 - trust)
        return expected / (1 + self.slope * guesses)


class PromptLookup:
    """Guesses by looking the last tokens up in everything before them.

    Not thread-safe. ``extend`` is called with every token of the answer, ``guess`` whenever a
    next pass is due, ``learn`` with what became of a guess.
    """

    method: Final = "prompt-lookup"

    def __init__(self, prompt: list[int], costs: PassCosts) -> None:
        """Index the prompt."""
        self._tokens = list(prompt)
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = _MATCH_TOKENS
        self._costs = costs
        self._trust = _TRUST_START
        self._guessed = self._accepted = self._steps = 0
        self._off = ""
        self._index()

    def extend(self, token: int) -> None:
        """Take a token of the answer."""
        self._tokens.append(token)

    def guess(self, most: int) -> list[int]:
        """Return guesses for the next tokens, at most ``most``; empty when it does not pay."""
        self._index()
        at = self._ends.get(tuple(self._tokens[-_MATCH_TOKENS:]))
        if at is None or most < 1:
            return []
        trust = self._trust
        if trust < _TRUST_LONG and self._match_length(at) >= _LONG_MATCH:
            trust = _TRUST_LONG
        best, size = max((self._costs.gain(size, trust), size) for size in _SIZES)
        if best < _WORTH:
            return []
        return self._tokens[at : at + min(size, most)]

    def learn(self, guessed: int, accepted: int) -> None:
        """Take note of how many guesses were right."""
        self._guessed += guessed
        self._accepted += accepted
        self._steps += 1
        # Each accepted guess is a success, the first wrong one a failure.
        for _ in range(accepted):
            self._trust += _LEARN * (0.98 - self._trust)
        if accepted < guessed:
            self._trust += 2 * _LEARN * (_TRUST_MIN - self._trust)

    def give_up(self, why: str) -> None:
        """Guess no more in this answer."""
        self._off = why

    def result(self) -> Speculation | None:
        """Return what guessing came to, ``None`` when there was no guess and no reason not to."""
        if not self._steps and not self._off:
            return None
        return Speculation(
            method=self.method,
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
        while length < _LONG_MATCH and at - 1 - length >= 0:
            if tokens[at - 1 - length] != tokens[-1 - length]:
                break
            length += 1
        return length
