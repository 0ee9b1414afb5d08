"""From what was recorded to places: which files were written, and where the canary turned up."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgewise.testing.egress.canary import Canary
from edgewise.testing.egress.hook import Patterns, find_in, is_file, search_file
from edgewise.testing.egress.journal import Record
from edgewise.testing.egress.report import CanaryHit, Wall

__all__ = ["Evidence", "gather"]

_ENTRIES_MAX = 500_000
# Discards what is written, or is the terminal of whoever started this.
_HARMLESS_DEVICES = frozenset({"/dev/null", "/dev/zero", "/dev/full", "/dev/tty"})
_WHERE = {
    "socket": "address of a socket",
    "lookup": "name that was looked up",
    "program": "command line",
    "hello": "command line",
    "name": "name of a file",
}


@dataclass(slots=True)
class Evidence:
    """What became of the files, and every hit.

    Attributes:
        writes: Files that were opened for writing, or made another way.
        unsearched: What was written and cannot be searched, with the reason.
        file_hits: Files that hold the canary, or whose name does.
        other_hits: Command lines, environments, addresses and names looked up that hold it.
        output_hits: Output that holds it.
    """

    writes: list[str] = field(default_factory=list)
    unsearched: list[str] = field(default_factory=list)
    file_hits: list[CanaryHit] = field(default_factory=list)
    other_hits: list[CanaryHit] = field(default_factory=list)
    output_hits: list[CanaryHit] = field(default_factory=list)


def gather(
    records: Sequence[Record],
    canary: Canary,
    *,
    roots: Iterable[Path],
    since_ns: int,
    ignored: Sequence[Path],
    kernel_saw_all: bool,
) -> Evidence:
    """Return where the canary is, after everything that ran has ended.

    Args:
        records: What was recorded, in the order of each process.
        canary: What to look for.
        roots: Folders in which every file that changed is searched, whoever changed it.
        since_ns: Time before the first of it ran, by the clock of the file system.
        ignored: Folders and files of the harness itself.
        kernel_saw_all: Whether removals by native code were recorded too.
    """
    patterns = canary.patterns()
    found = Evidence()
    paths = _written(records)
    settled = {r.detail for r in records if r.kind in {"searched", "hit"}}
    moved = {source for source, _ in _renames(records)}
    for record in records:
        # The hook tells of a file without a name before the kernel refuses it.
        refused = kernel_saw_all and record.seen_by is Wall.AUDIT_HOOK
        if not (refused and record.kind == "anonymous"):
            _read_record(record, canary, patterns, found)
    for path in _changed(roots, since_ns, found):
        paths.setdefault(path, "changed")
    for path, how in paths.items():
        if any(_is_below(path, folder) for folder in ignored):
            continue
        found.writes.append(canary.mask(path))
        if form := find_in(os.fsencode(path), patterns):
            _add(found.file_hits, CanaryHit(place=f"name of {canary.mask(path)}", form=form))
        why = _search(path, patterns, found, canary)
        gone = path in settled or path in moved or how in {"perhaps", "changed"} or kernel_saw_all
        if why and not (why == "it is gone" and gone):
            found.unsearched.append(f"{canary.mask(path)}: {why}")
    return found


def _written(records: Sequence[Record]) -> dict[str, str]:
    paths: dict[str, str] = {}
    for record in records:
        if record.kind in {"write", "write-perhaps"}:
            how = "written" if record.kind == "write" else "perhaps"
            if paths.get(record.detail) != "written":
                paths[record.detail] = how
    for _, target in _renames(records):
        paths[target] = "written"
    return paths


def _renames(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    for record in records:
        if record.kind == "rename":
            source, target = json.loads(record.detail)
            yield source, target


def _read_record(record: Record, canary: Canary, patterns: Patterns, found: Evidence) -> None:
    shown = canary.mask(record.detail)
    if record.kind == "hit":
        of_file = record.seen_by is Wall.AUDIT_HOOK or record.detail.startswith("/")
        hits = found.file_hits if of_file else found.other_hits
        _add(hits, CanaryHit(place=shown, form=record.form))
    elif record.kind == "output":
        place = f"{record.detail} of process {record.process}"
        _add(found.output_hits, CanaryHit(place=place, form=record.form))
    elif record.kind in {"anonymous", "unsearched", "unreadable"}:
        why = {"anonymous": "it has no name", "unsearched": "it was removed and could not be read"}
        found.unsearched.append(f"{shown}: {why.get(record.kind, 'it could not be followed')}")
    elif record.kind in _WHERE and (form := find_in(os.fsencode(record.detail), patterns)):
        hits = found.file_hits if record.kind == "name" else found.other_hits
        _add(hits, CanaryHit(place=f"{_WHERE[record.kind]}: {shown}", form=form))


def _search(path: str, patterns: Patterns, found: Evidence, canary: Canary) -> str:
    """Search a file that was written; return why that was impossible, or an empty text."""
    form = search_file(path, patterns)
    if form is not None:
        if form:
            _add(found.file_hits, CanaryHit(place=canary.mask(path), form=form))
        return ""
    if is_file(path):
        return "it cannot be read"
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - the path may be any text
    except OSError:
        return "it is gone"
    if stat.S_ISDIR(mode) or path in _HARMLESS_DEVICES:
        return ""
    return "it is a device, pipe or socket, and what went there is not known"


def _changed(roots: Iterable[Path], since_ns: int, found: Evidence) -> Iterator[str]:
    """Yield every file below the roots that changed, each once."""
    waiting, seen, count = [str(root) for root in roots], set[tuple[int, int]](), 0
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            count += 1
            if count > _ENTRIES_MAX:
                found.unsearched.append(f"{folder}: more than {_ENTRIES_MAX} files are below")
                return
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if entry.is_dir(follow_symlinks=False):
                key = (status.st_dev, status.st_ino)
                if key not in seen:
                    seen.add(key)
                    waiting.append(entry.path)
            elif status.st_ctime_ns >= since_ns and stat.S_ISREG(status.st_mode):
                yield entry.path


def _is_below(path: str, folder: Path) -> bool:
    return path == str(folder) or path.startswith(f"{folder}{os.sep}")


def _add(hits: list[CanaryHit], hit: CanaryHit) -> None:
    if hit not in hits:
        hits.append(hit)
