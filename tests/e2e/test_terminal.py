"""Ctrl-C and chat in a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

LIMIT_S = 120.0


def take_terminal() -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever runs the tests may ignore it
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A process on a pseudo-terminal of its own."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edgewise.cli", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=take_terminal,  # noqa: PLW1509 - Ctrl-C needs a controlling terminal
            env={**os.environ, "EDGEWISE_HOME": str(home), "NO_COLOR": "1", "TERM": "dumb"},
        )
        os.close(slave)
        self.seen = ""

    def until(self, text: str) -> None:
        """Read until ``text`` has been shown after what was already waited for."""
        deadline = time.monotonic() + LIMIT_S
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], deadline - time.monotonic())
            assert ready, f"{text!r} never came: {self.seen!r}"
            try:
                data = os.read(self.master, 4096)
            except OSError:
                data = b""
            assert data, f"the process ended before {text!r}: {self.seen!r}"
            self.seen += data.decode("utf-8", "replace")
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(ready_home: Path) -> Iterator[type[Terminal]]:
    opened: list[Terminal] = []

    class Opened(Terminal):
        def __init__(self, *arguments: str) -> None:
            super().__init__(ready_home, *arguments)
            opened.append(self)

    yield Opened
    for one in opened:
        one.close()


def test_ctrl_c_stops_an_answer_and_leaves_a_prompt(terminal) -> None:
    chat = terminal("chat", "--max-tokens", "900")
    chat.until("> ")
    chat.type("Write a very long story about a lighthouse.\n")
    chat.until("lighthouse.")
    chat.until("a")
    chat.type("\x03")
    started = time.monotonic()
    chat.until("cancelled")
    # The promise is 0.1 s on a quiet machine; this finds a cancel that waits for the answer.
    assert time.monotonic() - started < 1.0
    chat.until("> ")
    chat.type("Say hello.\n")
    chat.until("tok/s")
    chat.until("> ")
    chat.type("/quit\n")
    assert chat.process.wait(LIMIT_S) == 0


def test_chat_remembers_and_forgets(terminal) -> None:
    chat = terminal("chat", "--max-tokens", "12")
    chat.until("> ")
    chat.type("Name a colour.\n")
    chat.until("tok/s")
    chat.until("> ")
    chat.type("Another?\n")
    chat.until("reused")
    chat.until("> ")
    chat.type("/reset\n")
    chat.until("forgotten")
    chat.type("/quit\n")
    assert chat.process.wait(LIMIT_S) == 0


def test_ctrl_c_ends_run_with_130(terminal) -> None:
    run = terminal("run", "Write a very long story about a lighthouse.", "--max-tokens", "900")
    run.until("a")
    os.killpg(run.process.pid, signal.SIGINT)
    run.until("cancelled")
    assert run.process.wait(LIMIT_S) == 130
