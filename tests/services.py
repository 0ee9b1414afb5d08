"""Services for worker tests: real processes that misbehave on demand."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from edgewise.errors import InputError
from edgewise.runtimes.host import Emit, Method

ECHO = "tests.services:EchoService"
# Workers import nothing from the current folder, so this one is told where the tests are.
HERE = {"PYTHONPATH": str(Path(__file__).parents[1])}


class EchoService:
    def __init__(self) -> None:
        self._cancelled = threading.Event()

    def methods(self) -> dict[str, Method]:
        return {
            "echo": Method(Any, lambda value, _emit: value),
            "count": Method(int, self._count),
            "wait": Method(None, self._wait),
            "fail": Method(None, self._fail),
            "bug": Method(str, self._bug),
            "exit": Method(int, lambda code, _emit: os._exit(code)),
            "abort": Method(None, lambda _value, _emit: os.abort()),
            "print": Method(str, self._print),
            "environment": Method(str, lambda name, _emit: os.environ.get(name)),
            "allocate": Method(int, lambda size, _emit: len(bytearray(size))),
            "beside": Method(Any, lambda value, _emit: value, beside=True),
            "beside-fail": Method(None, self._fail, beside=True),
            "beside-wait": Method(None, self._hang, beside=True),
            "garbage": Method(None, self._garbage),
        }

    def cancel(self) -> None:
        self._cancelled.set()

    def clear_cancel(self) -> None:
        self._cancelled.clear()

    def _count(self, upto: int, emit: Emit) -> int:
        for number in range(upto):
            emit(number)
        return upto

    def _wait(self, _params: None, emit: Emit) -> str:
        emit(0)
        return "cancelled" if self._cancelled.wait(30) else "not cancelled"

    def _hang(self, _params: None, _emit: Emit) -> None:
        threading.Event().wait(30)

    def _fail(self, _params: None, _emit: Emit) -> None:
        raise InputError("some-code", "a message", context={"n": 3}, hint="a hint")

    def _bug(self, secret: str, _emit: Emit) -> None:
        raise ValueError(f"the prompt was {secret}")

    def _print(self, text: str, _emit: Emit) -> str:
        sys.stdout.write(text)
        sys.stdout.flush()
        os.write(1, text.encode())
        os.write(2, b"native complaint\n")
        return "done"

    def _garbage(self, _params: None, _emit: Emit) -> None:
        # What a native library that writes to a descriptor it does not own would do.
        for descriptor in range(3, 20):
            try:
                if str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("pipe:"):
                    os.write(descriptor, b"\x05\x00\x00\x00hello")
            except OSError:
                continue
        sys.stdout.flush()


LANED = "tests.services:LanedEchoService"


class LanedEchoService(EchoService):
    """Two lanes for two methods; everything else one at a time."""

    lane_methods = frozenset({"wait", "count"})

    def lanes(self) -> list[EchoService]:
        return [EchoService(), EchoService()]
