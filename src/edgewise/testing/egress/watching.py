"""Watch code of this process, and the Python processes that it starts.

An audit hook sees what Python code does. It does not see native code, nor writes to a descriptor
that was open before; what it cannot see is said. :func:`edgewise.testing.egress.run_isolated`
sees both.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from edgewise.errors import InputError
from edgewise.store.home import default_home
from edgewise.testing.egress import hook
from edgewise.testing.egress.canary import Canary
from edgewise.testing.egress.evidence import Evidence, gather
from edgewise.testing.egress.journal import JournalFolder
from edgewise.testing.egress.judging import Seen, judge
from edgewise.testing.egress.report import CanaryHit, EgressReport, Wall

__all__ = ["Watch", "watch"]

_DESCRIPTORS = Path("/proc/self/fd")


def watch(
    *, home: Path | None = None, canary: Canary | None = None, roots: Sequence[Path] | None = None
) -> Watch:
    """Return a watch on this process, for a ``with`` block; all its threads are watched.

    Args:
        home: The home that is in use; ``EDGEWISE_HOME`` or the platform's by default.
        canary: What the prompt carries; one is made by default, as ``canary`` of the watch.
        roots: Folders in which every file that changed is searched; the home, the folder for
            temporary files and the current one by default.
    """
    return Watch(home=home, canary=canary, roots=roots)


class Watch:
    """A watch on this process.

    Attributes:
        canary: Put its ``text`` into the prompt.
    """

    def __init__(
        self, *, home: Path | None, canary: Canary | None, roots: Sequence[Path] | None
    ) -> None:
        self.canary = canary or Canary.mint()
        here = (home or default_home(), Path(tempfile.gettempdir()), Path.cwd())
        self._roots = tuple(path.absolute() for path in (here if roots is None else roots))
        self._doubts: dict[str, list[str]] = {}
        self._open_before: dict[int, str] = {}
        self._report: EgressReport | None = None
        self._folder: JournalFolder | None = None
        self._journal: hook.Journal | None = None
        self._path_before: str | None = None
        self._since_ns = 0

    def __enter__(self) -> Self:
        if self._folder is not None or self._report is not None:
            raise InputError("egress-watch-reused", "a watch is used once", hint="make another one")
        self._folder = JournalFolder(self.canary)
        self._journal = hook.Journal(str(self._folder.path))
        self._since_ns = (self._folder.path / hook.JOURNAL).stat().st_ctime_ns
        self._note_what_was_there()
        self._path_before = os.environ.get("PYTHONPATH")
        inherited = [self._path_before] if self._path_before else []
        os.environ["PYTHONPATH"] = os.pathsep.join([str(self._folder.path), *inherited])
        self._journal.record("hello", json.dumps([sys.executable, *sys.orig_argv[1:]]))
        self._journal.record("core-limit", hook.core_limit())
        hook.start(self._journal)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._folder is not None
        assert self._journal is not None
        hook.stop(self._journal)
        if self._path_before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = self._path_before
        try:
            self._journal.record("core-limit", hook.core_limit())
            self._journal.close()
            self._report = self._judged(self._folder)
        finally:
            self._folder.remove()

    def heard(self) -> set[int]:
        """Return the processes that have been watched so far; none once the block has ended."""
        if self._folder is None or self._report is not None:
            return set()
        return {r.process for r in self._folder.records() if r.kind == "hello"}

    def report(self) -> EgressReport:
        """Return what was seen, once the block has ended.

        Raises:
            InputError: it has not ended yet.
        """
        if self._report is None:
            raise InputError(
                "egress-not-ended",
                "the watch has not ended, so nothing can be said yet",
                hint="ask for the report after the with block",
            )
        return self._report

    def _judged(self, folder: JournalFolder) -> EgressReport:
        records = folder.records()
        self._note_what_stays(records_of={r.process for r in records if r.kind == "hello"})
        evidence = gather(
            records,
            self.canary,
            roots=self._roots,
            since_ns=self._since_ns,
            ignored=(folder.path, folder.scratch),
            kernel_saw_all=False,
        )
        self._search_what_was_open(evidence)
        seen = Seen(
            records=records,
            evidence=evidence,
            walls=(Wall.AUDIT_HOOK,),
            missing=("there are no walls around code of this process",),
            doubts=self._doubts,
            outputs_watched=False,
            exit_status=None,
        )
        return judge(seen, self.canary)

    def _search_what_was_open(self, evidence: Evidence) -> None:
        """Search files that were open for writing before; a write to one raises no event."""
        patterns = self.canary.patterns()
        for number, path in self._open_before.items():
            forms = [hook.search_file(p, patterns) for p in (f"{_DESCRIPTORS}/{number}", path)]
            form = next(filter(None, forms), None)
            if form:
                hit = CanaryHit(place=f"{self.canary.mask(path)}, which was open before", form=form)
                evidence.file_hits.append(hit)
            elif forms[1] is None and forms[0] is None:
                self._doubt("files", f"{path} was open before and cannot be searched")

    def _doubt(self, check: str, why: str) -> None:
        self._doubts.setdefault(check, []).append(why)

    def _note_what_was_there(self) -> None:
        """Note what an audit hook will never tell of: what was open, and who ran, before."""
        for number, target, mode in _descriptors():
            if stat.S_ISSOCK(mode):
                self._doubt("sockets", f"descriptor {number} was a socket before")
            elif stat.S_ISREG(mode) and hook.writable(number):
                self._open_before[number] = target
        for child in _children():
            self._doubt("programs", f"process {child} ran before, and was not watched")

    def _note_what_stays(self, records_of: set[int]) -> None:
        for child in _children():
            if child in records_of:
                self._doubt("end", f"process {child} still runs")


def _descriptors() -> list[tuple[int, str, int]]:
    """Return number, target and mode of every open descriptor; nothing where nobody tells."""
    found = []
    try:
        names = [entry.name for entry in _DESCRIPTORS.iterdir()]
    except OSError:
        return []
    for name in names:
        try:
            mode = os.fstat(int(name)).st_mode
            found.append((int(name), str((_DESCRIPTORS / name).readlink()), mode))
        except OSError:
            continue
    return found


def _children() -> set[int]:
    import psutil  # noqa: PLC0415 - not needed to import this module

    try:
        return {child.pid for child in psutil.Process().children(recursive=True)}
    except psutil.Error:
        return set()
