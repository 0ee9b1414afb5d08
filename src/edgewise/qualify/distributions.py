"""Next-token distributions as numbers; needs numpy, so it is imported in workers only."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["kl_nats", "log_softmax"]


def log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the log-probabilities of logits, ``(vocab_size,)``, in float64."""
    shifted = logits.astype(np.float64) - float(logits.max())
    total: float = np.log(np.exp(shifted).sum())
    return np.subtract(shifted, total)


def kl_nats(reference: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Return ``sum p (log p - log q)`` of two log-probability vectors, ``reference`` as ``p``."""
    return float((np.exp(reference) * (reference - other)).sum())
