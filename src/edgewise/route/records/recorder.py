"""Records decisions beside the requests, never in their way.

Which decisions are drawn is chance, and nothing of the request. A record is made at once, which
takes no input or output, and written by a thread that ends when nothing is left to write. What
cannot be written is lost, counted, and told as an event; the request does not notice.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from edgewise.core.outcome import Event, RouteDecision
from edgewise.core.request import Request
from edgewise.core.state import DeviceState
from edgewise.errors import EdgewiseError
from edgewise.route.facts import RouteEvidence
from edgewise.route.policy import Policy
from edgewise.route.records.record import RouteRecord, never_leaves, record_of
from edgewise.route.records.store import RecordStore
from edgewise.store.home import Home

__all__ = ["Recorder"]

# Of the system, which nobody can seed or foresee.
_CHANCE = random.SystemRandom()
_PENDING_MAX = 1000
_BUSY_TIMEOUT_S = 2.0
_FLUSH_TIMEOUT_S = 5.0


class Recorder:
    """Records what a policy decides in one home, where it says so. Callable from any thread.

    Args:
        home: Where records go.
        policy: The policy; without ``records`` nothing is ever drawn.
        on_event: Called when records are lost, from the thread that writes; without it the events
            wait for :meth:`take_events`.
        clock: Seconds since 1970; records are dated by the day.
        draw: A number from 0 to 1, by chance.
        busy_timeout_s: How long another process's transaction is waited for, seconds.
    """

    def __init__(
        self,
        home: Home,
        policy: Policy,
        *,
        on_event: Callable[[Event], None] | None = None,
        clock: Callable[[], float] = time.time,
        draw: Callable[[], float] = _CHANCE.random,
        busy_timeout_s: float = _BUSY_TIMEOUT_S,
    ) -> None:
        self._policy = policy
        self._rule = policy.records
        self._store = RecordStore(home, clock=clock, busy_timeout_s=busy_timeout_s)
        self._on_event = on_event
        self._draw = draw
        self._lock = threading.Lock()
        self._pending: list[RouteRecord] = []
        self._writer: threading.Thread | None = None
        self._lost = 0
        self._events: dict[str, Event] = {}

    def drawn(self, data_class: str) -> bool:
        """Return whether the next decision about data of a class is to be recorded.

        Ask once for each decision, and before it is made.
        """
        if self._rule is None:
            return False
        if never_leaves(self._policy, data_class) and not self._rule.local_only:
            return False
        return self._draw() < self._rule.share

    def keep(
        self,
        request: Request,
        state: DeviceState,
        evidence: RouteEvidence,
        decision: RouteDecision,
        *,
        only: str = "",
    ) -> None:
        """Record a decision that was drawn. It returns at once and raises nothing.

        Args:
            request: The request.
            state: The device's state that it was decided by.
            evidence: All that the router was told.
            decision: What it decided.
            only: The destination of a queued operation, where every other one was closed.
        """
        record = record_of(
            request,
            state,
            self._policy,
            evidence,
            decision,
            day=self._store.today().isoformat(),
            only=only,
        )
        with self._lock:
            full = len(self._pending) >= _PENDING_MAX
            if not full:
                self._pending.append(record)
                full = not self._writing()
        if full:
            self._lose(1, "records-behind", "too many others wait to be written")

    def flush(self, timeout_s: float = _FLUSH_TIMEOUT_S) -> bool:
        """Wait until what was recorded is on disk, or lost; return whether it came to that.

        Args:
            timeout_s: How long to wait, seconds.
        """
        with self._lock:
            writer = self._writer
        if writer is not None:
            writer.join(timeout_s)
        return writer is None or not writer.is_alive()

    def take_events(self) -> tuple[Event, ...]:
        """Return what nobody was told yet."""
        with self._lock:
            found, self._events = tuple(self._events.values()), {}
        return found

    def _writing(self) -> bool:
        """Return whether somebody writes; start one where nobody does."""
        if self._writer is not None and self._writer.is_alive():
            return True
        self._writer = threading.Thread(target=self._write, name="route-records")
        try:
            self._writer.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self._writer = None
            self._pending.clear()
            return False
        return True

    def _write(self) -> None:
        assert self._rule is not None
        while True:
            with self._lock:
                batch, self._pending = self._pending, []
                lost, self._lost = self._lost, 0
                if not batch:
                    self._lost, self._writer = lost, None
                    return
            try:
                self._store.add(batch, self._rule, lost=lost)
            except EdgewiseError as error:
                self._lose(len(batch), error.code, error.message, uncounted=lost)
            except Exception as error:  # noqa: BLE001 - a bug here is no request's failure
                self._lose(len(batch), "internal-error", type(error).__name__, uncounted=lost)

    def _lose(self, count: int, code: str, why: str, *, uncounted: int = 0) -> None:
        """Count what is lost, beside what was lost before and is not on disk, and tell of it."""
        with self._lock:
            self._lost += count + uncounted
            known = self._events.get(code)
            total = count if known is None else count + known.context["records"]
            event = Event(
                code="record-lost",
                message=f"{total} decisions were drawn and could not be recorded: {why}",
                context={"records": total, "why": code},
            )
            if self._on_event is None:
                self._events[code] = event
        if self._on_event is not None:
            self._on_event(event)
