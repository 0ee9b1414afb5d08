"""Start a command inside the walls that this system has, the strongest that stand.

Each wall is tried, not assumed: an interface that is up, a connection that does not fail, or a
socket that native code is given makes it none. Where the kernel tells a supervisor, the trial
socket also shows that a socket would be counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgewise.errors import ResourceError
from edgewise.testing.egress import launcher
from edgewise.testing.egress.hook import Patterns
from edgewise.testing.egress.report import Wall
from edgewise.testing.egress.supervisor import Record, Supervisor, take_descriptor
from edgewise.testing.egress.syscalls import build_filter, table_of_this_machine

__all__ = ["Enclosure"]

_LISTEN, _SILENT, _NONE = "listen", "silent", "none"


@dataclass(slots=True)
class _Attempt:
    """A process that waits inside its walls, and the two pipes to it."""

    process: subprocess.Popen[bytes]
    heard: int
    tell: int
    told: dict[str, Any] = field(default_factory=dict)

    def hear(self) -> dict[str, Any]:
        line = b""
        while not line.endswith(b"\n"):
            piece = os.read(self.heard, 4096)
            if not piece:
                return {}
            line += piece
        found: dict[str, Any] = json.loads(line)
        return found

    def go_on(self) -> None:
        with contextlib.suppress(OSError):  # it has died, and its status will tell
            os.write(self.tell, b".")

    def close(self) -> None:
        os.close(self.heard)
        os.close(self.tell)

    def give_up(self) -> None:
        self.close()
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Enclosure:
    """One command inside walls.

    Attributes:
        walls: Those that stand, once it has started.
        doubts: Why others do not.
        failure: Why a wall that stood did not stand to the end, or nothing.
    """

    def __init__(self, wanted: frozenset[Wall], patterns: Patterns, record: Record) -> None:
        """Take the walls to try, what to search for, and who records what the kernel tells."""
        self.walls: list[Wall] = []
        self.doubts: list[str] = []
        self.failure = ""
        self._wanted = wanted
        self._patterns = patterns
        self._record = record
        self._supervisor: Supervisor | None = None
        self._table = table_of_this_machine()
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, command: Sequence[str], *, environment: Mapping[str, str], folder: Path
    ) -> subprocess.Popen[bytes]:
        """Return the process, which has become the command, with its three streams as pipes.

        Raises:
            ResourceError: it cannot be started.
        """
        if not sys.platform.startswith("linux"):
            self.doubts.append("this system has none of the walls that are known here")
            self._process = _popen(command, environment, folder, ())
            return self._process
        attempt: _Attempt | None = None
        for mode in self._modes():
            attempt = self._try(mode, command, environment, folder)
            if attempt is not None:
                break
        assert attempt is not None  # the last mode asks for nothing that can be refused
        self._prove(attempt)
        self._process = attempt.process
        return attempt.process

    def finish(self, timeout_s: float) -> bool:
        """Return whether every process has ended by then; those that have not are killed."""
        if self._supervisor is None:
            return True
        over = self._supervisor.finish(timeout_s)
        if self._supervisor.failed and Wall.SECCOMP in self.walls:
            self.walls[self.walls.index(Wall.SECCOMP)] = Wall.SECCOMP_SILENT
            self.failure = f"the supervisor failed: {self._supervisor.failed}"
        if not over:
            self.kill()
        return over

    def kill(self) -> None:
        """Kill the command and what it started, as far as it stayed in its session."""
        if self._process is not None and hasattr(os, "killpg"):
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                return

    def _modes(self) -> list[str]:
        if self._table is None:
            self.doubts.append("no seccomp filter is known for this processor")
            return [_NONE]
        modes = [_LISTEN] if Wall.SECCOMP in self._wanted else []
        return [*modes, *([_SILENT] if Wall.SECCOMP_SILENT in self._wanted else []), _NONE]

    def _try(
        self, mode: str, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> _Attempt | None:
        """Start with one kind of filter; return ``None`` where the kernel does not take it."""
        program = b""
        if mode != _NONE and self._table is not None:
            program = build_filter(self._table, notify=mode == _LISTEN)
        heard, say = os.pipe()
        hear, tell = os.pipe()
        config = {
            "namespace": Wall.NETWORK_NAMESPACE in self._wanted,
            "program": program.hex(),
            "seccomp": self._table.numbers["seccomp"] if self._table is not None else 0,
            "listen": mode == _LISTEN,
            "say": say,
            "hear": hear,
        }
        script = str(Path(launcher.__file__).resolve())
        words = [sys.executable, "-I", "-S", script, json.dumps(config), *command]
        try:
            process = _popen(words, environment, folder, (say, hear))
        except ResourceError:
            os.close(heard)
            os.close(tell)
            raise
        finally:
            os.close(say)
            os.close(hear)
        attempt = _Attempt(process, heard, tell)
        attempt.told = attempt.hear()
        if mode == _NONE or (attempt.told.get("filter") and self._attach(mode, attempt)):
            return attempt
        self.doubts.append(attempt.told.get("filter_why") or "the kernel gave no supervisor's end")
        attempt.give_up()
        return None

    def _attach(self, mode: str, attempt: _Attempt) -> bool:
        if mode == _SILENT:
            return True
        assert self._table is not None
        listener = take_descriptor(self._table, attempt.process.pid, attempt.told["listener"])
        if listener is None:
            return False
        self._supervisor = Supervisor(listener, self._table, self._patterns, self._record)
        self._supervisor.start()
        return True

    def _prove(self, attempt: _Attempt) -> None:
        """Have the process try its walls, write down which stand, and let it go."""
        attempt.go_on()
        proof = attempt.hear()
        if not proof:
            self.failure = "the process ended before what it was to run had begun"
        refused = proof.get("refused")
        if attempt.told.get("namespace"):
            self.walls.append(Wall.NETWORK_NAMESPACE)
        elif attempt.told.get("why"):
            self.doubts.append(f"no network namespace: {attempt.told['why']}")
        supervisor = self._supervisor
        if supervisor is not None and refused and supervisor.refused == 1:
            self.walls.insert(0, Wall.SECCOMP)
        elif refused and supervisor is None:
            self.walls.insert(0, Wall.SECCOMP_SILENT)
        elif attempt.told.get("filter"):
            self.doubts.append("the trial socket was not refused and counted")
        if supervisor is not None:
            supervisor.quiet = False
        attempt.go_on()
        attempt.close()


def _popen(
    words: Sequence[str], environment: Mapping[str, str], folder: Path, keep: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            cwd=folder,
            pass_fds=keep,
            start_new_session=True,
        )
    except OSError as error:
        raise ResourceError(
            "egress-start-failed",
            f"the process to be checked cannot be started: {error}",
            context={"command": words[0], "folder": str(folder)},
            hint="check that its folder exists and that processes may be started",
        ) from error
