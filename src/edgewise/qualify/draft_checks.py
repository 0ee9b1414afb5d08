"""What must hold of a draft model beside a model, in the worker that has both loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from edgewise.core.quantity import Measured
from edgewise.qualify.checks import Check, same_logits

if TYPE_CHECKING:
    from edgewise.runtimes.protocol import Engine

__all__ = ["agrees", "changes_nothing"]

_GUESSES: Final = 4


def agrees(draft: Engine, tokens: Sequence[int], likeliest: Sequence[int]) -> Check:
    """Return whether a draft gives numbers, and how often it would guess what the model says.

    Args:
        draft: The draft model's engine.
        tokens: A text.
        likeliest: The model's likeliest token after each of them but the last.
    """
    draft.rewind(0)
    logits = draft.prefill(tokens[:1])
    finite, right = True, 0
    for token, expected in zip(tokens[1:], likeliest, strict=True):
        finite = finite and bool(np.isfinite(logits).all())
        right += int(np.argmax(logits)) == expected
        logits = draft.decode(token)
    return Check(
        name="draft-agrees",
        passed=finite,
        detail=f"it guesses the model's likeliest token at {right} of {len(likeliest)} places"
        if finite
        else "its logits are not finite",
        figure=Measured(
            value=round(right / len(likeliest), 4), source="teacher-forced", n=len(likeliest)
        ),
    )


def changes_nothing(engine: Engine, draft: Engine, tokens: Sequence[int]) -> Check:
    """Return whether the model says the same while the draft guesses and is cut back."""
    engine.rewind(0)
    engine.prefill(tokens[:-1])
    position = engine.position
    first = engine.decode(tokens[-1]).copy()
    engine.rewind(position)
    draft.rewind(0)
    logits = draft.prefill(tokens)
    for _ in range(_GUESSES):
        logits = draft.decode(int(np.argmax(logits)))
    draft.rewind(len(tokens))
    return same_logits("draft-changes-nothing", first, engine.decode(tokens[-1]))
