"""Whether a step that is evaluated together with others' rounds as it does alone.

That is the kernels' affair and changes with how many rows a call has and how long the cache is:
they switch to another order of sums at sizes of their own. So it is tried out, once for each
doubling of either, on real steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Exactness"]


class Exactness:
    """What has been tried out."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], bool] = {}

    def known(self, position: int, joined: int) -> bool | None:
        """Return whether the two ways agree bit by bit, ``None`` when that was not tried yet.

        Args:
            position: Tokens before the step.
            joined: Steps of the call.
        """
        return self._found.get(_sizes(position, joined))

    def learn(
        self,
        position: int,
        joined: int,
        together: Sequence[np.ndarray[Any, np.dtype[np.float32]]],
        alone: Sequence[np.ndarray[Any, np.dtype[np.float32]]],
    ) -> None:
        """Compare the logits of a step that was evaluated both ways."""
        same = all((a == b).all() for a, b in zip(together, alone, strict=True))
        self._found[_sizes(position, joined)] = same


def _sizes(position: int, joined: int) -> tuple[int, int]:
    return position.bit_length(), joined.bit_length()
