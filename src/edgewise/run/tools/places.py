"""What passes between the steps of learning a format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Place", "common"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands, or several, and what it looks like, as fields of a format."""

    start: int
    end: int
    shape: dict[str, Any]


def common(one: list[str], other: list[str]) -> list[str]:
    """Return the words with which both lists begin."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return one[:index]
    return one[: min(len(one), len(other))]
