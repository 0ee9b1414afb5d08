"""Copies a local checkpoint into the staging folder, with its digest.

Invariants: the copy shares no writable bytes with the original. Where the file system can clone
(reflink) it does; hard links are not used, because an edit of the original in place would change
the stored file. The original is only read.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from edgewise.errors import InputError, IntegrityError
from edgewise.models.sources import partial
from edgewise.models.sources.partial import CHUNK_BYTES, DISK_MARGIN_BYTES
from edgewise.models.sources.progress import Phase, Reporter
from edgewise.models.sources.reference import FileReference

__all__ = ["copy_file", "folder_of", "is_folder", "local_path"]

_FICLONE = 0x40049409  # specified: linux/fs.h


def local_path(text: str) -> Path:
    """Return the existing regular file that ``text`` names, ``~`` expanded and absolute.

    Raises:
        InputError: it is missing, unreadable, a folder, or a device, socket or pipe.
    """
    try:
        path = Path(text).expanduser().absolute()
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise _bad("file-missing", text, "does not exist", "check the path") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise _bad("file-unreadable", text, f"cannot be read: {error}", "check it") from error
    if stat.S_ISDIR(mode):
        raise _bad(
            "file-is-folder",
            text,
            "is a folder",
            "name one file inside it, or a folder with config.json",
        )
    if not stat.S_ISREG(mode):
        raise _bad("file-not-regular", text, "is not a regular file", "name a regular file")
    return path


def folder_of(reference: FileReference) -> Path:
    """Return the absolute folder that a reference names, ``~`` expanded."""
    return Path(reference.path).expanduser().absolute()


def is_folder(reference: FileReference) -> bool:
    """Return whether a reference names a folder, such as a checkpoint in the HF form."""
    try:
        return folder_of(reference).is_dir()
    except (OSError, RuntimeError, ValueError):
        return False


def copy_file(
    source: Path,
    destination: Path,
    *,
    reporter: Reporter,
    expected_sha256: str | None = None,
    expected_size_bytes: int | None = None,
    margin_bytes: int = DISK_MARGIN_BYTES,
) -> str:
    """Return the SHA-256 of the copy of ``source`` now at ``destination``.

    Raises:
        FetchCancelledError: the caller asked to stop.
        InputError: the source cannot be opened.
        IntegrityError: other size or digest than expected, or the source changed meanwhile.
        ResourceError: no space or no permission at the destination.
    """
    scratch = destination.with_name(destination.name + ".part")
    try:
        original = source.open("rb", buffering=0)
    except OSError as error:
        text = str(source)
        raise _bad("file-unreadable", text, f"cannot be read: {error}", "check it") from error
    with original:
        before = os.fstat(original.fileno())
        partial.check_size(before.st_size, expected_size_bytes, what=source.name)
        try:
            with partial.storage_errors(scratch):
                target = scratch.open("wb", buffering=0)
            with target:
                if _reflink(original.fileno(), target.fileno()):
                    reporter.event(Phase.COPYING, "cloned by the file system, no bytes copied")
                else:
                    partial.check_space(destination.parent, before.st_size, margin_bytes)
                    done = 0
                    while chunk := original.read(CHUNK_BYTES):
                        with partial.storage_errors(scratch):
                            partial.write_all(target, chunk)
                        done += len(chunk)
                        reporter.advance(Phase.COPYING, done, before.st_size)
                with partial.storage_errors(scratch):
                    os.fsync(target.fileno())
            _unchanged(source, before, os.fstat(original.fileno()))
            actual = partial.verify_file(scratch, reporter, expected_sha256=expected_sha256)
        except BaseException:
            partial.remove(scratch)
            raise
    partial.publish(scratch, destination)
    return actual


def _unchanged(source: Path, before: os.stat_result, after: os.stat_result) -> None:
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise IntegrityError(
            "file-changed",
            f"{source} changed while it was copied",
            context={"path": str(source)},
            hint="wait until nothing writes to it any more",
            retryable=True,
        )


def _reflink(source_fd: int, target_fd: int) -> bool:
    if sys.platform != "linux":
        return False
    import fcntl  # noqa: PLC0415 - not on every platform

    try:
        fcntl.ioctl(target_fd, _FICLONE, source_fd)
    except OSError:
        return False
    return True


def _bad(code: str, text: str, what: str, hint: str) -> InputError:
    return InputError(code, f"{text} {what}", context={"path": text}, hint=hint)
