"""Fitting a classifier in plain Python: the same cases in the same order give the same numbers.

Multinomial logistic regression by stochastic gradient descent with falling steps. A bucket that
fewer than three cases fill has no weight: it would fit those cases alone, and a word that stands
in one text only (a name, a number) leaves no trace in the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from edgewise.route.classify.model import TaskModel, quantised
from edgewise.route.classify.texts import BUCKETS

__all__ = ["CASES_OF_A_WORD_MIN", "Seen", "fit"]

CASES_OF_A_WORD_MIN: Final = 3
# Chosen on cases from public sets, 2026-12-01: twice as many rounds changed no digit of accuracy.
_ROUNDS: Final = 8
_STEP: Final = 4.0
_BIAS_STEP: Final = 0.04
_NEGLIGIBLE: Final = 0.01

Seen = tuple[tuple[int, ...], int]
"""Features of a case, and the place of its task."""


def fit(cases: Sequence[Seen], tasks: Sequence[str]) -> TaskModel:
    """Return a classifier of the cases.

    Args:
        cases: Each with at least one feature; their order counts.
        tasks: Names of the classes.
    """
    width = range(len(tasks))
    filled = [0] * BUCKETS
    for seen, _ in cases:
        for bucket in seen:
            filled[bucket] += 1
    weights = [[0.0] * len(tasks) for _ in range(BUCKETS)]
    bias = [0.0] * len(tasks)
    prepared = [
        (
            [weights[at] for at in seen if filled[at] >= CASES_OF_A_WORD_MIN],
            own,
            1 / math.sqrt(len(seen)),
        )
        for seen, own in cases
    ]
    for turn in range(_ROUNDS):
        fall = 1 + turn / 2
        for rows, own, length in prepared:
            logits = [bias[k] + length * sum([row[k] for row in rows]) for k in width]
            most = max(logits)
            shares = [math.exp(logit - most) for logit in logits]
            total = sum(shares)
            for k in width:
                error = shares[k] / total - (k == own)
                if abs(error) < _NEGLIGIBLE:
                    continue
                bias[k] -= _BIAS_STEP / fall * error
                change = _STEP / fall * error * length
                for row in rows:
                    row[k] -= change
    return TaskModel(
        tasks, quantised(bias), [quantised([row[k] for row in weights]) for k in width]
    )
