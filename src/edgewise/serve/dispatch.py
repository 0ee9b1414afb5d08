"""The dispatcher: brings requests of many clients to the engine, in turn and fairly.

A request waits in its client's line (:mod:`edgewise.serve.turns`) until a *lane* is free. A lane
is a thread with a session of its own that answers one request at a time. There are as many as the
deployment answers requests at once; their sessions share one worker.

Invariants: every ticket ends, by an outcome or a typed error; a cancelled one gives its lane free
whether it waits, loads, prefills or decodes, and no other request is touched; the time in the
queue counts for the deadline; an engine that keeps failing is left alone for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from edgewise.core.bundle import Bundle
from edgewise.core.outcome import Declined, Failed, Outcome, Route
from edgewise.core.release import Released
from edgewise.core.request import Request
from edgewise.errors import AdapterError, EdgewiseError, ResourceError
from edgewise.run.messages import Chunk
from edgewise.run.session import ANSWERS_FAULTS
from edgewise.serve.budget import FailureBudget
from edgewise.serve.idle import IdleRelease
from edgewise.serve.limits import Limits
from edgewise.serve.ticket import Ticket
from edgewise.serve.turns import LineFullError, Turns

__all__ = ["Answering", "Dispatcher", "stopping", "too_slow", "where_raised"]

# A cancel that comes while the model is being loaded finds nothing to cancel yet: it is repeated.
_CANCEL_AGAIN_S = 0.02
_RETRY_AFTER_MAX_S = 60


class Answering(Protocol):
    """What a lane needs; :class:`edgewise.run.session.Session` has it."""

    @property
    def bundle(self) -> Bundle:
        """Return what answers."""
        ...

    def ask(self, request: Request, *, on_chunk: Callable[[Chunk], None] | None = None) -> Outcome:
        """Return the outcome of a request."""
        ...

    def cancel(self) -> None:
        """Cancel the running answer, if there is one."""
        ...

    def release(self, *, budget_s: float = ...) -> Released:
        """Hand the model's memory back; the next request loads it again."""
        ...

    @property
    def resident(self) -> bool:
        """Return whether the model is in memory."""
        ...

    def close(self) -> None:
        """End the worker."""
        ...


class _Lane:
    def __init__(self, session: Answering) -> None:
        self.session = session
        self.ticket: Ticket | None = None
        self.lock = threading.Lock()

    def cancel(self, ticket: Ticket) -> None:
        with self.lock:  # whoever comes next in this lane must not be hit
            if self.ticket is ticket:
                with contextlib.suppress(EdgewiseError):  # a dead worker answers nobody
                    self.session.cancel()


class Dispatcher:
    """Takes requests on the event loop and has them answered in the lanes' threads."""

    def __init__(
        self,
        sessions: Sequence[Answering],
        limits: Limits,
        *,
        judged: Callable[[Request, Callable[[Request], Outcome]], Outcome] | None = None,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._limits = limits
        self._judged = judged or (lambda request, ask: ask(request))
        self._log = log
        self._turns: Turns[Ticket] = Turns(
            total_max=limits.queue_max, per_client_max=limits.queue_per_client_max
        )
        self._budget = FailureBudget(limits.failures_max, limits.failure_window_s)
        self._lanes = [_Lane(session) for session in sessions]
        self._idle = IdleRelease(limits.release_after_s, log=log)
        self._stopping = False
        self._answer_s = 1.0  # a running mean
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"lane-{i}", daemon=True)
            for i, lane in enumerate(self._lanes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def queued(self) -> int:
        """Return how many requests wait."""
        return len(self._turns)

    @property
    def running(self) -> int:
        """Return how many requests are being answered."""
        return sum(lane.ticket is not None for lane in self._lanes)

    @property
    def loaded(self) -> bool:
        """Return whether the model is in memory."""
        return any(lane.session.resident for lane in self._lanes)

    def check_open(self) -> None:
        """Say whether a request would be taken up.

        Raises:
            ResourceError: the server is stopping.
            AdapterError: the engine has failed too often lately.
        """
        if self._stopping:
            raise stopping()
        self._check_budget()

    def submit(self, request: Request, client: str, *, chunks: bool) -> Ticket:
        """Return the ticket of a request; call it on the event loop.

        Args:
            request: What is asked.
            client: Whose turn it takes.
            chunks: Whether the answer is wanted in chunks as it comes.

        Raises:
            ResourceError: the queue is full, or the server is stopping.
            AdapterError: the engine has failed too often lately.
        """
        self.check_open()
        loop = asyncio.get_running_loop()
        ticket = Ticket(request, client, loop, self._limits, chunks=chunks)
        try:
            self._turns.put(client, ticket)
        except LineFullError as error:
            raise self._full(own=error.own) from None
        if request.deadline_s is not None:
            timer = loop.call_later(request.deadline_s, self._expire, ticket)
            ticket.on_end(timer.cancel)
        return ticket

    def cancel(self, ticket: Ticket, why: EdgewiseError) -> None:
        """End a ticket wherever it is; call it on the event loop."""
        if not ticket.give_up(why):
            return
        if self._turns.remove(ticket.client, ticket):
            ticket.finish(why)
        else:
            self._press(ticket)

    def stop(self) -> None:
        """Take no more requests and end those that wait; running ones go on."""
        self._stopping = True
        for ticket in self._turns.close():
            ticket.finish(stopping())

    def cancel_running(self) -> None:
        """End the answers that are running; call it on the event loop after :meth:`stop`."""
        for lane in self._lanes:
            if (ticket := lane.ticket) is not None:
                self.cancel(ticket, stopping())

    def close(self) -> None:
        """End the sessions with their workers, and the threads."""
        self._stopping = True
        for ticket in self._turns.close():
            ticket.finish(stopping())
        for lane in self._lanes:
            lane.session.close()
        for thread in self._threads:
            thread.join(5.0)

    def _press(self, ticket: Ticket) -> None:
        if ticket.ended:
            return
        for lane in self._lanes:
            lane.cancel(ticket)
        asyncio.get_running_loop().call_later(_CANCEL_AGAIN_S, self._press, ticket)

    def _expire(self, ticket: Ticket) -> None:
        if self._turns.remove(ticket.client, ticket):
            ticket.finish(
                ResourceError(
                    "deadline-exceeded",
                    "the deadline passed while the request was waiting for its turn",
                    hint="give it more time, or ask when fewer others do",
                    retryable=True,
                )
            )

    def _full(self, *, own: bool) -> ResourceError:
        wait_s = math.ceil(self._answer_s * (len(self._turns) + 1) / len(self._lanes))
        whose = "this client's line" if own else "the queue"
        return ResourceError(
            "queue-full",
            f"{whose} is full",
            context={"retry_after_s": max(1, min(wait_s, _RETRY_AFTER_MAX_S))},
            hint="wait for answers before asking more",
            retryable=True,
        )

    def _work(self, lane: _Lane) -> None:
        while True:
            try:
                ticket = self._turns.take(self._idle.wait_s(lane.session))
            except TimeoutError:
                self._idle.release(lane.session)
                continue
            if ticket is None:
                return
            started = time.monotonic()
            self._idle.began()
            result = self._answer(lane, ticket)
            self._idle.ended()
            self._answer_s = 0.8 * self._answer_s + 0.2 * (time.monotonic() - started)
            ticket.finish(result)

    def _answer(self, lane: _Lane, ticket: Ticket) -> Outcome | EdgewiseError:
        with lane.lock:
            if ticket.given_up is not None:
                return ticket.given_up
            lane.ticket = ticket
        try:
            self._check_budget()
            return self._ask(lane, ticket)
        except EdgewiseError as error:
            return error
        except Exception as error:  # noqa: BLE001 - one request's bug must not end the lane
            self._log(f"internal error: {where_raised(error)}")
            return EdgewiseError("internal-error", "the server has a bug that this request met")
        finally:
            with lane.lock:
                lane.ticket = None

    def _check_budget(self) -> None:
        wait_s = self._budget.left_s()
        if wait_s:
            raise _unavailable(wait_s)

    def _ask(self, lane: _Lane, ticket: Ticket) -> Outcome:
        ticket.taken()
        request = ticket.request
        if request.deadline_s is not None:
            left_s = max(0.001, request.deadline_s - ticket.waited_s)
            request = msgspec.structs.replace(request, deadline_s=left_s)
        on_chunk = functools.partial(self._hand_over, ticket) if ticket.chunks else None
        began = self._budget.now()
        ask = functools.partial(lane.session.ask, on_chunk=on_chunk)
        outcome = self._judged(request, ask)
        if isinstance(outcome, Failed) and ticket.given_up is None and not self._stopping:
            self._note_failure(outcome.error.get("code"), began)
        if isinstance(outcome, Declined) and outcome.provenance.route.route is Route.CLOUD:
            return _not_sent(outcome, request)
        return outcome

    def _note_failure(self, code: object, began: float) -> None:
        if code in ANSWERS_FAULTS:
            return  # whoever asks for what cannot be answered must not close it for others
        self._budget.failed(began)
        self._log(f"the engine failed: {code}")

    def _hand_over(self, ticket: Ticket, chunk: Chunk) -> None:
        # Noted here: the answer may end before the loop gets to cancel it.
        if not ticket.put(chunk) and ticket.give_up(too_slow(self._limits)):
            with contextlib.suppress(RuntimeError):  # the loop has ended
                ticket.loop.call_soon_threadsafe(self._press, ticket)


def too_slow(limits: Limits) -> ResourceError:
    """Return why an answer ends that its client does not read."""
    return ResourceError(
        "client-too-slow",
        f"the client read nothing for {limits.stall_s:g} s; the answer was cancelled",
        hint="read the stream while it comes",
    )


def stopping() -> ResourceError:
    """Return why a request is not taken up, or not answered to its end, at the end of a server."""
    return ResourceError(
        "server-stopping",
        "the server is stopping",
        context={"retry_after_s": 5},
        hint="ask again when it has been started again",
        retryable=True,
    )


def _not_sent(outcome: Declined, request: Request) -> Declined:
    """Return the outcome of a request that waited to be answered here and is not any more."""
    route = outcome.provenance.route
    why = (
        "its route changed while it waited to be answered here: ask again"
        if request.prompt is None
        else "a prompt without messages does not leave"
    )
    reasons = (f"the policy sends this to {route.destination}, and {why}",)
    route = msgspec.structs.replace(
        route, route=Route.DECLINE, destination="", consent=None, reasons=reasons
    )
    provenance = msgspec.structs.replace(outcome.provenance, route=route)
    return Declined(reasons=reasons, provenance=provenance)


def _unavailable(wait_s: float) -> AdapterError:
    return AdapterError(
        "engine-unavailable",
        "the engine has failed several times in a row and is left alone for a while",
        context={"retry_after_s": math.ceil(wait_s)},
        hint="see the server's log for how it failed",
        retryable=True,
    )


def where_raised(error: BaseException) -> str:
    """Return an exception's type and place: its message may hold what a user wrote."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places}"
