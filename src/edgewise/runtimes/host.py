"""The worker process: ``python -m edgewise.runtimes.host MODULE:SERVICE``.

One thread reads frames, the main thread runs one call at a time. The reader never waits for a
call, so a cancel reaches the native code while it runs. When the session's end of the pipe
closes, for whatever reason, the worker exits at once: no orphan survives its session.
"""

from __future__ import annotations

import importlib
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from edgewise.errors import AdapterError, EdgewiseError
from edgewise.runtimes import wire

__all__ = ["MEMORY_LIMIT_VARIABLE", "Method", "Service", "main"]

MEMORY_LIMIT_VARIABLE = "EDGEWISE_WORKER_MEMORY_LIMIT_BYTES"

Emit = Callable[[Any], None]


class Method(msgspec.Struct, frozen=True):
    """A callable of a service and the type of its parameters."""

    params: Any
    run: Callable[[Any, Emit], Any]


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


class _Host:
    def __init__(self, service: Service, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._service = service
        self._methods = service.methods()
        self._incoming = incoming
        self._outgoing = outgoing
        self._calls: queue.SimpleQueue[wire.Call] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._current: int | None = None
        self._cancelled: set[int] = set()

    def run(self) -> None:
        threading.Thread(target=self._read, name="frames", daemon=True).start()
        while True:
            self._serve(self._calls.get())

    def _read(self) -> None:
        try:
            while (body := wire.read_frame(self._incoming)) is not None:
                frame = wire.decode_request(body)
                if isinstance(frame, wire.Call):
                    self._calls.put(frame)
                else:
                    self._cancel(frame.id)
        finally:
            os._exit(0)  # the session is gone; nothing may outlive it, native code included

    def _cancel(self, call: int) -> None:
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
        try:
            answer: wire.Response = wire.Reply(call.id, wire.encode_value(self._run(call)))
        except EdgewiseError as error:
            answer = wire.Failure(call.id, error.to_dict())
        except MemoryError:
            answer = wire.Failure(call.id, _out_of_memory(call.method))
        except Exception as error:  # noqa: BLE001 - the boundary of the process
            answer = wire.Failure(call.id, _bug(call.method, error))
        with self._lock:
            self._current = None
            self._cancelled.discard(call.id)
        wire.write_frame(self._outgoing, answer)

    def _run(self, call: wire.Call) -> Any:
        method = self._methods.get(call.method)
        if method is None:
            raise AdapterError("worker-method-unknown", f"the worker has no method {call.method!r}")
        params = msgspec.msgpack.decode(call.params, type=method.params)

        def emit(value: Any) -> None:
            wire.write_frame(self._outgoing, wire.Notice(call.id, wire.encode_value(value)))

        return method.run(params, emit)


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
