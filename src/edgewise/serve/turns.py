"""A bounded queue in which clients take turns: who asks much waits longer than who asks little.

Each client has a line of its own, first in, first out; the lines are served round robin. Any
number of threads may put, take and remove.
"""

from __future__ import annotations

import collections
import threading
from typing import Generic, TypeVar

__all__ = ["LineFullError", "Turns"]

T = TypeVar("T")


class LineFullError(Exception):
    """There is no room for another item: of this client, or at all."""

    def __init__(self, *, own: bool) -> None:
        super().__init__("the line is full")
        self.own = own


class Turns(Generic[T]):
    """Lines of items, one line for each client that has any."""

    def __init__(self, *, total_max: int, per_client_max: int) -> None:
        self._total_max = total_max
        self._per_client_max = per_client_max
        self._lines: collections.OrderedDict[str, collections.deque[T]] = collections.OrderedDict()
        self._count = 0
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self._count

    def put(self, client: str, item: T) -> None:
        """Put an item at the end of its client's line.

        Raises:
            LineFullError: the client's line, or all of them together, are full.
        """
        with self._changed:
            line = self._lines.get(client)
            own = line is not None and len(line) >= self._per_client_max
            if own or self._count >= self._total_max:
                raise LineFullError(own=own)
            if line is None:
                line = self._lines[client] = collections.deque()
            line.append(item)
            self._count += 1
            self._changed.notify()

    def take(self, timeout_s: float | None = None) -> T | None:
        """Wait for an item and return the one whose turn it is, or ``None`` once closed.

        Raises:
            TimeoutError: none came in that time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._count or self._closed, timeout_s):
                raise TimeoutError
            if not self._count:
                return None
            client, line = next(iter(self._lines.items()))
            item = line.popleft()
            self._count -= 1
            if line:
                self._lines.move_to_end(client)
            else:
                del self._lines[client]
            return item

    def remove(self, client: str, item: T) -> bool:
        """Take an item out of its line, wherever it stands; return whether it was there."""
        with self._changed:
            line = self._lines.get(client)
            if line is None or item not in line:
                return False
            line.remove(item)
            self._count -= 1
            if not line:
                del self._lines[client]
            return True

    def close(self) -> list[T]:
        """Let takers go, and return what was still waiting."""
        with self._changed:
            left = [item for line in self._lines.values() for item in line]
            self._lines.clear()
            self._count = 0
            self._closed = True
            self._changed.notify_all()
            return left
