"""Values that carry how they are known: measured, estimated, declared, or unknown.

Invariants: a number is finite; a source is never empty; a measured value says how many
samples stand behind it. The four kinds are distinct types so that mypy, a reader and the JSON
(field ``kind``) can all tell them apart. No arithmetic happens here: combining values of
different kinds is the caller's decision, and the result is at best an estimate.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import msgspec

from edgewise.errors import InputError

__all__ = ["Declared", "Estimated", "Known", "Measured", "Quantity", "Scalar", "Unknown"]

Scalar: TypeAlias = bool | int | float | str | tuple[str, ...]


class _Fact(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    value: Scalar
    source: str

    def __post_init__(self) -> None:
        if not _finite(self.value):
            raise InputError(
                "value-not-finite", f"{self.value!r} is not a value (from {self.source})"
            )
        if not self.source:
            raise InputError("value-without-source", f"the value {self.value!r} names no source")

    @property
    def number(self) -> float:
        """Return the value as a float.

        Raises:
            InputError: the value is text or a flag.
        """
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise InputError("value-not-a-number", f"{self.value!r} is not a number")
        return float(self.value)


def _finite(value: Scalar) -> bool:
    """Whether a value is text, or a number that a float can hold."""
    if not isinstance(value, int | float):
        return True
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


class Measured(_Fact, frozen=True, kw_only=True, tag="measured", omit_defaults=True):
    """Read or timed on the device that ``device`` names.

    Attributes:
        n: Samples behind the value.
        spread: Half the range between the quartiles, in the value's own unit.
        device: Digest of the device profile, where one was taken.
    """

    n: int = 1
    spread: float | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        _Fact.__post_init__(self)
        if self.n < 1:
            raise InputError("value-without-samples", f"a value measured {self.n} times")
        if self.spread is not None and not (_finite(self.spread) and self.spread >= 0):
            raise InputError(
                "value-not-finite", f"{self.spread!r} is not a spread (from {self.source})"
            )


class Estimated(_Fact, frozen=True, kw_only=True, tag="estimated"):
    """Computed from other values; ``source`` names the formula or the model."""


class Declared(_Fact, frozen=True, kw_only=True, tag="declared"):
    """Stated by somebody (a vendor, a specification, a user); ``source`` says who."""


class Unknown(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="unknown",
):
    """Not known, and why. Never shown as zero and never entered into a sum."""

    reason: str


Known: TypeAlias = Measured | Estimated | Declared
Quantity: TypeAlias = Measured | Estimated | Declared | Unknown
