"""The distance of two sets of next-token distributions, in the worker's numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgewise.core.quantity import Measured, Unknown
from edgewise.qualify.parity_messages import Distance, Reading

__all__ = ["distance", "reading"]

# Below this difference of the two best log-probabilities a position is a near-tie.
_NEAR_TIE_NATS = 0.05
_CHUNK = 64


def distance(first_file: Path, second_file: Path, windows: tuple[tuple[int, ...], ...]) -> Distance:
    """Return how far two sets of distributions over the same windows are apart."""
    first = np.load(first_file, mmap_mode="r")
    second = np.load(second_file, mmap_mode="r")
    vocab = min(first.shape[1], second.shape[1])  # some runtimes pad the vocabulary
    targets = np.concatenate([np.asarray(window[1:]) for window in windows])
    kl, same, near = [], [], []
    losses: tuple[list[Any], list[Any]] = ([], [])
    for start in range(0, len(targets), _CHUNK):
        part = slice(start, start + _CHUNK)
        p = first[part, :vocab].astype(np.float64)
        q = second[part, :vocab].astype(np.float64)
        kl.append(np.maximum(0.0, (np.exp(p) * (p - q)).sum(axis=1)))
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
        best = np.partition(p, -2, axis=1)[:, -2:]
        near.append(best[:, 1] - best[:, 0] < _NEAR_TIE_NATS)
        rows = np.arange(len(p))
        losses[0].append(-p[rows, targets[part]])
        losses[1].append(-q[rows, targets[part]])
    return _figures(
        np.concatenate(kl), np.concatenate(same), np.concatenate(near), *map(np.concatenate, losses)
    )


def reading(divergences: list[float], same: list[bool], longest: int) -> Reading:
    """Return the figures of beginnings that were read at once, one entry for each."""
    count = len(divergences)

    def measured(value: float, words: str) -> Measured:
        return Measured(value=round(value, 6), source=f"read at once, {words}", n=count)

    return Reading(
        places=count,
        longest_tokens=longest,
        kl_mean_nats=measured(float(np.mean(divergences)), "token by token against it"),
        kl_max_nats=measured(max(divergences), "largest"),
        top1_agreement=measured(float(np.mean(same)), "same likeliest token"),
    )


def _figures(kl: Any, same: Any, near: Any, loss: Any, other_loss: Any) -> Distance:
    count = len(kl)

    def measured(value: float, source: str, n: int = count) -> Measured:
        return Measured(value=round(float(value), 6), source=source, n=n)

    clear = same[~near]
    return Distance(
        positions=count,
        top1_agreement=measured(same.mean(), "teacher-forced"),
        top1_without_near_ties=measured(
            clear.mean(), f"teacher-forced, top two over {_NEAR_TIE_NATS} nats apart", len(clear)
        )
        if len(clear)
        else Unknown(reason="every position is a near-tie"),
        kl_mean_nats=measured(kl.mean(), "teacher-forced, first against second"),
        kl_p99_nats=measured(np.percentile(kl, 99), "teacher-forced, 99th percentile"),
        kl_max_nats=measured(kl.max(), "teacher-forced, largest"),
        perplexity=measured(np.exp(loss.mean()), "teacher-forced, first"),
        other_perplexity=measured(np.exp(other_loss.mean()), "teacher-forced, second"),
    )
