"""From what was seen to verdicts. The rules, one function for each question."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewise.testing.egress.canary import Canary
from edgewise.testing.egress.evidence import Evidence
from edgewise.testing.egress.journal import Record
from edgewise.testing.egress.report import (
    CanaryHit,
    EgressCheck,
    EgressReport,
    EgressVerdict,
    Sighting,
    Wall,
    WatchedProcess,
)

__all__ = ["Seen", "judge"]

_CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
_NATIVE = "an audit hook does not see native code"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything a verdict rests on.

    Attributes:
        records: What was recorded.
        evidence: What became of the files.
        walls: What stood.
        missing: Why others did not.
        doubts: What else was not watched, by the check it concerns.
        outputs_watched: Whether standard output and error were searched.
        exit_status: Of the command.
        trouble: Why the run did not come to its end, or nothing.
    """

    records: Sequence[Record]
    evidence: Evidence
    walls: tuple[Wall, ...]
    missing: tuple[str, ...]
    doubts: dict[str, list[str]]
    outputs_watched: bool
    exit_status: int | None
    trouble: str = ""


def judge(seen: Seen, canary: Canary) -> EgressReport:
    """Return the report."""
    evidence = seen.evidence
    processes = _processes(seen.records, canary)
    sockets = _sightings(seen.records, "socket", canary)
    lookups = _sightings(seen.records, "lookup", canary)
    checks = (
        _sockets(seen, sockets),
        _names(seen, lookups),
        _programs(seen),
        _files(seen),
        _output(seen),
        _crash_dumps(seen, processes),
        _end(seen),
    )
    return EgressReport(
        walls=seen.walls,
        missing=seen.missing,
        exit_status=seen.exit_status,
        processes=processes,
        programs=_sightings(seen.records, "program", canary),
        sockets=sockets,
        lookups=lookups,
        writes=tuple(evidence.writes),
        hits=(*evidence.file_hits, *evidence.other_hits, *evidence.output_hits),
        checks=checks,
    )


def _sockets(seen: Seen, sockets: Sequence[Sighting]) -> EgressCheck:
    if sockets:
        return _fail("sockets", (f"{s.what} (process {s.process})" for s in sockets))
    if Wall.SECCOMP in seen.walls:
        return _pass("sockets", "none was opened or tried, in Python or native code")
    if Wall.SECCOMP_SILENT in seen.walls:
        return _pass("sockets", "none could be opened; native code's attempts are not counted")
    out = (
        "native code could have opened one, and could have reached nothing"
        if Wall.NETWORK_NAMESPACE in seen.walls
        else _NATIVE
    )
    return _unverified("sockets", [out, *seen.doubts.get("sockets", ())])


def _names(seen: Seen, lookups: Sequence[Sighting]) -> EgressCheck:
    if lookups:
        return _fail("names", (f"{s.what} (process {s.process})" for s in lookups))
    if {Wall.SECCOMP, Wall.SECCOMP_SILENT} & set(seen.walls):
        return _pass("names", "none was looked up; there was no socket to ask through")
    return _unverified("names", [_NATIVE, *seen.doubts.get("sockets", ())])


def _programs(seen: Seen) -> EgressCheck:
    """Judge command lines, environments, addresses, and programs that nobody watched."""
    if seen.evidence.other_hits:
        return _fail("programs", map(_shown, seen.evidence.other_hits))
    if Wall.SECCOMP in seen.walls:
        return _pass("programs", "every program ran inside the same walls")
    hooked = Counter(_words(r.detail) for r in seen.records if r.kind == "hello")
    started = [_words(r.detail) for r in seen.records if r.kind == "program"]
    loose = []
    for words in started:
        if hooked[words]:
            hooked[words] -= 1
        else:
            loose.append(words)
    doubts = [f"{len(loose)} programs were started that nothing watched"] if loose else []
    doubts += seen.doubts.get("programs", [])
    if Wall.SECCOMP_SILENT not in seen.walls:
        doubts.append("native code can start programs unseen")
    if doubts:
        return _unverified("programs", doubts)
    return _pass("programs", "every program was watched")


def _words(detail: str) -> str:
    """Return a command line without the name of its program, which two callers may spell apart."""
    return json.dumps(json.loads(detail)[1:])


def _files(seen: Seen) -> EgressCheck:
    evidence = seen.evidence
    if evidence.file_hits:
        return _fail("files", map(_shown, evidence.file_hits))
    doubts = [*evidence.unsearched, *seen.doubts.get("files", ())]
    if Wall.SECCOMP not in seen.walls:
        doubts.append(f"{_NATIVE}: what it wrote outside the searched folders is not known")
    searched = f"{len(evidence.writes)} files were written; the prompt is in none of them"
    return _unverified("files", [searched, *doubts]) if doubts else _pass("files", searched)


def _output(seen: Seen) -> EgressCheck:
    if seen.evidence.output_hits:
        return _fail("output", map(_shown, seen.evidence.output_hits))
    doubts = seen.doubts.get("output", [])
    if not seen.outputs_watched:
        return _unverified("output", ["standard output and error were not searched", *doubts])
    if Wall.SECCOMP not in seen.walls:
        why = "only the outermost process's output was searched"
        return _unverified("output", [why, *doubts])
    return _pass("output", "standard output and error of every process hold none of the prompt")


def _crash_dumps(seen: Seen, processes: Sequence[WatchedProcess]) -> EgressCheck:
    """Judge whether a process that crashes can leave its memory behind.

    core(5): the limit holds files back. A pattern that names a program is not bound by it, except
    by a limit of exactly one byte (``fs/coredump.c``).
    """
    pattern = _core_pattern()
    risky = [p for p in processes if not _dumps_nothing(p.core_limit_bytes, pattern)]
    doubts = seen.doubts.get("crash-dumps", [])
    if risky or doubts:
        named = [
            f"process {p.process} may leave its memory behind: its limit is "
            f"{p.core_limit_bytes} bytes, and the system's pattern {pattern!r}"
            for p in risky
        ]
        return _unverified("crash-dumps", [*named, *doubts])
    return _pass("crash-dumps", f"none of {len(processes)} processes can leave one")


def _core_pattern() -> str:
    if not sys.platform.startswith("linux"):
        return "core"
    try:
        return _CORE_PATTERN.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "|unknown"


def _dumps_nothing(limit: int, pattern: str) -> bool:
    if sys.platform.startswith("linux") and limit == 1:
        return not pattern.startswith("@")  # a socket: only a process's own mark keeps it back
    return limit == 0 and not pattern.startswith(("|", "@"))


def _end(seen: Seen) -> EgressCheck:
    doubts = seen.doubts.get("end", [])
    if seen.trouble or doubts:
        return _unverified("end", [*([seen.trouble] if seen.trouble else []), *doubts])
    return _pass("end", "everything that was started has ended")


def _processes(records: Iterable[Record], canary: Canary) -> tuple[WatchedProcess, ...]:
    commands: dict[int, tuple[str, ...]] = {}
    limits: dict[int, int] = {}
    for record in records:
        if record.kind == "hello":
            words = json.loads(record.detail)
            commands[record.process] = tuple(canary.mask(str(word)) for word in words)
        elif record.kind == "core-limit":
            limits[record.process] = int(record.detail)
    return tuple(
        WatchedProcess(process=pid, command=command, core_limit_bytes=limits.get(pid, -1))
        for pid, command in commands.items()
    )


def _sightings(records: Iterable[Record], kind: str, canary: Canary) -> tuple[Sighting, ...]:
    found = [
        Sighting(process=r.process, what=canary.mask(_readable(r)), seen_by=r.seen_by)
        for r in records
        if r.kind == kind
    ]
    return tuple(dict.fromkeys(found))


def _readable(record: Record) -> str:
    if record.kind != "program":
        return record.detail
    return " ".join(os.fsencode(w).decode("utf-8", "replace") for w in json.loads(record.detail))


def _shown(hit: CanaryHit) -> str:
    return f"{hit.place} ({hit.form})"


def _pass(name: str, reason: str) -> EgressCheck:
    return EgressCheck(name=name, verdict=EgressVerdict.PASS, reasons=(reason,))


def _fail(name: str, reasons: Iterable[str]) -> EgressCheck:
    verdict = EgressVerdict.FAIL
    return EgressCheck(name=name, verdict=verdict, reasons=tuple(dict.fromkeys(reasons)))


def _unverified(name: str, reasons: Iterable[str]) -> EgressCheck:
    verdict = EgressVerdict.UNVERIFIED
    return EgressCheck(name=name, verdict=verdict, reasons=tuple(dict.fromkeys(reasons)))
