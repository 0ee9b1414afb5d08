"""The worker process: ``python -m edgewise.runtimes.host MODULE:SERVICE``.

One thread reads frames, the main thread runs one call at a time. A service that has lanes names
methods which run in them, a thread and one call at a time each, beside the main thread. A method
that is declared to run *beside* others gets a thread of its own for each call. The reader never
waits for a call, so a cancel reaches the native code while it runs. When the session's end of the
pipe closes, for whatever reason, the worker exits at once: no orphan survives its session.
"""

from __future__ import annotations

import collections
import errno
import importlib
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import msgspec

from edgewise.device.process import refuse_core_dumps
from edgewise.errors import AdapterError, EdgewiseError
from edgewise.runtimes import wire

__all__ = ["MEMORY_LIMIT_VARIABLE", "LanedService", "Method", "Service", "main"]

MEMORY_LIMIT_VARIABLE = "EDGEWISE_WORKER_MEMORY_LIMIT_BYTES"
# What the loader, the C library and Python say where memory runs out below an import or a thread.
_NO_MEMORY = ("cannot allocate memory", "failed to map segment", "can't start new thread")

Emit = Callable[[Any], None]


class Method(msgspec.Struct, frozen=True):
    """A callable of a service and the type of its parameters.

    ``beside`` says that it may run in a thread of its own while another call runs: it touches
    nothing of the engine's, and what it shares with other methods is locked.
    """

    params: Any
    run: Callable[[Any, Emit], Any]
    beside: bool = False


class Service(Protocol):
    """What a worker offers. ``cancel`` is called from the reader thread."""

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        ...

    def cancel(self) -> None:
        """Abort the running call."""
        ...

    def clear_cancel(self) -> None:
        """Get ready for the next call."""
        ...


@runtime_checkable
class LanedService(Service, Protocol):
    """A service that can run several calls of some methods at once.

    Attributes:
        lane_methods: The methods.
    """

    lane_methods: frozenset[str]

    def lanes(self) -> Sequence[Service]:
        """Return a service for each call at once; none where one call is run at a time.

        Asked before each call of such a method, until there are some.
        """
        ...


class _Host:
    """Reads frames and hands calls to the service, or to a lane of it."""

    def __init__(self, service: Service, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._lanes_of = service if isinstance(service, LanedService) else None
        self._incoming = incoming
        self._write = _Writer(outgoing).write
        self._lock = threading.Lock()
        self._main = _Runner(service, self._write, self._ended)
        self._lanes: list[_Runner] = []
        self._waiting: collections.deque[wire.Call] = collections.deque()
        self._where: dict[int, _Runner] = {}
        self._early: set[int] = set()

    def run(self) -> None:
        threading.Thread(target=self._read, name="frames", daemon=True).start()
        self._main.run()

    def _read(self) -> None:
        try:
            while (body := wire.read_frame(self._incoming)) is not None:
                frame = wire.decode_request(body)
                with self._lock:
                    if isinstance(frame, wire.Call):
                        self._take(frame)
                    else:
                        self._cancel(frame.id)
        finally:
            os._exit(0)  # the session is gone; nothing may outlive it, native code included

    def _take(self, call: wire.Call) -> None:
        if self._main.beside(call.method):
            threading.Thread(target=self._main.answer, args=(call,), daemon=True).start()
            return
        runner: _Runner | None = self._main
        if self._lanes_of is not None and call.method in self._lanes_of.lane_methods:
            lanes = self._lanes or self._start_lanes(self._lanes_of)
            if lanes:
                runner = next((lane for lane in lanes if lane.idle), None)
        if runner is None:
            self._waiting.append(call)
        else:
            self._put(runner, call)

    def _put(self, runner: _Runner, call: wire.Call) -> None:
        self._where[call.id] = runner
        runner.idle = False
        if call.id in self._early:
            self._early.remove(call.id)
            runner.cancel(call.id)
        runner.calls.put(call)

    def _start_lanes(self, service: LanedService) -> list[_Runner]:
        self._lanes = [_Runner(lane, self._write, self._ended) for lane in service.lanes()]
        for number, runner in enumerate(self._lanes):
            threading.Thread(target=runner.run, name=f"lane-{number}", daemon=True).start()
        return self._lanes

    def _cancel(self, call: int) -> None:
        runner = self._where.get(call)
        if runner is not None:
            runner.cancel(call)
        elif any(waiting.id == call for waiting in self._waiting):
            self._early.add(call)

    def _ended(self, runner: _Runner, call: int) -> None:
        with self._lock:
            del self._where[call]
            runner.idle = True
            if self._waiting and runner is not self._main:
                self._put(runner, self._waiting.popleft())


class _Runner:
    """Runs the calls of one service, or of one lane of it, one at a time.

    Attributes:
        calls: What it is to run.
        idle: Whether it waits for a call; kept by the host.
    """

    def __init__(
        self,
        service: Service,
        write: Callable[[wire.Response], None],
        ended: Callable[[_Runner, int], None],
    ) -> None:
        self.idle = True
        self.calls: queue.SimpleQueue[wire.Call] = queue.SimpleQueue()
        self._service = service
        self._methods = service.methods()
        self._write = write
        self._ended = ended
        self._lock = threading.Lock()
        self._current: int | None = None
        self._cancelled: set[int] = set()

    def run(self) -> None:
        while True:
            self._serve(self.calls.get())

    def cancel(self, call: int) -> None:
        with self._lock:
            self._cancelled.add(call)
            if call == self._current:
                self._service.cancel()

    def _serve(self, call: wire.Call) -> None:
        with self._lock:
            self._current = call.id
            self._service.clear_cancel()
            if call.id in self._cancelled:
                self._service.cancel()
        answer = self._outcome(call)
        with self._lock:
            self._current = None
            self._cancelled.discard(call.id)
        self._ended(self, call.id)
        self._write(answer)

    def beside(self, name: str) -> bool:
        method = self._methods.get(name)
        return method is not None and method.beside

    def answer(self, call: wire.Call) -> None:
        self._write(self._outcome(call))

    def _outcome(self, call: wire.Call) -> wire.Response:
        try:
            return wire.Reply(call.id, wire.encode_value(self._run(call)))
        except EdgewiseError as error:
            return wire.Failure(call.id, error.to_dict())
        except Exception as error:  # noqa: BLE001 - the boundary of the process
            if _for_want_of_memory(error):
                return wire.Failure(call.id, _out_of_memory(call.method))
            return wire.Failure(call.id, _bug(call.method, error))

    def _run(self, call: wire.Call) -> Any:
        method = self._methods.get(call.method)
        if method is None:
            raise AdapterError("worker-method-unknown", f"the worker has no method {call.method!r}")
        params = msgspec.msgpack.decode(call.params, type=method.params)

        def emit(value: Any) -> None:
            self._write(wire.Notice(call.id, wire.encode_value(value)))

        return method.run(params, emit)


class _Writer:
    """Writes whole frames, whoever calls."""

    def __init__(self, outgoing: BinaryIO) -> None:
        self._outgoing = outgoing
        self._lock = threading.Lock()

    def write(self, frame: wire.Response) -> None:
        try:
            with self._lock:
                wire.write_frame(self._outgoing, frame)
        except BrokenPipeError:
            os._exit(0)  # as when the session closes its end for reading


def _for_want_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out somewhere below an error: loading a library says so in words only."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        if isinstance(error, OSError | ImportError | RuntimeError):
            text = str(error).lower()
            if any(words in text for words in _NO_MEMORY):
                return True
        error = error.__cause__ or error.__context__
    return False


def _bug(method: str, error: Exception) -> dict[str, Any]:
    # Where it happened, never the values: a message could carry a prompt.
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in frames]
    return AdapterError(
        "worker-bug",
        f"the worker's {method} failed with {type(error).__name__}",
        context={"trace": where[-6:]},
    ).to_dict()


def _out_of_memory(method: str) -> dict[str, Any]:
    from edgewise.errors import ResourceError  # noqa: PLC0415

    return ResourceError(
        "worker-out-of-memory", f"the worker ran out of memory in {method}", retryable=True
    ).to_dict()


def _limit_memory() -> None:
    limit = os.environ.get(MEMORY_LIMIT_VARIABLE)
    if limit:
        import resource  # noqa: PLC0415 - not on every platform

        resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))


def main(argv: list[str]) -> None:
    """Serve frames on standard input and output until the session closes them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the session's to handle
    _limit_memory()
    refuse_core_dumps()  # prompts are in this memory
    incoming = os.fdopen(os.dup(0), "rb")
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # native code that prints must not write into the frames
    module, _, attribute = argv[1].partition(":")
    service = getattr(importlib.import_module(module), attribute)()
    try:
        _Host(service, incoming, outgoing).run()
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
