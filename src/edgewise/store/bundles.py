"""Bundles on disk: complete sets that are activated together, and which one is active."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from edgewise.core.bundle import Bundle
from edgewise.core.canonical import canonical_json, is_digest
from edgewise.errors import InputError, IntegrityError
from edgewise.store.home import Home, storage_error

__all__ = ["BundleStore"]

_MANIFEST = "manifest.json"
_NOT_ACTIVE_HINT = "set one up: edgewise up"


class BundleStore:
    """All bundles of one home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def add(self, bundle: Bundle) -> Path:
        """Put a bundle in place, complete or not at all; an existing one is left as it is.

        Raises:
            IntegrityError: the artifact blob is missing.
            ResourceError: the home cannot be written.
        """
        folder = self._home.root / "bundles" / bundle.fingerprint
        if (folder / _MANIFEST).exists():
            return folder
        blob = self._home.blob(bundle.deployment.artifact.sha256)
        if not blob.exists():
            raise IntegrityError("blob-missing", "the bundle's artifact is not in the store")
        self._home.folder("bundles")
        with self._home.work_folder() as work:
            try:
                _link(blob, work / bundle.artifact_name)
                (work / "template.jinja").write_text(bundle.text.template_source, encoding="utf-8")
                (work / "NOTICE.txt").write_text(bundle.notice, encoding="utf-8")
                (work / _MANIFEST).write_bytes(canonical_json(bundle))
                if not folder.exists():
                    work.rename(folder)
            except OSError as error:
                raise storage_error(error, folder, "storing a bundle") from error
        return folder

    def activate(self, fingerprint: str) -> str | None:
        """Make a bundle the active one in one step; return the one that was active before.

        Raises:
            InputError: there is no such bundle.
            ResourceError: the home cannot be written.
        """
        self.get(fingerprint)
        before = self._active_fingerprint()
        self._home.write(self._home.root / "active", f"{fingerprint}\n".encode())
        return before

    def active(self) -> Bundle:
        """Return the active bundle.

        Raises:
            InputError: none is active.
            IntegrityError: its manifest is damaged.
        """
        fingerprint = self._active_fingerprint()
        if fingerprint is None:
            raise InputError("nothing-active", "no model is set up yet", hint=_NOT_ACTIVE_HINT)
        return self.get(fingerprint)

    def get(self, prefix: str) -> Bundle:
        """Return the bundle whose fingerprint begins with ``prefix``.

        Raises:
            InputError: none or several begin so.
            IntegrityError: its manifest is damaged.
        """
        found = [name for name in self.fingerprints() if name.startswith(prefix.lower())]
        if len(found) != 1 or not prefix:
            what = "no bundle's fingerprint begins" if not found else f"{len(found)} bundles begin"
            raise InputError(
                "bundle-not-found",
                f"{what} with {prefix!r}",
                context={"bundles": list(self.fingerprints())},
                hint=_NOT_ACTIVE_HINT,
            )
        return self._read(found[0])

    def fingerprints(self) -> tuple[str, ...]:
        """Return the fingerprints of all bundles, sorted."""
        folder = self._home.root / "bundles"
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return tuple(name for name in names if is_digest(name))

    def artifact(self, bundle: Bundle) -> Path:
        """Return the path of a bundle's artifact."""
        return self._home.root / "bundles" / bundle.fingerprint / bundle.artifact_name

    def _active_fingerprint(self) -> str | None:
        try:
            text = (self._home.root / "active").read_text().strip()
        except OSError:
            return None
        return text if is_digest(text) else None

    def _read(self, fingerprint: str) -> Bundle:
        path = self._home.root / "bundles" / fingerprint / _MANIFEST
        try:
            bundle = msgspec.json.decode(path.read_bytes(), type=Bundle)
        except (OSError, msgspec.MsgspecError) as error:
            raise IntegrityError(
                "bundle-unreadable",
                f"bundle {fingerprint[:12]} cannot be read",
                context={"path": str(path)},
                hint=_NOT_ACTIVE_HINT,
            ) from error
        if bundle.fingerprint != fingerprint:
            raise IntegrityError(
                "bundle-corrupt",
                f"bundle {fingerprint[:12]} has changed since it was written",
                context={"path": str(path)},
                hint=_NOT_ACTIVE_HINT,
            )
        return bundle


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another volume, or a file system without hard links
        shutil.copyfile(source, target)
