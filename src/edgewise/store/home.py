"""The home on disk: where things lie, and how they get there whole.

Layout, under ``EDGEWISE_HOME`` (or the platform's data folder):

    staging/                     downloads and builds in progress; safe to delete
    blobs/<sha256>               files by content
    checkpoints/<sha256>.json    where a blob came from
    bundles/<fingerprint>/       complete sets that are activated together
    evidence/<sha256>.json       append-only
    state.sqlite                 consents, queue, receipts
    active                       fingerprint of the active bundle

Invariants: a file under a final name is complete and synced; two processes may use one home;
whatever a killed process leaves behind lies in ``staging`` and harms nobody.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from edgewise.errors import EdgewiseError, InputError, IntegrityError, ResourceError
from edgewise.store import scratch
from edgewise.store.digest import file_digest

__all__ = ["HOME_VARIABLE", "Home", "default_home", "storage_error"]

HOME_VARIABLE = "EDGEWISE_HOME"
_LOCK_TIMEOUT_S = 600.0


def default_home() -> Path:
    """Return the folder that ``EDGEWISE_HOME`` names, or the platform's data folder.

    Raises:
        InputError: it begins with ``~`` and there is no such user.
    """
    named = os.environ.get(HOME_VARIABLE)
    if named:
        try:
            return Path(named).expanduser()
        except RuntimeError as error:
            raise InputError(
                "home-invalid",
                f"{HOME_VARIABLE} is {named!r}: {error}",
                hint="name the folder in full",
            ) from error
    import platformdirs  # noqa: PLC0415 - not needed when the variable is set

    return Path(platformdirs.user_data_dir("edgewise", appauthor=False))


def storage_error(error: OSError, path: Path, doing: str) -> EdgewiseError:
    """Return the typed error for a failed write below ``path``."""
    context = {"path": str(path), "errno": error.errno}
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        free = _free_bytes(path)
        return ResourceError(
            "disk-full",
            f"the disk is full while {doing}",
            context={**context, "free_bytes": free},
            hint="free some space, or point EDGEWISE_HOME at another volume",
            retryable=True,
        )
    if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
        return ResourceError(
            "storage-not-writable",
            f"{path} cannot be written while {doing}: {error.strerror}",
            context=context,
            hint=f"make it writable, or set {HOME_VARIABLE} to a folder that is",
        )
    if error.errno == errno.EFBIG:
        return ResourceError(
            "file-too-large",
            f"{path} grew beyond what this volume or process may write while {doing}",
            context=context,
            hint=f"point {HOME_VARIABLE} at a volume for large files (FAT32 ends at 4 GiB)",
        )
    return ResourceError(
        "storage-failed",
        f"{doing} failed at {path}: {error.strerror or error}",
        context=context,
        hint=f"check the path, or set {HOME_VARIABLE} to another folder",
    )


def _free_bytes(path: Path) -> int | None:
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


class Home:
    """One home folder. Creating the object touches nothing."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or default_home()).absolute()

    @property
    def staging(self) -> Path:
        """Return the folder for work in progress."""
        return self.root / "staging"

    def folder(self, *names: str) -> Path:
        """Return a folder below the root, made if need be.

        Raises:
            ResourceError: the home cannot be written.
        """
        path = self.root.joinpath(*names)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, path, "making the home folder") from error
        return path

    @contextlib.contextmanager
    def lock(
        self,
        name: str,
        *,
        timeout_s: float = _LOCK_TIMEOUT_S,
        on_wait: Callable[[], None] = lambda: None,
    ) -> Iterator[None]:
        """Hold an exclusive lock among processes for the time of the block.

        Args:
            name: Name of the lock.
            timeout_s: Longest wait.
            on_wait: Called once when another process holds it, before waiting.

        Raises:
            ResourceError: another process held it for longer than ``timeout_s``.
        """
        import filelock  # noqa: PLC0415 - only commands that write need it

        path = self.folder("locks") / f"{name}.lock"
        lock = filelock.FileLock(path)
        try:
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                on_wait()
                lock.acquire(timeout=timeout_s)
        except filelock.Timeout as error:
            raise ResourceError(
                "lock-timeout",
                f"another process has held the {name} lock for {timeout_s:g} s",
                context={"lock": str(path)},
                hint="wait for it to end, or end it",
                retryable=True,
            ) from error
        except OSError as error:
            raise storage_error(error, path, f"taking the {name} lock") from error
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def work_folder(self) -> Iterator[Path]:
        """Give a fresh folder in staging and remove it afterwards, whatever happens.

        What processes that were killed left there is removed first.

        Raises:
            ResourceError: the home cannot be written.
        """
        staging = self.folder("staging")
        scratch.sweep(staging)
        try:
            path, held = scratch.make_folder(staging)
        except OSError as error:
            raise storage_error(error, staging, "making a work folder") from error
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(held)

    def write(self, path: Path, data: bytes) -> None:
        """Put ``data`` at ``path`` in one step: complete and synced, or not at all.

        Raises:
            ResourceError: the disk is full or cannot be written.
        """
        folder = self.folder(*path.parent.relative_to(self.root).parts)
        staging = self.folder("staging")
        try:
            temporary, held = scratch.make_file(staging)
            try:
                with os.fdopen(held, "wb") as stream:
                    stream.write(data)
                    scratch.sync(stream)
                    temporary.replace(path)  # while it is held, so that nobody sweeps it
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            scratch.sync_folder(folder)
        except OSError as error:
            raise storage_error(error, path, f"writing {path.name}") from error

    def blob(self, sha256: str) -> Path:
        """Return where the blob with this digest lies, or would."""
        return self.root / "blobs" / sha256

    def adopt(self, file: Path, sha256: str) -> Path:
        """Move a finished file, whose digest is known to be ``sha256``, into the blobs.

        A blob that is there and sound stays; one that has been damaged is replaced.

        Raises:
            ResourceError: the home cannot be written.
        """
        folder = self.folder("blobs")
        target = self.blob(sha256)
        try:
            if target.exists() and file_digest(target) == sha256:
                file.unlink()
            else:
                with file.open("rb") as stream:
                    scratch.sync(stream)
                file.chmod(0o444)
                file.replace(target)
                scratch.sync_folder(folder)
        except OSError as error:
            raise storage_error(error, target, "storing a file") from error
        return target

    def verified_blob(self, sha256: str) -> Path:
        """Return a blob's path after reading it whole and checking its digest.

        Raises:
            IntegrityError: it is missing, or its bytes have changed.
        """
        path = self.blob(sha256)
        try:
            actual = file_digest(path)
        except OSError as error:
            raise IntegrityError(
                "blob-missing",
                f"the stored file {sha256[:12]} cannot be read: {error.strerror}",
                context={"path": str(path)},
                hint="fetch it again: edgewise fetch MODEL",
            ) from error
        if actual != sha256:
            raise IntegrityError(
                "blob-corrupt",
                f"the stored file {sha256[:12]} has changed since it was written",
                context={"path": str(path), "expected": sha256, "actual": actual},
                hint="remove it and fetch the model again",
            )
        return path
