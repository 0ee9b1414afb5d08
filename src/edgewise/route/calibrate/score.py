"""The score: from the signals of an answer to one number, the same here and on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from edgewise.errors import InputError

__all__ = ["STANDARD_MAX", "ScoreDefinition", "Term", "never_kept"]

# Beyond it a standardised signal counts as this much: a linear score knows nothing out there.
STANDARD_MAX: Final = 5.0


def never_kept(signals: Mapping[str, float]) -> str | None:
    """Return why an answer is not kept whatever its score, in words; ``None`` for others.

    The rule is the same while calibrating, so that the bound is of the answers it leaves.
    """
    if signals.get("cut", 0.0) >= 0.5:
        return "the answer did not come to its end"
    if signals.get("invalid", 0.0) >= 0.5:
        return "the answer does not have its form"
    return None


class Term(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One signal in a score.

    Attributes:
        signal: Its name.
        mean: Its mean over the cases that were fitted on.
        scale: Its standard deviation there, above 0.
        weight: What one standard deviation adds to the log-odds of being wrong.
    """

    signal: str
    mean: float
    scale: float
    weight: float

    def __post_init__(self) -> None:
        numbers = (self.mean, self.scale, self.weight)
        if not (all(map(math.isfinite, numbers)) and self.scale > 0):
            raise InputError(
                "calibration-invalid",
                f"the term of {self.signal[:80]!r} has no finite numbers, or no scale above 0",
                hint="calibrate again",
            )


class ScoreDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A logistic score: the estimated probability that an answer is wrong.

    Attributes:
        kind: ``logistic``.
        intercept: Log-odds of being wrong where all signals are at their means.
        terms: The signals that count.
        penalty: The ridge penalty that was chosen.
    """

    kind: str = "logistic"
    intercept: float
    terms: tuple[Term, ...]
    penalty: float

    def risk(self, signals: Mapping[str, float]) -> float | None:
        """Return the score, 0 to 1; ``None`` for an answer that cannot be kept.

        That is one of :func:`never_kept`, one without a signal that the score needs, or one
        whose score is no number.

        Args:
            signals: By name; those that the score does not use are ignored.
        """
        if never_kept(signals) is not None:
            return None
        logit = self.intercept
        for term in self.terms:
            value = signals.get(term.signal)
            if value is None or not math.isfinite(value):
                return None
            standard = (float(value) - term.mean) / term.scale
            logit += term.weight * min(max(standard, -STANDARD_MAX), STANDARD_MAX)
        if not math.isfinite(logit):  # weights so large that their sum is no number
            return None
        return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0
