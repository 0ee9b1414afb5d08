"""Cancelling from another thread, without a poll and without a descriptor of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

__all__ = ["CancelToken"]


class CancelToken:
    """Cancels what was started with it. It may be made before anything runs, and shared."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may cancel what its thread holds
        self._cancelled = False
        self._wakes: dict[object, Callable[[], None]] = {}

    @property
    def cancelled(self) -> bool:
        """Return whether :meth:`cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Cancel, from any thread; a second time changes nothing."""
        with self._lock:
            self._cancelled = True
            wakes = list(self._wakes.values())
            for wake in wakes:
                wake()

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Have ``wake`` called when the token is cancelled, at once if it is already.

        It is called under the token's lock and never after the block: it must not block, and what
        it refers to may be closed when the block has ended.
        """
        key = object()
        with self._lock:
            self._wakes[key] = wake
            if self._cancelled:
                wake()
        try:
            yield
        finally:
            with self._lock:
                del self._wakes[key]
