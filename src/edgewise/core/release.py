"""What handing a model's memory back came to."""

from __future__ import annotations

import msgspec

from edgewise.core.quantity import Quantity

__all__ = ["Released"]


class Released(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model's process was ended, and what it held went back to the system.

    Attributes:
        resident_bytes: What the process held, read right before it ended; 0 when there was none.
            Mapped weights are part of it, and stay in the page cache until somebody needs the room.
        anonymous_bytes: The part of it that is no file.
        ms: What it took, the keeping of the state included.
        kept_tokens: Tokens of the conversation whose state lies on disk for the next request.
        note: Why no state was kept; empty when one was.
    """

    resident_bytes: Quantity
    anonymous_bytes: Quantity
    ms: float
    kept_tokens: int = 0
    note: str = ""

    @property
    def state_kept(self) -> bool:
        """Return whether the conversation's state was kept."""
        return self.kept_tokens > 0
