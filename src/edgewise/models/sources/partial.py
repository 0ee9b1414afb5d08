"""Partly written files on disk: resume state, locks, space, digests and the final rename.

Invariants: a final name only ever appears by ``os.replace`` of a complete, synced file. The
operating system's errors leave here as :class:`ResourceError` with the path and, when the disk
is full, the shortfall in bytes. No network.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock
import msgspec

from edgewise.errors import IntegrityError, ResourceError
from edgewise.models.sources.progress import Phase, Reporter
from edgewise.store.home import storage_error

__all__ = ["PartState", "check_space", "hold_lock", "publish", "storage_errors", "verify_file"]

CHUNK_BYTES = 1 << 20
DISK_MARGIN_BYTES = 64 << 20  # specified: room for the rest of the system to go on working
_LOCK_POLL_S = 0.5


class PartState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server said about the file of which a ``.part`` holds the beginning."""

    schema_version: int = 1
    url: str
    etag: str | None = None
    last_modified: str | None = None
    total_bytes: int | None = None

    @property
    def validator(self) -> str | None:
        """Return what may stand in ``If-Range``: a strong ETag, else the modification date."""
        if self.etag and not self.etag.startswith("W/"):
            return self.etag
        return self.last_modified


def read_state(path: Path) -> PartState | None:
    """Return the state stored at ``path``, ``None`` when absent or unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=PartState)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def write_state(path: Path, state: PartState) -> None:
    """Store ``state`` at ``path`` atomically.

    Raises:
        ResourceError: the disk is full or the folder cannot be written.
    """
    with storage_errors(path):
        scratch = path.with_name(path.name + ".new")
        scratch.write_bytes(msgspec.json.encode(state))
        scratch.replace(path)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Translate the operating system's errors about ``path``.

    Raises:
        ResourceError: ``disk-full``, ``storage-not-writable`` or ``storage-failed``.
    """
    try:
        yield
    except OSError as error:
        raise storage_error(error, path, "fetching") from error


def check_space(folder: Path, needed_bytes: int, margin_bytes: int) -> None:
    """Return when ``folder`` has room for ``needed_bytes`` and a margin.

    Raises:
        ResourceError: it has not; the context holds ``shortfall_bytes``.
    """
    with storage_errors(folder):
        free = shutil.disk_usage(folder).free
    shortfall = needed_bytes + margin_bytes - free
    if shortfall > 0:
        raise ResourceError(
            "disk-full",
            f"{folder} lacks {shortfall:,} bytes: {needed_bytes:,} needed and "
            f"{margin_bytes:,} kept free, {free:,} available",
            context={
                "path": str(folder),
                "needed_bytes": needed_bytes,
                "margin_bytes": margin_bytes,
                "free_bytes": free,
                "shortfall_bytes": shortfall,
            },
            hint="free space or choose another home",
            retryable=True,
        )


@contextmanager
def hold_lock(path: Path, reporter: Reporter, *, timeout_s: float = 3600.0) -> Iterator[bool]:
    """Hold the lock file ``path``; yields whether somebody else had it first.

    Raises:
        FetchCancelledError: the caller asked to stop while waiting.
        ResourceError: the wait was too long, or the folder cannot be written.
    """
    lock = filelock.FileLock(path)
    waited_s, waited = 0.0, False
    while True:
        with storage_errors(path):
            try:
                lock.acquire(timeout=_LOCK_POLL_S if waited else 0, poll_interval=0.05)
                break
            except filelock.Timeout:
                pass
        if not waited:
            reporter.event(Phase.WAITING, f"another process is fetching this; waiting for {path}")
        else:
            waited_s += _LOCK_POLL_S
        waited = True
        reporter.check()
        if waited_s >= timeout_s:
            raise ResourceError(
                "fetch-locked",
                f"another process has held {path} for {timeout_s:.0f} s",
                context={"path": str(path), "waited_s": waited_s},
                hint="wait for it to end, or end it",
                retryable=True,
            )
    try:
        yield waited
    finally:
        lock.release()


def write_all(target: io.FileIO, data: bytes | memoryview) -> None:
    """Write all of ``data``; a raw file may take less than it is given."""
    view = memoryview(data)
    while view:
        view = view[target.write(view) or 0 :]


def verify_file(path: Path, reporter: Reporter, *, expected_sha256: str | None) -> str:
    """Return the SHA-256 of the bytes at ``path``, read back from the disk.

    Raises:
        FetchCancelledError: the caller asked to stop.
        IntegrityError: it differs from the expected one (``digest-mismatch``).
        ResourceError: the file cannot be read.
    """
    digest, done = hashlib.sha256(), 0
    with storage_errors(path), path.open("rb") as source:
        total = os.fstat(source.fileno()).st_size
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            reporter.advance(Phase.VERIFYING, done, total)
    actual = digest.hexdigest()
    check_digest(actual, expected_sha256, what=path.name)
    return actual


def check_digest(actual: str, expected: str | None, *, what: str) -> None:
    """Return when ``actual`` is the expected digest, or none is expected.

    Raises:
        IntegrityError: they differ (``digest-mismatch``).
    """
    if expected is not None and actual != expected.lower():
        raise IntegrityError(
            "digest-mismatch",
            f"{what}: the content is not the expected one (SHA-256 {actual}, not {expected})",
            context={"file": what, "expected_sha256": expected, "actual_sha256": actual},
            hint="the source changed or something in between altered it; do not use it",
        )


def check_size(actual: int, expected: int | None, *, what: str) -> None:
    """Return when ``actual`` is the expected size in bytes, or none is expected.

    Raises:
        IntegrityError: they differ (``size-mismatch``).
    """
    if expected is not None and actual != expected:
        raise IntegrityError(
            "size-mismatch",
            f"{what}: {actual:,} bytes, not the expected {expected:,}",
            context={"file": what, "expected_size_bytes": expected, "actual_size_bytes": actual},
            hint="the source changed or something in between altered it; do not use it",
        )


def publish(scratch: Path, destination: Path) -> None:
    """Give a complete, synced file its final name, durably.

    Raises:
        ResourceError: the rename failed.
    """
    with storage_errors(destination):
        scratch.replace(destination)
        if os.name == "posix":
            folder = os.open(destination.parent, os.O_RDONLY)
            try:
                with suppress(OSError):  # some file systems cannot sync a folder
                    os.fsync(folder)
            finally:
                os.close(folder)


def remove(*paths: Path) -> None:
    """Remove files that may be absent.

    Raises:
        ResourceError: one of them cannot be removed.
    """
    for path in paths:
        with storage_errors(path):
            path.unlink(missing_ok=True)
