"""The evidence on disk: written once, found by digest, subject or kind, verified when read."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from edgewise.core.canonical import canonical_json, digest_of, is_digest
from edgewise.core.evidence import Evidence
from edgewise.errors import InputError, IntegrityError
from edgewise.store.home import Home
from edgewise.store.regular import read_regular

__all__ = ["EvidenceStore"]

_SHORTEST_PREFIX = 4
_LIMIT_BYTES = 16 << 20


class EvidenceStore:
    """All evidence of one home.

    A damaged piece does not count and does not stop the others: it is moved to
    ``evidence/damaged`` where the home can be written, and reported once through ``on_damaged``.
    """

    def __init__(
        self, home: Home, on_damaged: Callable[[IntegrityError], None] = lambda _error: None
    ) -> None:
        self._home = home
        self._on_damaged = on_damaged

    def add(self, evidence: Evidence) -> str:
        """Store a piece of evidence and return its digest. Storing it twice is harmless.

        Raises:
            ResourceError: the home cannot be written.
            InputError: a figure has no JSON form.
        """
        data = canonical_json(evidence)
        digest = digest_of(evidence)
        path = self._home.root / "evidence" / f"{digest}.json"
        if not path.exists():
            self._home.write(path, data)
        return digest

    def get(self, prefix: str) -> tuple[str, Evidence]:
        """Return the digest and the piece whose digest begins with ``prefix``.

        Raises:
            InputError: none or several begin so.
            IntegrityError: the file no longer has its digest.
        """
        found = self._matching(prefix)
        if len(found) != 1:
            what = "no evidence begins" if not found else f"{len(found)} pieces of evidence begin"
            raise InputError(
                "evidence-not-found",
                f"{what} with {prefix!r}",
                hint="`edgewise evidence list` shows what there is",
            )
        return found[0], self._read(found[0])

    def find(
        self, *, kind: str | None = None, subject: str | None = None
    ) -> list[tuple[str, Evidence]]:
        """Return all sound pieces of a kind and about a subject, oldest first."""
        chosen = [
            (digest, piece)
            for digest, piece in self._sound()
            if (kind is None or piece.kind == kind)
            and (subject is None or piece.subject.startswith(subject))
        ]
        return sorted(chosen, key=lambda pair: (pair[1].created, pair[0]))

    def latest(self, *, kind: str, subject: str, device: str) -> tuple[str, Evidence] | None:
        """Return the newest sound piece of a kind about a subject on a device, or ``None``."""
        found = [pair for pair in self.find(kind=kind, subject=subject) if pair[1].device == device]
        return found[-1] if found else None

    def _sound(self) -> Iterator[tuple[str, Evidence]]:
        for digest in self._digests():
            try:
                yield digest, self._read(digest)
            except IntegrityError as error:
                self._set_aside(digest)
                self._on_damaged(error)

    def _set_aside(self, digest: str) -> None:
        path = self._home.root / "evidence" / f"{digest}.json"
        with contextlib.suppress(OSError):
            attic = path.parent / "damaged"
            attic.mkdir(exist_ok=True)
            path.replace(attic / path.name)

    def _digests(self) -> list[str]:
        folder = self._home.root / "evidence"
        names = (path.stem for path in folder.glob("*.json")) if folder.is_dir() else ()
        return sorted(name for name in names if is_digest(name))

    def _matching(self, prefix: str) -> list[str]:
        if len(prefix) < _SHORTEST_PREFIX:
            raise InputError(
                "evidence-prefix-short",
                f"{prefix!r} is too short; give at least 4 digits",
                hint="`edgewise evidence list` shows what there is",
            )
        return [digest for digest in self._digests() if digest.startswith(prefix.lower())]

    def _read(self, digest: str) -> Evidence:
        path = self._home.root / "evidence" / f"{digest}.json"
        context: dict[str, Any] = {"path": str(path)}
        try:
            data = read_regular(path, limit_bytes=_LIMIT_BYTES)
        except OSError as error:
            raise IntegrityError(
                "evidence-unreadable",
                f"evidence {digest[:12]} ({path}) cannot be read: {error.strerror}",
                context=context,
            ) from error
        if hashlib.sha256(data).hexdigest() != digest:  # over the bytes, before they are decoded
            raise IntegrityError(
                "evidence-corrupt",
                f"evidence {digest[:12]} ({path}) has changed since it was written",
                context=context,
                hint="remove the file; evidence is taken again when it is needed",
            )
        try:
            return msgspec.json.decode(data, type=Evidence)
        except msgspec.MsgspecError as error:
            raise IntegrityError(
                "evidence-unreadable",
                f"evidence {digest[:12]} is not of a form that this version reads: {error}",
                context=context,
            ) from error
