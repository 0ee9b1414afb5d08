"""What an egress check says: what was seen, how it was seen, and a verdict for each question."""

from __future__ import annotations

from enum import StrEnum

import msgspec

__all__ = [
    "CanaryHit",
    "EgressCheck",
    "EgressReport",
    "EgressVerdict",
    "Sighting",
    "Wall",
    "WatchedProcess",
]


class EgressVerdict(StrEnum):
    """``UNVERIFIED`` is no pass: nothing was found, and nothing here could have found everything.

    A failure that was seen is a failure however little else was seen.
    """

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    UNVERIFIED = "unverified"


class Wall(StrEnum):
    """What held the processes or watched them, from the strongest on.

    ``SECCOMP``: the kernel hands every watched system call of every process to a supervisor,
    native code's too; sockets are refused. ``SECCOMP_SILENT``: the kernel refuses sockets and
    tells nobody. ``NETWORK_NAMESPACE``: there is no interface that is up. ``AUDIT_HOOK``: Python
    code is watched, native code is not.
    """

    SECCOMP = "seccomp"
    SECCOMP_SILENT = "seccomp-silent"
    NETWORK_NAMESPACE = "network-namespace"
    AUDIT_HOOK = "audit-hook"


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all parts of a report."""


class Sighting(_Struct, frozen=True, kw_only=True):
    """One thing that a process did or tried; the canary is masked in it.

    Attributes:
        process: Its process id.
        what: What it did, and to whom.
        seen_by: What saw it.
    """

    process: int
    what: str
    seen_by: Wall


class CanaryHit(_Struct, frozen=True, kw_only=True):
    """A place where a part of the prompt turned up, and in which form."""

    place: str
    form: str


class WatchedProcess(_Struct, frozen=True, kw_only=True):
    """A Python process whose hook was in place before anything else ran in it.

    Attributes:
        process: Its process id.
        command: Its command line, the canary masked.
        core_limit_bytes: Its last limit for core dumps; -1 for none.
    """

    process: int
    command: tuple[str, ...]
    core_limit_bytes: int


class EgressCheck(_Struct, frozen=True, kw_only=True):
    """One question: the verdict, and why."""

    name: str
    verdict: EgressVerdict
    reasons: tuple[str, ...]


class EgressReport(_Struct, frozen=True, kw_only=True):
    """Everything that was seen while something ran. It holds no part of the prompt.

    Attributes:
        walls: What held the processes or watched them.
        missing: Why stronger walls do not stand.
        exit_status: Of the command, negative for a signal; ``None`` for code of this process.
        processes: The Python processes that were watched.
        programs: Programs that were started.
        sockets: Sockets that were opened, used or refused.
        lookups: Names that were looked up.
        writes: Files that were opened for writing, each once.
        hits: Where the canary turned up.
        checks: The questions: ``sockets``, ``names``, ``programs``, ``files``, ``output``,
            ``crash-dumps`` and ``end``.
    """

    schema_version: int = 1
    walls: tuple[Wall, ...]
    missing: tuple[str, ...]
    exit_status: int | None
    processes: tuple[WatchedProcess, ...]
    programs: tuple[Sighting, ...]
    sockets: tuple[Sighting, ...]
    lookups: tuple[Sighting, ...]
    writes: tuple[str, ...]
    hits: tuple[CanaryHit, ...]
    checks: tuple[EgressCheck, ...]

    @property
    def verdict(self) -> EgressVerdict:
        """Return ``PASS`` only when every check passed."""
        found = {check.verdict for check in self.checks}
        for verdict in (EgressVerdict.FAIL, EgressVerdict.UNVERIFIED):
            if verdict in found:
                return verdict
        return EgressVerdict.PASS

    @property
    def failures(self) -> tuple[str, ...]:
        """Return what failed, in words."""
        return tuple(
            f"{check.name}: {reason}"
            for check in self.checks
            if check.verdict is EgressVerdict.FAIL
            for reason in check.reasons
        )

    def check(self, name: str) -> EgressCheck:
        """Return one check by its name; one that does not exist is a ``KeyError``."""
        return {check.name: check for check in self.checks}[name]

    def text(self) -> str:
        """Return the report for a reader, one line for each check and below it the reasons."""
        lines = [f"egress: {self.verdict}", f"walls: {', '.join(self.walls) or 'none'}"]
        lines += [f"  not: {why}" for why in self.missing]
        for check in self.checks:
            first, *rest = check.reasons or ("",)
            lines.append(f"  {check.verdict:<11} {check.name:<12} {first}".rstrip())
            lines += [f"  {'':<11} {'':<12} {reason}" for reason in rest]
        return "\n".join(lines)
