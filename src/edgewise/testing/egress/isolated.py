"""Run something in a process of its own, inside walls, with everything it does seen.

The walls stand before its first instruction and hold for every process that it starts. Which of
them this system has is found out by trying, and said in the report.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeAlias

from edgewise.errors import InputError
from edgewise.store.home import HOME_VARIABLE, default_home
from edgewise.testing.egress import hook, runner
from edgewise.testing.egress.canary import Canary
from edgewise.testing.egress.enclosure import Enclosure
from edgewise.testing.egress.evidence import Evidence, gather
from edgewise.testing.egress.journal import JournalFolder, Record
from edgewise.testing.egress.judging import Seen, judge
from edgewise.testing.egress.report import CanaryHit, EgressReport, Wall

__all__ = ["ALL_WALLS", "Command", "run_isolated"]

Command: TypeAlias = Callable[..., object] | str | Path | Sequence[str]

ALL_WALLS = frozenset(Wall)
_AFTERWARDS_S = 10.0


def run_isolated(
    what: Command,
    *arguments: object,
    canary: Canary,
    home: Path | None = None,
    roots: Sequence[Path] = (),
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    answer_on_stdout: bool = False,
    timeout_s: float = 600.0,
    on_output: Callable[[str, bytes], None] | None = None,
    walls: Iterable[Wall] = ALL_WALLS,
) -> EgressReport:
    """Return what was seen while something ran inside walls.

    Args:
        what: A function that can be imported, or its name as ``module:function``; the path of a
            Python script; or a command as a sequence of words.
        *arguments: For the function (they are pickled), or further words for the command.
        canary: What its prompt carries. Hand its ``text`` in by an argument or ``stdin``.
        home: Its home; ``EDGEWISE_HOME`` is set to it.
        roots: Further folders in which every file that changed is searched. The home, the current
            folder and the folder for temporary files, which is an own one, always are.
        folder: Its current folder; this process's by default.
        environment: Variables over this process's own.
        stdin: What it reads on standard input, unless it is a function.
        answer_on_stdout: Whether its own standard output is where the answer belongs, which may
            repeat the prompt; it is not searched then.
        timeout_s: It is killed after so many seconds.
        on_output: Called with ``stdout`` or ``stderr`` and all that was written there.
        walls: Which walls to try.

    Raises:
        InputError: a function cannot be imported by its name, or its arguments not pickled.
        ResourceError: the process cannot be started.
    """
    words, given = _command(what, arguments)
    where = (home or default_home()).absolute()
    current = (folder or Path.cwd()).absolute()
    with JournalFolder(canary) as own:
        run = _Run(canary, frozenset(walls), answer_on_stdout=answer_on_stdout)
        since_ns = (own.path / hook.JOURNAL).stat().st_ctime_ns
        variables = {**os.environ, **(environment or {})}
        variables |= {HOME_VARIABLE: str(where), "TMPDIR": str(own.scratch)}
        if Wall.AUDIT_HOOK in run.wanted:
            inherited = filter(None, [variables.get("PYTHONPATH")])
            variables["PYTHONPATH"] = os.pathsep.join([str(own.path), *inherited])
        run.carry_out(words, variables, current, stdin if given is None else given, timeout_s)
        kernel = Wall.SECCOMP in run.walls
        records = [*own.records(), *run.records]
        evidence = gather(
            records,
            canary,
            roots=[where, current, own.scratch, *roots, *_shared_temporary(kernel=kernel)],
            since_ns=since_ns,
            ignored=[own.path],
            kernel_saw_all=kernel,
        )
        report = judge(run.seen(records, evidence), canary)
    for name, data in run.outputs.items():
        if on_output is not None:
            on_output(name, bytes(data))
    return report


def _shared_temporary(*, kernel: bool) -> list[Path]:
    """Return where native code may put files unseen, if the kernel does not tell."""
    return [] if kernel else [Path(tempfile.gettempdir())]


def _command(what: Command, arguments: Sequence[object]) -> tuple[list[str], bytes | None]:
    """Return the words of the command, and what it is given on standard input, if anything."""
    if isinstance(what, Path):
        return [sys.executable, str(what), *map(str, arguments)], None
    if isinstance(what, str) or callable(what):
        module, _, name = what.partition(":") if isinstance(what, str) else _named(what)
        if not module or not name or "<" in name or module == "__main__":
            raise InputError(
                "egress-callable",
                "what runs in another process must be importable by its name",
                context={"module": module, "name": name},
                hint="define the function in a module, or give a script's path or a command",
            )
        try:
            given = pickle.dumps((sys.path, module, name, pickle.dumps(arguments)))
        except Exception as error:
            raise InputError(
                "egress-callable",
                f"the arguments cannot be handed to another process: {error}",
                hint="pass plain values",
            ) from error
        return [sys.executable, "-P", str(Path(runner.__file__).resolve())], given
    return [*map(str, what), *map(str, arguments)], None


def _named(what: Callable[..., object]) -> tuple[str, str, str]:
    return getattr(what, "__module__", "") or "", ":", getattr(what, "__qualname__", "")


class _Run:
    """One run: what was recorded of it, and how it ended."""

    def __init__(self, canary: Canary, wanted: frozenset[Wall], *, answer_on_stdout: bool) -> None:
        self.wanted = wanted
        self.records: list[Record] = []
        self.outputs = {"stdout": bytearray(), "stderr": bytearray()}
        self._patterns = canary.patterns()
        self._answer_on_stdout = answer_on_stdout
        self._enclosure = Enclosure(wanted, self._patterns, self._record)
        self._status: int | None = None
        self._trouble = ""
        self._main = 0

    @property
    def walls(self) -> tuple[Wall, ...]:
        """Return the walls that stood."""
        hooked = (Wall.AUDIT_HOOK,) if Wall.AUDIT_HOOK in self.wanted else ()
        return (*self._enclosure.walls, *hooked)

    def carry_out(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        stdin: bytes,
        timeout_s: float,
    ) -> None:
        """Run the command to its end, or to the end of its time."""
        process = self._enclosure.start(words, environment=environment, folder=folder)
        self._main = process.pid
        threads = self._streams(process, stdin)
        try:
            self._status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._trouble = f"it was killed after {timeout_s:g} s"
        except BaseException:
            self._enclosure.kill()
            self._enclosure.finish(_AFTERWARDS_S)
            raise
        finally:
            if self._status is None:
                self._enclosure.kill()
                self._status = process.wait()
        if not self._enclosure.finish(_AFTERWARDS_S):
            self._trouble = self._trouble or "processes outlived the command, and were killed"
        for thread in threads:
            thread.join(_AFTERWARDS_S)
            if thread.is_alive():
                self._trouble = self._trouble or "processes outlived the command, and were killed"
                self._enclosure.kill()

    def seen(self, records: Sequence[Record], evidence: Evidence) -> Seen:
        """Return everything that the verdicts rest on."""
        for name, data in self.outputs.items():
            form = hook.find_in(data, self._patterns)
            if form and not (name == "stdout" and self._answer_on_stdout):
                evidence.output_hits.append(CanaryHit(place=f"its {name}", form=form))
        watched = any(record.kind == "hello" for record in records)
        doubts = {"end": [self._enclosure.failure]} if self._enclosure.failure else {}
        if not watched:
            doubts["crash-dumps"] = ["no Python process was watched, so no limit is known"]
        return Seen(
            records=records,
            evidence=evidence,
            walls=self.walls if watched else tuple(self._enclosure.walls),
            missing=tuple(self._enclosure.doubts),
            doubts=doubts,
            outputs_watched=True,
            exit_status=self._status,
            trouble=self._trouble,
        )

    def _record(self, process: int, kind: str, detail: str, form: str) -> None:
        if kind == "output" and self._is_answer(process, detail):
            return
        self.records.append(
            Record(process=process, kind=kind, detail=detail, form=form, seen_by=Wall.SECCOMP)
        )

    def _is_answer(self, process: int, stream: str) -> bool:
        own = process == self._main and stream == "standard output"
        return self._answer_on_stdout and own

    def _streams(self, process: subprocess.Popen[bytes], stdin: bytes) -> list[threading.Thread]:
        """Feed and drain the process's streams beside it."""

        def feed(stream: IO[bytes]) -> None:
            try:
                stream.write(stdin)
                stream.close()
            except OSError:
                return  # it does not want to read

        def drain(stream: IO[bytes], into: bytearray) -> None:
            with stream:
                while piece := os.read(stream.fileno(), 1 << 16):
                    into.extend(piece)

        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        jobs = [
            threading.Thread(target=feed, args=(process.stdin,), daemon=True),
            threading.Thread(
                target=drain, args=(process.stdout, self.outputs["stdout"]), daemon=True
            ),
            threading.Thread(
                target=drain, args=(process.stderr, self.outputs["stderr"]), daemon=True
            ),
        ]
        for job in jobs:
            job.start()
        return jobs
