"""The folder that watched processes record into, and what is read from it."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from edgewise.testing.egress import hook
from edgewise.testing.egress.canary import Canary
from edgewise.testing.egress.report import Wall

__all__ = ["JournalFolder", "Record"]

# Loaded by the interpreter before anything else, in every Python process below the harness.
_BOOT = """\
import importlib.machinery as _machinery
import importlib.util as _util
import os as _os
import sys as _sys

_here = _os.path.dirname(_os.path.abspath(__file__))
_spec = _util.spec_from_file_location("_edgewise_egress_hook", {hook!r})
_hook = _util.module_from_spec(_spec)
_spec.loader.exec_module(_hook)
_hook.start_in_child(_here)
# The one that this file hides is run too.
_others = [p for p in _sys.path if _os.path.abspath(p) != _here]
_next = _machinery.PathFinder.find_spec("sitecustomize", _others)
if _next is not None and _next.loader is not None:
    _next.loader.exec_module(_util.module_from_spec(_next))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One thing that was seen."""

    process: int
    kind: str
    detail: str
    form: str
    seen_by: Wall


class JournalFolder:
    """A folder of the harness's own, readable by its owner only; it is removed at the end.

    Attributes:
        path: The folder.
        scratch: A folder in it for temporary files of what is watched.
    """

    def __init__(self, canary: Canary) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="edgewise-egress-")).resolve()
        self.scratch = self.path.with_name(f"{self.path.name}-tmp")
        self.scratch.mkdir(mode=0o700)
        forms = [(name, data.hex()) for name, data in canary.patterns()]
        (self.path / hook.FORMS).write_text(json.dumps(forms), encoding="utf-8")
        (self.path / hook.JOURNAL).touch(mode=0o600)
        boot = _BOOT.format(hook=str(Path(hook.__file__).resolve()))
        (self.path / "sitecustomize.py").write_text(boot, encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder and what was left in its scratch."""
        for path in (self.path, self.scratch):
            shutil.rmtree(path, ignore_errors=True)

    def records(self) -> list[Record]:
        """Return what the hooks recorded; a line that a killed process left half-written ends it.

        Lines are appended whole, so only a full disk can leave one.
        """
        found = []
        with (self.path / hook.JOURNAL).open(encoding="utf-8") as stream:
            for line in stream:
                try:
                    fields = json.loads(line)
                except ValueError:
                    kind, detail = "unreadable", "a record of a process is damaged"
                    fields = {"process": 0, "kind": kind, "detail": detail, "form": ""}
                found.append(Record(**fields, seen_by=Wall.AUDIT_HOOK))
        return found
