"""From logits to the next token.

Order of the rules: temperature, then top-k, then min-p, then top-p, each on what the one before
left, as llama.cpp's default chain does with temperature moved to the front. The generator is
PCG64, so a seed gives the same draws on every platform; the logits may still differ between
instruction sets.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgewise.core.request import Sampling

__all__ = ["Sampler"]

Logits = np.ndarray[Any, np.dtype[np.float32]]


class Sampler:
    """Chooses tokens by one set of rules, with a generator of its own."""

    def __init__(self, sampling: Sampling) -> None:
        self._rules = sampling
        self._greedy = sampling.temperature == 0
        self._random = None if self._greedy else np.random.default_rng(sampling.seed)

    def __call__(self, logits: Logits) -> int:
        """Return the chosen token id.

        Args:
            logits: Shape ``(vocab_size,)``, float32; not modified.
        """
        if self._random is None:
            return int(logits.argmax())
        ids, probabilities = self.distribution(logits)
        cumulative = probabilities.cumsum()
        place = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(ids[min(int(place), len(ids) - 1)])

    def distribution(self, logits: Logits) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the ids that may be drawn, most likely first, and their probabilities.

        Args:
            logits: Shape ``(vocab_size,)``, float32.

        Returns:
            ids, shape ``(n,)``, and probabilities, shape ``(n,)``, float64, summing to 1.
        """
        rules = self._rules
        ids = self._candidates(logits)
        scaled = logits[ids].astype(np.float64)
        scaled -= scaled[0]  # before dividing, so that a tiny temperature cannot overflow
        scaled /= rules.temperature
        weights = np.exp(scaled)
        if rules.min_p > 0:
            keep = int(np.count_nonzero(weights >= rules.min_p))
            ids, weights = ids[:keep], weights[:keep]
        weights /= weights.sum()
        if rules.top_p < 1:
            keep = int(np.searchsorted(weights.cumsum(), rules.top_p, side="left")) + 1
            ids, weights = ids[:keep], weights[:keep]
            weights /= weights.sum()
        return ids, weights

    def _candidates(self, logits: Logits) -> np.ndarray[Any, Any]:
        k = self._rules.top_k
        if 0 < k < len(logits):
            ids = np.argpartition(logits, len(logits) - k)[len(logits) - k :]
            return ids[np.argsort(-logits[ids], kind="stable")]
        return np.argsort(-logits, kind="stable")
