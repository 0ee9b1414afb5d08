"""How an answer gets to the client: whole, or as server-sent events while it comes.

A stream begins with the answer's first text, so whatever goes wrong before is an HTTP error.
What goes wrong after is an event with an error, and then the stream ends without the marks of a
normal end (no ``finish_reason``, no ``[DONE]``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from edgewise.core.outcome import Completed
from edgewise.core.request import Request
from edgewise.errors import EdgewiseError, ResourceError
from edgewise.run.messages import Chunk
from edgewise.serve.exchange import Exchange, Pairs
from edgewise.serve.problems import ProblemError, answered
from edgewise.serve.ticket import Ticket

__all__ = ["Frames", "Taking", "answers", "event", "stream"]


class Taking(Protocol):
    """What takes requests: the lanes' dispatcher, or what asks destinations."""

    def submit(self, request: Request, client: str, *, chunks: bool) -> Ticket:
        """Return the ticket of a request."""
        ...

    def cancel(self, ticket: Ticket, why: EdgewiseError) -> None:
        """End a ticket wherever it is."""
        ...


class Frames(Protocol):
    """How one endpoint writes its stream. Each method returns bytes to send, or none."""

    def next_request(self, request: Request, *, last: bool) -> None:
        """Begin with the answer to the next request."""
        ...

    def begin(self) -> bytes:
        """Return what stands in front of the first chunk."""
        ...

    def chunk(self, chunk: Chunk) -> bytes:
        """Return a chunk."""
        ...

    def end(self, outcome: Completed, waited_s: float) -> bytes:
        """Return what follows the last chunk, up to the mark of a normal end."""
        ...

    def error(self, problem: ProblemError) -> bytes:
        """Return an error."""
        ...


def event(data: bytes, name: bytes = b"") -> bytes:
    """Return one server-sent event."""
    if name:
        return b"event: " + name + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


async def answers(
    exchange: Exchange, taking: Taking, requests: Sequence[Request], client: str
) -> list[tuple[Request, Completed, float]]:
    """Return the whole answers to requests, each with the seconds that it waited in the queue.

    One follows the other, so that many prompts of one client do not fill the queue. A deadline is
    for all of them.

    Raises:
        ProblemError: there is no answer to one of them.
        EdgewiseError: the same, or a request was not taken.
    """
    started = time.monotonic()
    found = []
    for request in requests:
        ticket = taking.submit(_in_time(request, started), client, chunks=False)
        async with _attended(exchange, taking, ticket):
            outcome = answered(await ticket.result())
        found.append((request, outcome, ticket.waited_s))
    return found


async def stream(
    exchange: Exchange,
    taking: Taking,
    requests: Sequence[Request],
    client: str,
    *,
    frames: Frames,
    headers: Pairs,
) -> None:
    """Answer requests as a stream of events, one after the other.

    Raises:
        ProblemError: there is no answer, and nothing has been written.
        EdgewiseError: the same, or the request was not taken.
    """
    started = time.monotonic()
    try:
        for i, request in enumerate(requests, start=1):
            ticket = taking.submit(_in_time(request, started), client, chunks=True)
            async with _attended(exchange, taking, ticket):
                frames.next_request(request, last=i == len(requests))
                await _stream_one(exchange, ticket, frames, headers)
    except (ProblemError, EdgewiseError) as error:
        if exchange.status is None:
            raise
        problem = error if isinstance(error, ProblemError) else ProblemError(error)
        exchange.note = problem.error.code
        await exchange.write(frames.error(problem))
    await exchange.end()


async def _stream_one(exchange: Exchange, ticket: Ticket, frames: Frames, headers: Pairs) -> None:
    chunks = await ticket.take()
    if chunks is None:
        answered(await ticket.result())  # what is no answer is raised before anything is written
    if exchange.status is None:
        await exchange.begin(headers)
    lead = frames.begin()
    while chunks is not None:
        await exchange.write(lead + b"".join(map(frames.chunk, chunks)))
        lead = b""
        chunks = await ticket.take()
    outcome = answered(await ticket.result())
    await exchange.write(lead + frames.end(outcome, ticket.waited_s))


def _in_time(request: Request, started: float) -> Request:
    if request.deadline_s is None:
        return request
    left_s = max(0.001, request.deadline_s - (time.monotonic() - started))
    return msgspec.structs.replace(request, deadline_s=left_s)


@contextlib.asynccontextmanager
async def _attended(exchange: Exchange, taking: Taking, ticket: Ticket) -> AsyncIterator[None]:
    """Cancel the ticket when its client goes away, or when nobody waits for it any more."""
    gone = ResourceError("client-gone", "the client went away before the answer was complete")

    def cancel() -> None:
        taking.cancel(ticket, gone)

    watch = exchange.watch(cancel)
    try:
        yield
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        cancel()  # nothing, when it has ended
