"""The checks of a draft model see one that gives no numbers, and one that disturbs the model."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgewise.qualify.draft_checks import agrees, changes_nothing

TOKENS = [1, 2, 3, 4]


class _Counting:
    """An engine whose likeliest token is the last one plus ``step``."""

    def __init__(
        self, step: int = 1, value: float = 1.0, disturbs: _Counting | None = None
    ) -> None:
        self.step, self.value, self.disturbs = step, value, disturbs
        self.position = 0

    def _said(self, token: int) -> np.ndarray:
        logits = np.zeros(16, dtype=np.float32)
        logits[(token + self.step) % 16] = self.value
        return logits

    def prefill(self, tokens) -> np.ndarray:
        self.position += len(tokens)
        return self._said(tokens[-1])

    def decode(self, token: int) -> np.ndarray:
        self.position += 1
        if self.disturbs is not None:
            self.disturbs.value += 1
        return self._said(token)

    def rewind(self, position: int) -> None:
        self.position = position


def engine(**fields: Any) -> Any:
    return _Counting(**fields)


def test_how_often_it_says_what_the_model_says_is_counted() -> None:
    right = agrees(engine(), TOKENS, [2, 3, 9])
    assert right.passed
    assert right.figure.number == round(2 / 3, 4)
    useless = agrees(engine(step=5), TOKENS, [2, 3, 4])
    assert useless.passed  # it costs time, and changes no answer
    assert useless.figure.number == 0


def test_numbers_that_are_none_fail() -> None:
    broken = agrees(engine(value=float("nan")), TOKENS, [2, 3, 4])
    assert not broken.passed
    assert "not finite" in broken.detail


def test_a_draft_that_disturbs_the_model_fails() -> None:
    model = engine()
    assert changes_nothing(model, engine(), TOKENS).passed
    assert not changes_nothing(model, engine(disturbs=model), TOKENS).passed
