"""The time that one ask has: every wait ends at its deadline, or at once when it is cancelled."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Self, TypeVar

from edgewise.route.cloud import faults
from edgewise.route.cloud.cancel import CancelToken
from edgewise.route.cloud.faults import Fault, FaultError

__all__ = ["Span"]

_Result = TypeVar("_Result")


class Span:
    """A deadline and a cancel token, and the waits that heed both.

    Args:
        seconds: From now until the deadline.
        token: Cancels whatever waits.
    """

    def __init__(self, seconds: float, token: CancelToken) -> None:
        self.began = time.monotonic()
        self._ends = self.began + seconds
        self._token = token
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._woken, self._wake = os.pipe()
        self._stack.callback(os.close, self._woken)
        self._stack.callback(os.close, self._wake)
        os.set_blocking(self._wake, False)
        self._stack.enter_context(self._token.waking(self._rouse))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def left_s(self) -> float:
        """Return the seconds until the deadline, 0 or more."""
        return max(0.0, self._ends - time.monotonic())

    def check(self) -> None:
        """Return when there is time left and nobody has cancelled.

        Raises:
            FaultError: otherwise.
        """
        if self._token.cancelled:
            raise FaultError(faults.cancelled())
        if self.left_s <= 0:
            raise FaultError(faults.deadline())

    def until_ready(self, sock: socket.socket, *, writing: bool, most_s: float, doing: str) -> None:
        """Wait until a socket can be read or written.

        Args:
            sock: The socket.
            writing: Whether it shall be written.
            most_s: Longest wait, seconds.
            doing: What is waited for, for the message.

        Raises:
            FaultError: cancelled, past the deadline, or ``most_s`` passed.
        """
        self.check()
        poll = select.poll()
        poll.register(sock, select.POLLOUT if writing else select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        left_s = self.left_s
        ready = poll.poll(min(left_s, most_s) * 1e3)
        self.check()
        if not ready:
            raise FaultError(_too_long(left_s, most_s, doing))

    def sleep(self, seconds: float) -> None:
        """Wait.

        Raises:
            FaultError: cancelled, or past the deadline.
        """
        woken = threading.Event()
        with self._token.waking(woken.set):
            woken.wait(min(seconds, self.left_s))
        self.check()

    def run(self, work: Callable[[], _Result], *, most_s: float, doing: str) -> _Result:
        """Return what a call that cannot be interrupted returns, and do not wait for it too long.

        Where the wait ends first the call goes on in a thread of its own; what it returns then is
        dropped.

        Raises:
            FaultError: cancelled, past the deadline, or ``most_s`` passed.
            BaseException: what the call raised.
        """
        self.check()
        done = threading.Event()
        results: list[_Result] = []
        errors: list[BaseException] = []

        def call() -> None:
            try:
                results.append(work())
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                errors.append(error)
            finally:
                done.set()

        left_s = self.left_s
        with self._token.waking(done.set):
            threading.Thread(target=call, name="edgewise-cloud-wait", daemon=True).start()
            done.wait(min(left_s, most_s))
        if errors:
            raise errors[0]
        if not results:
            self.check()
            raise FaultError(_too_long(left_s, most_s, doing))
        return results[0]

    def _rouse(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"\0")


def _too_long(left_s: float, most_s: float, doing: str) -> Fault:
    return faults.silence(doing, most_s) if most_s < left_s else faults.deadline()
