"""What a model's process does when memory runs short: shrink, hand back, or end an answer.

A thread reads how short memory is for as long as the process lives, its loading included. When
memory is tight, the saved states in the worker's memory are dropped. When it is critical, the
process is ended before the kernel does that: at once when it answers, and when it rests after its
state has been written, if there is room for that.

Invariants: the process is never ended behind a request that has begun without an error that says
so; a request that comes while it is being handed back waits for that, and is admitted afterwards;
whatever was done is an event of the next outcome.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from edgewise.core.outcome import Event, Outcome
from edgewise.core.quantity import Measured, Quantity, Unknown
from edgewise.core.release import Released
from edgewise.device.pressure import PressureLevel, PressureReader, Reading
from edgewise.device.process import anonymous_bytes, resident_bytes
from edgewise.errors import AdapterError, EdgewiseError, InputError, ResourceError
from edgewise.run.memory_watch import MemoryWatch
from edgewise.run.messages import PrefixSettings, Shrunk
from edgewise.runtimes.worker import WorkerProcess

__all__ = ["MemoryGuard"]

_SHRINK_TIMEOUT_S: Final = 2.0
_HAND_BACK_BUDGET_S: Final = 2.0
# Saving holds the state three times: the engine's copy, the bytes with a header, and the file's.
_COPIES: Final = 3
# What of a budget saving may take; ending the process takes the rest.
_SAVING_SHARE: Final = 0.75
_RETRY_AFTER_S: Final = 10
# Of a server that nobody asks anything for days.
_EVENTS_MAX: Final = 16


class MemoryGuard:
    """Looks after one model's process.

    Attributes:
        why_ended: Why the last process was ended while it was at work; ``None`` when it was not.
    """

    def __init__(
        self,
        prefixes: PrefixSettings | None,
        state_bytes: Quantity,
        *,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """Take what can be given up.

        Args:
            prefixes: Which states of the KV cache are kept.
            state_bytes: Most bytes that a conversation's state has.
            on_event: Called with what was done, from the thread that did it.
        """
        self.why_ended: ResourceError | None = None
        self._in_memory = prefixes is not None and prefixes.memory_bytes > 0
        self._on_disk = prefixes is not None and prefixes.disk_bytes > 0
        self._state_bytes = state_bytes
        self._on_event = on_event
        self._new_reader: Callable[[], PressureReader] = PressureReader
        self._watch: MemoryWatch | None = None
        self._gate = threading.Lock()
        self._answering = 0
        self._events: collections.deque[Event] = collections.deque(maxlen=_EVENTS_MAX)
        self._handed_back: str | None = None
        self._said_unwatched = False

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Keep the process from being handed back for the time of a ``with`` block."""
        with self._gate:
            self._answering += 1
        try:
            yield
        finally:
            with self._gate:
                self._answering -= 1

    def with_events(self, outcome: Outcome) -> Outcome:
        """Return the outcome, with what happened since the last one among its events."""
        events: list[Event] = []
        with contextlib.suppress(IndexError):
            while True:
                events.append(self._events.popleft())
        if not events:
            return outcome
        return msgspec.structs.replace(outcome, events=(*outcome.events, *events))

    def check_room(self) -> None:
        """Say whether a process may be started now.

        Raises:
            ResourceError: memory is critical; it would have to be ended at once.
        """
        reading = self._new_reader().read()
        if reading.level is PressureLevel.CRITICAL:
            raise _pressure("the model was not loaded", reading)

    def watch(self, worker: WorkerProcess) -> None:
        """Begin to watch over a process."""
        self.unwatch()
        self.why_ended = None
        self._watch = MemoryWatch(self, worker, self._new_reader())
        self._watch.start()

    def unwatch(self) -> None:
        """Stop watching."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def loaded(self, load_ms: float) -> None:
        """The model is in memory."""
        why, self._handed_back = self._handed_back, None
        if why is not None:
            self._note(
                Event(
                    code="model-reloaded",
                    message=f"the model was loaded again, in {load_ms:.0f} ms: its memory had been "
                    f"handed back ({why})",
                    context={"load_ms": round(load_ms, 1), "why": why},
                )
            )

    def explain(self, error: EdgewiseError) -> EdgewiseError:
        """Return why the process was ended, where that is what an error comes from."""
        if self.why_ended is not None and isinstance(error, AdapterError):
            return self.why_ended
        return error

    def hand_back(self, worker: WorkerProcess | None, budget_s: float) -> Released:
        """End a process that rests, within a time, and return what that came to.

        Raises:
            InputError: it is answering.
        """
        with self._gate:
            if self._answering:
                raise InputError("session-busy", "the model is answering; cancel that first")
            if worker is None or not worker.alive:
                return _nothing()
            return self._hand_back(worker, "released", budget_s)

    def shrink(self, worker: WorkerProcess, reading: Reading, timeout_s: float) -> None:
        """Have the worker give up what it can do without; called by the watch."""
        self._save_ahead(worker, reading)
        try:
            shrunk = worker.beside("shrink", None, Shrunk, timeout_s=timeout_s)
        except EdgewiseError:
            return  # it is starting, or ending
        fell: Quantity = Unknown(reason="the worker's memory cannot be read")
        if isinstance(shrunk.before_bytes, Measured) and isinstance(shrunk.after_bytes, Measured):
            by = int(shrunk.before_bytes.number - shrunk.after_bytes.number)
            fell = Measured(value=by, source=shrunk.after_bytes.source)
        self._note(
            Event(
                code="memory-shrunk",
                message=f"memory is tight: {shrunk.dropped_bytes} bytes of saved states were "
                f"dropped ({reading.reason})",
                context={
                    "dropped_bytes": shrunk.dropped_bytes,
                    "resident_fell_bytes": msgspec.to_builtins(fell),
                    "reason": reading.reason,
                },
            )
        )

    def grow(self, worker: WorkerProcess) -> None:
        """Let the worker keep states in memory again; called by the watch."""
        with contextlib.suppress(EdgewiseError):
            worker.beside("grow", None, type(None), timeout_s=_SHRINK_TIMEOUT_S)

    @property
    def can_shrink(self) -> bool:
        """Return whether the worker may have states in memory."""
        return self._in_memory

    def give_way(self, worker: WorkerProcess, reading: Reading) -> None:
        """End the process now; called by the watch."""
        with self._gate:
            if not worker.alive:
                return
            if self._answering:
                self.why_ended = _pressure("the answer was ended", reading)
                self._handed_back = "memory-pressure"
                worker.kill()
                return
            budget_s = _HAND_BACK_BUDGET_S if self._may_save(reading) else 0.0
            released = self._hand_back(worker, "memory-pressure", budget_s)
        self._note(
            Event(
                code="memory-handed-back",
                message="memory is critical: the model's memory was handed back while nothing was "
                f"asked ({reading.reason})",
                context={"reason": reading.reason, **msgspec.to_builtins(released)},
            )
        )

    def unwatched(self, reading: Reading) -> None:
        """Memory cannot be watched here; called by the watch."""
        if not self._said_unwatched:
            self._said_unwatched = True
            self._note(
                Event(
                    code="memory-not-watched",
                    message=f"nobody notices here when memory runs short: {reading.reason}",
                )
            )

    def _hand_back(self, worker: WorkerProcess, why: str, budget_s: float) -> Released:
        started = time.perf_counter()
        resident, anonymous = resident_bytes(worker.pid), anonymous_bytes(worker.pid)
        kept, note = self._save(worker, budget_s * _SAVING_SHARE)
        worker.kill()
        self._handed_back = why
        ms = round((time.perf_counter() - started) * 1e3, 1)
        return Released(
            resident_bytes=resident,
            anonymous_bytes=anonymous,
            ms=ms,
            kept_tokens=kept,
            note=note,
        )

    def _save(self, worker: WorkerProcess, timeout_s: float) -> tuple[int, str]:
        """Return how many tokens lie on disk now, or 0 and why none do."""
        if not self._on_disk:
            return 0, "no disk is set aside for states"
        if timeout_s <= 0:
            return 0, "there was no time or no memory to save it"
        try:
            kept = worker.call("persist", None, int, timeout_s=timeout_s)
        except EdgewiseError as error:
            return 0, f"saving it failed or took too long ({error.code})"
        return kept, "" if kept else "there is none worth keeping, or it did not fit on disk"

    def _save_ahead(self, worker: WorkerProcess, reading: Reading) -> None:
        """Save the state of a process that rests while there is still room for that."""
        with self._gate:
            if not self._answering and self._on_disk and self._may_save(reading):
                self._save(worker, _HAND_BACK_BUDGET_S)

    def _may_save(self, reading: Reading) -> bool:
        if isinstance(self._state_bytes, Unknown) or reading.room_bytes is None:
            return False
        return reading.room_bytes >= _COPIES * self._state_bytes.number

    def _note(self, event: Event) -> None:
        self._events.append(event)
        if self._on_event is not None:
            self._on_event(event)


def _pressure(what: str, reading: Reading) -> ResourceError:
    return ResourceError(
        "memory-pressure",
        f"{what}, before the kernel had to kill: {reading.reason}",
        context={
            "available_bytes": reading.available_bytes,
            "room_bytes": reading.room_bytes,
            "retry_after_s": _RETRY_AFTER_S,
        },
        hint="ask again when other programs have given memory back; a smaller model or context "
        "needs less",
        retryable=True,
    )


def _nothing() -> Released:
    none = Measured(value=0, source="no model was loaded")
    return Released(resident_bytes=none, anonymous_bytes=none, ms=0.0, note="no model was loaded")
