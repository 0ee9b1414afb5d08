"""Bundles on disk: complete sets that are activated together, and which one is active."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import msgspec

from edgewise.core.bundle import Bundle
from edgewise.core.canonical import canonical_json, is_digest
from edgewise.errors import InputError, IntegrityError
from edgewise.store import scratch, trees
from edgewise.store.home import Home, storage_error
from edgewise.store.regular import read_regular

__all__ = ["BundleStore"]

_MANIFEST = "manifest.json"
_MANIFEST_BYTES = 16 << 20
_POINTER_BYTES = 256
_TEMPLATE, _NOTICE = "template.jinja", "NOTICE.txt"
# The fingerprint covers the deployment; the digest of the manifest covers the rest of it too.
_SEAL = "manifest.sha256"
_NOT_ACTIVE_HINT = "set one up: edgewise up"


class BundleStore:
    """All bundles of one home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def add(self, bundle: Bundle) -> Path:
        """Put a bundle in place, complete or not at all.

        An existing one is read whole: it is left as it is when every byte is right, and replaced
        when not, so that setting a model up again heals what was damaged.

        Raises:
            IntegrityError: the artifact's blob, or a draft model's, is missing.
            ResourceError: the home cannot be written.
        """
        folder = self._home.root / "bundles" / bundle.fingerprint
        if self._intact(bundle):
            return folder
        blobs = {
            name: trees.path_of(self._home, sha256) for name, sha256 in _artifacts(bundle).items()
        }
        if not all(blob.exists() for blob in blobs.values()):
            raise IntegrityError("blob-missing", "the bundle's artifact is not in the store")
        self._home.folder("bundles")
        manifest = canonical_json(bundle)
        with self._home.work_folder() as work:
            try:
                for name, blob in blobs.items():
                    _link(blob, work / name)
                for name, data in (
                    (_TEMPLATE, bundle.text.template_source.encode()),
                    (_NOTICE, bundle.notice.encode()),
                    (_MANIFEST, manifest),
                    (_SEAL, hashlib.sha256(manifest).hexdigest().encode()),
                ):
                    with (work / name).open("xb") as stream:
                        stream.write(data)
                        scratch.sync(stream)
                scratch.sync_folder(work)
                if folder.exists() and not self._intact(bundle):
                    with self._home.work_folder() as attic:
                        folder.rename(attic / "damaged")
                if not self._intact(bundle):
                    _rename(work, folder)
                scratch.sync_folder(folder.parent)
            except OSError as error:
                raise storage_error(error, folder, "storing a bundle") from error
        return folder

    def activate(self, fingerprint: str) -> str | None:
        """Make a bundle the active one in one step; return the one that was active before.

        Raises:
            InputError: there is no such bundle.
            IntegrityError: its manifest is damaged.
            ResourceError: the home cannot be written.
        """
        found = self.get(fingerprint).fingerprint
        try:
            before = self._active_fingerprint()
        except IntegrityError:
            before = None  # it named nothing; from now on it does
        self._home.write(self._home.root / "active", f"{found}\n".encode())
        return before

    def active(self) -> Bundle:
        """Return the active bundle.

        Raises:
            InputError: none is active.
            IntegrityError: its manifest, or the pointer to it, is damaged.
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
            known = ", ".join(name[:12] for name in self.fingerprints())
            raise InputError(
                "bundle-not-found",
                f"{what} with {prefix!r}",
                context={"bundles": list(self.fingerprints())},
                hint=f"give more digits; there are: {known}" if known else _NOT_ACTIVE_HINT,
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
        path = self._home.root / "active"
        try:
            text = read_regular(path, limit_bytes=_POINTER_BYTES).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _bad_pointer(path, f"cannot be read: {error.strerror}") from error
        if not is_digest(text):
            raise _bad_pointer(path, "does not hold a fingerprint")
        return text

    def _intact(self, bundle: Bundle) -> bool:
        try:
            found = self._read(bundle.fingerprint)
            folder = self.artifact(found).parent
            beside = [
                read_regular(folder / name, limit_bytes=_MANIFEST_BYTES)
                for name in (_TEMPLATE, _NOTICE)
            ]
        except (IntegrityError, OSError):
            return False
        wanted = [found.text.template_source.encode(), found.notice.encode()]
        return beside == wanted and all(
            trees.digest_matches(folder / name, expected)
            for name, expected in _artifacts(bundle).items()
        )

    def _read(self, fingerprint: str) -> Bundle:
        path = self._home.root / "bundles" / fingerprint / _MANIFEST
        try:
            data = read_regular(path, limit_bytes=_MANIFEST_BYTES)
            seal = read_regular(path.with_name(_SEAL), limit_bytes=_POINTER_BYTES).decode("ascii")
            bundle = msgspec.json.decode(data, type=Bundle)
        except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
            raise IntegrityError(
                "bundle-unreadable",
                f"bundle {fingerprint[:12]} cannot be read",
                context={"path": str(path)},
                hint=_NOT_ACTIVE_HINT,
            ) from error
        if bundle.fingerprint != fingerprint or hashlib.sha256(data).hexdigest() != seal:
            raise IntegrityError(
                "bundle-corrupt",
                f"bundle {fingerprint[:12]} has changed since it was written",
                context={"path": str(path)},
                hint=_NOT_ACTIVE_HINT,
            )
        return bundle


def _artifacts(bundle: Bundle) -> dict[str, str]:
    """Return the digest of each artifact by its name in the bundle."""
    found = {bundle.artifact_name: bundle.deployment.artifact.sha256}
    if bundle.deployment.draft is not None:
        found[bundle.draft_name] = bundle.deployment.draft.artifact.sha256
    return found


def _bad_pointer(path: Path, what: str) -> IntegrityError:
    return IntegrityError(
        "active-unreadable",
        f"the pointer to the active bundle {what}",
        context={"path": str(path)},
        hint=_NOT_ACTIVE_HINT,
    )


def _rename(work: Path, folder: Path) -> None:
    try:
        work.rename(folder)
    except OSError:
        if not (folder / _MANIFEST).exists():  # else another process has just put the same there
            raise


def _link(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link_file)
    else:
        _link_file(source, target)


def _link_file(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another volume, or a file system without hard links
        shutil.copyfile(source, target)
