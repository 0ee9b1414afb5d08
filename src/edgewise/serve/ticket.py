"""One request on its way through the server: waiting, running, ended."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

from edgewise.core.outcome import Outcome
from edgewise.core.request import Request
from edgewise.errors import EdgewiseError
from edgewise.run.messages import Chunk
from edgewise.serve.channel import Channel
from edgewise.serve.limits import Limits

__all__ = ["Ticket"]


class Ticket:
    """A request that was taken, and what comes of it.

    The lane's thread calls :meth:`taken`, :meth:`put` and :meth:`finish`; the event loop reads
    :meth:`take` and :meth:`result`.

    Attributes:
        chunks: Whether the answer is wanted as it comes.
        given_up: Why nobody wants the answer any more, once that is so.
    """

    def __init__(
        self,
        request: Request,
        client: str,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        *,
        chunks: bool,
    ) -> None:
        self.request = request
        self.client = client
        self.loop = loop
        self.chunks = chunks
        self.given_up: EdgewiseError | None = None
        self._channel = Channel(loop, chunks_max=limits.buffered_chunks_max, stall_s=limits.stall_s)
        self._submitted = time.perf_counter()
        self._taken: float | None = None
        self._lock = threading.Lock()
        self._result: Outcome | EdgewiseError | None = None
        self._at_end: list[Callable[[], object]] = []

    @property
    def ended(self) -> bool:
        """Return whether there is a result."""
        return self._result is not None

    @property
    def waited_s(self) -> float:
        """Return the seconds spent in the queue, so far or in all."""
        return (self._taken or time.perf_counter()) - self._submitted

    def on_end(self, call: Callable[[], object]) -> None:
        """Have something called on the event loop when the ticket ends."""
        self._at_end.append(call)

    def taken(self) -> None:
        """Its turn has come."""
        self._taken = time.perf_counter()

    def put(self, chunk: Chunk) -> bool:
        """Hand a chunk over; return whether the reader kept up."""
        return self._channel.put(chunk)

    def give_up(self, why: EdgewiseError) -> bool:
        """Note why the answer is not wanted any more; return whether that is news."""
        with self._lock:
            if self.given_up is not None or self._result is not None:
                return False
            self.given_up = why
        self._channel.shut()
        return True

    def finish(self, result: Outcome | EdgewiseError) -> None:
        """Set the result; the first one counts."""
        with self._lock:
            if self._result is not None:
                return
            self._result = result
        self._channel.end()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for call in self._at_end:
            call()

    async def take(self) -> list[Chunk] | None:
        """Return the next chunks, or ``None`` when the answer has ended."""
        return await self._channel.take()

    async def result(self) -> Outcome:
        """Wait for the end and return the outcome.

        Raises:
            EdgewiseError: there is none; an answer that was given up ends with the reason for it.
        """
        while await self._channel.take() is not None:
            pass
        result = self._result
        assert result is not None
        if isinstance(result, EdgewiseError):
            raise result
        if self.given_up is not None:
            raise self.given_up
        return result
