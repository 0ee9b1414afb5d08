"""Log-probabilities of chosen tokens, for callers that ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgewise.core.outcome import TokenLogprob

__all__ = ["token_logprob"]

Logits = np.ndarray[Any, np.dtype[np.float32]]


def token_logprob(
    logits: Logits, token: int, top: int, spell: Callable[[int], bytes]
) -> TokenLogprob:
    """Return a token's log-probability by the model's own distribution.

    Args:
        logits: Shape ``(vocab_size,)``, float32; not modified.
        token: The chosen token.
        top: How many of the likeliest tokens to add.
        spell: Gives a token's bytes.
    """
    highest = float(logits.max())
    # float64: the sum runs over the whole vocabulary, and small differences are what is read.
    norm = highest + float(np.log(np.exp(logits.astype(np.float64) - highest).sum()))
    likeliest: list[tuple[int, bytes, float]] = []
    if top:
        ids = np.argpartition(logits, len(logits) - top)[len(logits) - top :]
        ids = ids[np.argsort(-logits[ids], kind="stable")]
        likeliest = [(int(i), spell(int(i)), float(logits[i]) - norm) for i in ids]
    return TokenLogprob(
        id=token, data=spell(token), logprob=float(logits[token]) - norm, top=tuple(likeliest)
    )
