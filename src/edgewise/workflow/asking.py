"""One request for a destination, asked with what was found to be there before consent was used."""

from __future__ import annotations

from collections.abc import Callable

from edgewise.route.cloud import CancelToken, CloudAnswer, CloudClient, CloudFailure, Means
from edgewise.route.destinations import Destination
from edgewise.route.outgoing import Outgoing
from edgewise.route.permits import CloudPermit

__all__ = ["Asking"]

_SHORTEST_S = 0.001  # a deadline that is over is told as such by who asks


class Asking:
    """Reads what a destination is asked with, and asks it.

    Args:
        client: Asks.
        outgoing: What is sent, where to.
        cancel: Ends either from another thread.
    """

    def __init__(self, client: CloudClient, outgoing: Outgoing, cancel: CancelToken | None) -> None:
        self.outgoing = outgoing
        self._client = client
        self._cancel = cancel
        self._means: Means | None = None
        self._left_s = outgoing.deadline_s

    def make_ready(self, place: Destination) -> None:
        """Read the key and what else is needed; the time that takes is part of the deadline.

        Raises:
            EdgewiseError: something is missing; see :meth:`CloudClient.means`.
        """
        found = self._client.means(place, cancel=self._cancel, deadline_s=self._left_s)
        self._means = found
        if self._left_s is not None:
            self._left_s = max(self._left_s - found.took_s, _SHORTEST_S)

    def ask(
        self, permit: CloudPermit, on_text: Callable[[str], None]
    ) -> CloudAnswer | CloudFailure:
        """Send it; see :meth:`CloudClient.ask`."""
        return self._client.ask(
            permit,
            self.outgoing.destination,
            self.outgoing.payload,
            on_text=on_text,
            cancel=self._cancel,
            deadline_s=self._left_s,
            means=self._means,
        )
