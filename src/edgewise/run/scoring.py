"""Log-probabilities of a prompt's own tokens, as evaluation harnesses ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewise.core.outcome import TokenLogprob
from edgewise.run.logprobs import token_logprob
from edgewise.runtimes.protocol import VerifyingEngine

if TYPE_CHECKING:
    from edgewise.runtimes.protocol import Engine

__all__ = ["score_prompt"]

Logits = np.ndarray[Any, np.dtype[np.float32]]


def score_prompt(
    engine: Engine, tokens: Sequence[int], top: int
) -> tuple[Logits, tuple[TokenLogprob, ...]]:
    """Evaluate a prompt from an empty cache; return the last logits and every token's place.

    An engine that gives one row of logits a step evaluates token by token.

    Args:
        engine: Its cache is empty.
        tokens: At least one.
        top: Likeliest rivals of each token to report.

    Raises:
        InputError: the tokens do not fit, or one is not in the vocabulary.
        CancelledError: ``cancel`` was called.
        AdapterError: the native call failed.
    """
    spell = engine.token_bytes
    found = [TokenLogprob(id=tokens[0], data=spell(tokens[0]), logprob=None)]
    step = max(1, engine.verify_tokens) if isinstance(engine, VerifyingEngine) else 1
    last: Logits | None = None
    for start in range(0, len(tokens), step):
        chunk = list(tokens[start : start + step])
        if isinstance(engine, VerifyingEngine) and engine.verify_tokens:
            each: Sequence[Logits] = engine.verify(chunk)
        else:
            each = [engine.prefill(chunk)]
        following = tokens[start + 1 : start + 1 + len(chunk)]
        for row, token in zip(each, following, strict=False):
            found.append(token_logprob(row, token, top, spell))
        last = each[-1]
    assert last is not None
    return last, tuple(found)
