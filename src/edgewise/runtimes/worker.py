"""The session's side of a worker process: start it, call it, cancel, detect its death, kill it.

Calls may be made from several threads; each gets the frames of its own call.

Invariants: every call ends by a result, a typed error, or a kill within its time limit; what a
dead worker leaves behind is one :class:`~edgewise.errors.AdapterError` with its exit status and
last native messages; :meth:`WorkerProcess.close` always ends the process.
"""

from __future__ import annotations

import collections
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from edgewise.errors import AdapterError, EdgewiseError, ResourceError, error_from_dict
from edgewise.runtimes import wire
from edgewise.runtimes.host import MEMORY_LIMIT_VARIABLE

__all__ = ["IDLE_TIMEOUT_S", "PendingCall", "WorkerProcess"]

_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
_STDERR_LINES = 40
_CLOSE_TIMEOUT_S = 2.0
# Without any frame for this long a worker counts as hung. Prefill reports after every step, so
# only one native step has to fit in.
IDLE_TIMEOUT_S = 120.0

_Frames: TypeAlias = "queue.SimpleQueue[wire.Response | None]"

T = TypeVar("T")


class WorkerProcess:
    """One worker process running one service."""

    def __init__(
        self,
        service: str,
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        memory_limit_bytes: int | None = None,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> None:
        """Start the process; it is ready to be called at once.

        Args:
            service: ``module:attribute`` of the service, importable in the worker.
            python: The interpreter to run it in.
            environment: Variables to set before exec, over the session's own.
            memory_limit_bytes: Most anonymous memory the worker may allocate.
            idle_timeout_s: Silence after which a running call counts as hung.

        Raises:
            ResourceError: the process cannot be started.
        """
        variables = {**os.environ, **(environment or {})}
        if memory_limit_bytes is not None:
            variables[MEMORY_LIMIT_VARIABLE] = str(memory_limit_bytes)
        # -P: the folder the user happens to stand in is no place to import from.
        command = [python, "-P", "-X", "utf8", str(_BOOTSTRAP), service]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=variables,
            )
        except OSError as error:
            raise ResourceError(
                "worker-start-failed",
                f"the worker process cannot be started: {error}",
                context={"python": python},
                hint="check the limits on processes and memory; an environment that is damaged "
                "is made anew by `edgewise runtime remove` and `install`",
            ) from error
        self._idle_timeout_s = idle_timeout_s
        self._calls: dict[int, _Frames] = {}
        self._calls_lock = threading.Lock()
        self._ended = False
        self._fatal: AdapterError | None = None
        self._heard_s = time.monotonic()
        self._stderr: collections.deque[str] = collections.deque(maxlen=_STDERR_LINES)
        self._write_lock = threading.Lock()
        self._ids = itertools.count(1)
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._read, "frames"), (self._drain, "stderr"))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether the process still runs."""
        return self._process.poll() is None

    def start(self, method: str, params: Any = None) -> PendingCall:
        """Send a call and return a handle; collect the result with :meth:`PendingCall.result`.

        Raises:
            AdapterError: the worker is dead.
        """
        frames: _Frames = queue.SimpleQueue()
        with self._calls_lock:
            call = wire.Call(next(self._ids), method, wire.encode_value(params))
            self._calls[call.id] = frames
            if self._ended:
                frames.put(None)
        try:
            self._send(call)
        except BaseException:
            self._forget(call.id)
            raise
        return PendingCall(self, call.id, method, frames)

    def _forget(self, call: int) -> None:
        with self._calls_lock:
            self._calls.pop(call, None)

    def call(
        self, method: str, params: Any, result: type[T], *, timeout_s: float | None = None
    ) -> T:
        """Send a call, wait, and return its result.

        Raises:
            EdgewiseError: the error the worker raised, with its own type.
            AdapterError: the worker died or hung; it is gone afterwards.
        """
        return self.start(method, params).result(result, timeout_s=timeout_s)

    def beside(self, method: str, params: Any, result: type[T], *, timeout_s: float) -> T:
        """Call a method that runs beside the others, and return its result; from any thread.

        Raises:
            EdgewiseError: the error the worker raised, with its own type.
            AdapterError: the worker is dead, or did not answer in time; it lives on then.
        """
        pending = self.start(method, params)
        try:
            frame = pending.first_frame(timeout_s)
        except queue.Empty:
            raise AdapterError(
                "worker-hung",
                f"the worker said nothing for {timeout_s:g} s during {method}",
                context={"pid": self.pid},
                retryable=True,
            ) from None
        finally:
            self._forget(pending.id)
        if frame is None:
            raise self._death()
        if isinstance(frame, wire.Failure):
            raise _with_method(error_from_dict(frame.error), method)
        try:
            return msgspec.msgpack.decode(frame.value, type=result)
        except msgspec.MsgspecError as error:
            raise AdapterError(
                "frame-invalid", f"the worker's answer to {method} cannot be read"
            ) from error

    def kill(self) -> None:
        """End the process without asking."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process: close its input, and kill it if that does not do."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                self._process.kill()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(_CLOSE_TIMEOUT_S)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _send(self, frame: wire.Request) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            with self._write_lock:
                wire.write_frame(stdin, frame)  # type: ignore[arg-type]
        except (OSError, ValueError) as error:
            raise self._death() from error

    def _next_frame(
        self, frames: _Frames, method: str, timeout_s: float, *, begun: bool
    ) -> wire.Response:
        """Return a call's next frame.

        A call that has not begun may wait for others: while those are heard, it does not hang.
        """
        wait_s = timeout_s
        while True:
            try:
                frame = frames.get(timeout=wait_s)
                break
            except queue.Empty:
                wait_s = self._heard_s + timeout_s - time.monotonic()
                if begun or wait_s <= 0:
                    raise self._hung(method, timeout_s) from None
        if frame is None:
            raise self._death()
        return frame

    def _hung(self, method: str, timeout_s: float) -> AdapterError:
        self._fatal = AdapterError(
            "worker-hung",
            f"the worker said nothing for {timeout_s:g} s during {method} and was ended",
            context={"pid": self.pid, "native_log": list(self._stderr)},
            retryable=True,
        )
        self.kill()
        return self._fatal

    def _death(self) -> EdgewiseError:
        if self._fatal is not None:  # a copy for each call: several threads raise it
            self.kill()
            return error_from_dict(self._fatal.to_dict())
        status = self._process.wait()
        for thread in self._threads:
            thread.join(_CLOSE_TIMEOUT_S)
        context = {"pid": self.pid, "exit_status": status, "native_log": list(self._stderr)}
        if status == -signal.SIGKILL:
            return AdapterError(
                "worker-killed",
                "the worker was killed from outside, perhaps because memory ran out",
                context=context,
                hint="look for an out-of-memory kill in the system log; use a smaller context",
                retryable=True,
            )
        if any(line.startswith("MemoryError") for line in self._stderr):
            return ResourceError(
                "worker-out-of-memory",
                "the worker ran out of memory while it started",
                context=context,
                hint="raise the memory limit of this process",
                retryable=True,
            )
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return AdapterError(
            "worker-crashed",
            f"the worker ended with {how}",
            context=context,
            hint="the native lines say more; ask again, which starts a new worker",
            retryable=True,
        )

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        try:
            while (body := wire.read_frame(stdout)) is not None:  # type: ignore[arg-type]
                frame = wire.decode_response(body)
                self._heard_s = time.monotonic()
                frames = self._calls.get(frame.id)
                if frames is not None:  # else the tail of a call that was abandoned
                    frames.put(frame)
        except AdapterError as error:
            self._fatal = error
        except (OSError, ValueError):
            pass  # the pipe was closed under us: the end of the stream, handled below
        with self._calls_lock:
            self._ended = True
            for frames in self._calls.values():
                frames.put(None)

    def _drain(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        try:
            for line in stderr:
                self._stderr.append(line.decode("utf-8", "replace").rstrip())
        except (OSError, ValueError):
            return


class PendingCall:
    """A call that runs in the worker."""

    def __init__(self, worker: WorkerProcess, call_id: int, method: str, frames: _Frames) -> None:
        self._worker = worker
        self.id = call_id
        self._method = method
        self._frames = frames
        self._begun = False

    def first_frame(self, timeout_s: float) -> wire.Response | None:
        """Return the first frame, ``None`` when the worker has ended.

        Raises:
            queue.Empty: none came in time.
        """
        return self._frames.get(timeout=timeout_s)

    def cancel(self) -> None:
        """Ask the worker to abort the call. The result still has to be collected.

        Raises:
            AdapterError: the worker is dead.
        """
        self._worker._send(wire.Cancel(self.id))  # noqa: SLF001 - one unit

    def result(
        self,
        result: type[T],
        *,
        notice: Any = None,
        on_notice: Callable[[Any], None] | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """Wait for the call to end and return its result.

        Args:
            result: Type of the result.
            notice: Type of the notices on the way.
            on_notice: Called with each notice.
            timeout_s: Longest silence, if another than the worker's own.

        Raises:
            EdgewiseError: the error the worker raised, with its own type.
            AdapterError: the worker died or hung; it is gone afterwards.
        """
        limit = timeout_s if timeout_s is not None else self._worker._idle_timeout_s  # noqa: SLF001
        while True:
            frame = self._worker._next_frame(  # noqa: SLF001
                self._frames, self._method, limit, begun=self._begun
            )
            self._begun = True
            if not isinstance(frame, wire.Notice):
                self._worker._forget(self.id)  # noqa: SLF001
            if isinstance(frame, wire.Failure):
                raise _with_method(error_from_dict(frame.error), self._method)
            value_type = notice if isinstance(frame, wire.Notice) else result
            try:
                value = msgspec.msgpack.decode(frame.value, type=value_type)
            except msgspec.MsgspecError as error:
                self._worker.kill()
                raise AdapterError(
                    "frame-invalid", f"the worker's answer to {self._method} cannot be read"
                ) from error
            if isinstance(frame, wire.Reply):
                return value
            if on_notice is not None:
                on_notice(value)


def _with_method(error: EdgewiseError, method: str) -> EdgewiseError:
    error.context.setdefault("worker_method", method)
    return error
