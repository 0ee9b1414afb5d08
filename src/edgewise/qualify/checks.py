"""One check of the smoke qualification; nothing heavy is imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from edgewise.core.quantity import Measured, Quantity, Unknown

if TYPE_CHECKING:
    import numpy as np

__all__ = ["SERVICE", "Check", "same_logits"]

SERVICE = "edgewise.qualify.service:SmokeService"


class Check(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check: its name, whether it passed, what was seen, and the figure behind it."""

    name: str
    passed: bool
    detail: str
    figure: Quantity = Unknown(reason="the check has no figure")


def same_logits(name: str, first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> Check:
    """Return a check that passes where two rows of logits are the same to the last bit."""
    difference = float(abs(first - second).max())
    return Check(
        name=name,
        passed=difference == 0.0,
        detail="the logits are identical" if difference == 0 else "the logits differ",
        figure=Measured(value=difference, source="largest difference of two logits"),
    )
