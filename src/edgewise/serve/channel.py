"""The way of an answer's chunks from the engine's thread to the event loop.

One hop per chunk at most: chunks that come while the reader is busy are handed over together.
Bounded: a writer that finds the buffer full waits, and is told when it has waited too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

from edgewise.run.messages import Chunk

__all__ = ["Channel"]


class Channel:
    """Chunks in order, with an end. One writer's thread, one reader on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, chunks_max: int, stall_s: float) -> None:
        self._loop = loop
        self._chunks_max = chunks_max
        self._stall_s = stall_s
        self._chunks: list[Chunk] = []
        self._room = threading.Condition()
        self._calling = False
        self._ended = False
        self._open = True
        self._reader: asyncio.Future[None] | None = None

    def put(self, chunk: Chunk) -> bool:
        """Add a chunk; return whether it found room before the reader counted as stalled.

        Once the channel is shut, chunks are dropped: nobody reads them.
        """
        with self._room:
            if len(self._chunks) >= self._chunks_max and not self._room.wait_for(
                lambda: len(self._chunks) < self._chunks_max or not self._open, self._stall_s
            ):
                return False
            if not self._open:
                return True
            self._chunks.append(chunk)
            self._call()
        return True

    def end(self) -> None:
        """Say that no chunk follows."""
        with self._room:
            self._ended = True
            self._call()

    def shut(self) -> None:
        """Drop what is buffered and all that follows, and let a waiting writer go."""
        with self._room:
            self._open = False
            self._chunks.clear()
            self._room.notify_all()

    async def take(self) -> list[Chunk] | None:
        """Return all chunks that are there, waiting for the first; ``None`` at the end."""
        while True:
            with self._room:
                if self._chunks:
                    chunks, self._chunks = self._chunks, []
                    self._room.notify_all()
                    return chunks
                if self._ended:
                    return None
                self._reader = self._loop.create_future()
            await self._reader

    def _call(self) -> None:
        if self._calling:
            return
        self._calling = True
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the reader with it
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._room:
            self._calling = False
            reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)
