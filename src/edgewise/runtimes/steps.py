"""What sequences of one context wait for, and the native side that does it.

Values only: when what is done is decided by :mod:`edgewise.runtimes.batching`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from edgewise.errors import EdgewiseError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ABORTED", "Job", "Native", "Step", "Turn"]

# The code of a native call that ended because of :meth:`Native.abort`.
ABORTED: Final = 2


class Turn:
    """What one sequence waits for."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.done = False
        self.leads = False
        self.error: BaseException | None = None
        self.wake = threading.Event()


class Step(Turn):
    """Tokens that a sequence wants evaluated.

    Attributes:
        sequence: Whose they are.
        position: Where they stand in it.
        tokens: Token ids.
        every: Whether the logits of every token are wanted, not of the last one only.
        rows: Logits, once it is done; valid until the sequence's next step.
        rounded: Whether it was evaluated together with others in a way that rounds otherwise than
            alone.
    """

    def __init__(
        self, sequence: int, position: int, tokens: list[int], *, every: bool = False
    ) -> None:
        super().__init__(sequence)
        self.position = position
        self.tokens = tokens
        self.every = every
        self.rows: list[np.ndarray[Any, np.dtype[np.float32]]] = []
        self.rounded = False


class Job(Turn):
    """A function that needs the context while nothing is evaluated."""

    def __init__(self, sequence: int, run: Callable[[], Any]) -> None:
        super().__init__(sequence)
        self.run = run
        self.result: Any = None


class Native(Protocol):
    """The native side; called by one thread at a time, ``abort`` excepted."""

    def evaluate(self, steps: Sequence[Step]) -> int:
        """Evaluate steps of different sequences in one call; return its code, 0 when it is done."""
        ...

    def take(self, steps: Sequence[Step]) -> None:
        """Copy the logits of the last call into its steps."""
        ...

    def cut(self, sequence: int, position: int) -> None:
        """Cut a sequence back.

        Raises:
            UnsupportedError: it cannot be cut there.
        """
        ...

    def failure(self, code: int, step: Step) -> EdgewiseError:
        """Return what a code means for a step."""
        ...

    def abort(self) -> None:
        """Make the running call end early. Called from any thread."""
        ...

    def rearm(self) -> None:
        """Take an ``abort`` back."""
        ...
