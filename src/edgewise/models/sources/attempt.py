"""One request of a download: what may be appended to the partial file, and what may not.

Invariants: bytes are appended only when the server proves that they continue what is there (206
with the right start, the same validator and the same total). Anything else starts again from
zero, as an event with the reason. No waiting and no renaming happens here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.errors import IntegrityError, RemoteError
from edgewise.models.sources import partial, transport
from edgewise.models.sources.partial import DISK_MARGIN_BYTES, PartState
from edgewise.models.sources.progress import Phase, Reporter

if TYPE_CHECKING:
    import httpx

__all__ = ["DownloadPolicy", "Job", "TryAgain", "attempt"]

_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_PAGE_TYPES = ("text/html", "application/xhtml")
_TEXT_TYPES = ("text/", "application/json", "application/xml")
_PAGE_STARTS = (b"<!doctype html", b"<html", b"<head")
_SPACE_CHECK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadPolicy:
    """How patient a download is.

    Attributes:
        retries: Attempts after the first without new data before it gives up.
        backoff_s: Wait before the first retry; doubles up to ``backoff_max_s``.
        backoff_max_s: Longest wait between attempts.
        retry_after_max_s: Longest wait that a server may ask for; more ends the download.
        connect_timeout_s: Time to connect.
        read_timeout_s: Time without a byte.
        disk_margin_bytes: Space that stays free on the disk.
        lock_timeout_s: Longest wait for another process that downloads the same file.
        allow_http: Whether http:// is allowed beyond this computer (the content is pinned).
    """

    retries: int = 4
    backoff_s: float = 1.0
    backoff_max_s: float = 30.0
    retry_after_max_s: float = 120.0
    connect_timeout_s: float = 15.0
    read_timeout_s: float = 60.0
    disk_margin_bytes: int = DISK_MARGIN_BYTES
    lock_timeout_s: float = 3600.0
    allow_http: bool = False


class TryAgain(Exception):  # noqa: N818 - control flow, never leaves the download
    """The attempt failed in a way that a new one may not."""

    def __init__(self, error: RemoteError, after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_s = after_s


@dataclass(slots=True, kw_only=True)
class Job:
    """One download under way: what is wanted, what is on disk, and how often it was asked for."""

    url: str
    destination: Path
    sha256: str | None
    size_bytes: int | None
    headers: Mapping[str, str]
    policy: DownloadPolicy
    reporter: Reporter
    attempts: int = 0
    resumed_from_bytes: int = 0
    state: PartState | None = None
    part: Path = field(init=False)
    state_path: Path = field(init=False)

    def __post_init__(self) -> None:
        self.part = self.destination.with_name(self.destination.name + ".part")
        self.state_path = self.destination.with_name(self.destination.name + ".part.json")

    def restart(self, note: str) -> None:
        """Throw the partial file away, saying why."""
        self.reporter.event(Phase.RESTARTING, note, total_bytes=self.size_bytes)
        self.discard()

    def discard(self) -> None:
        """Remove the partial file and its state."""
        partial.remove(self.part, self.state_path)
        self.state, self.resumed_from_bytes = None, 0


def attempt(job: Job, client: httpx.Client, *, now: Callable[[], float]) -> None:
    """Make one request and append what it brings; return when the file is complete."""
    offset = _resume_offset(job)
    headers = dict(job.headers)
    if offset:
        headers["range"] = f"bytes={offset}-"
        validator = job.state.validator if job.state else None
        if validator:
            headers["if-range"] = validator
    with transport.open_stream(
        client, job.url, headers, allow_http=job.policy.allow_http
    ) as response:
        after_s = transport.retry_after_s(response, now_s=now())
        error = transport.status_error(response, retry_after_s=after_s)
        if error is not None:
            if error.retryable:
                raise TryAgain(error, after_s)
            raise error
        if response.status_code == 416:
            _range_not_satisfiable(job, response, offset)
            return
        _refuse_page(job, response)
        total = _accept_body(job, response, offset)
        if response.status_code == 200:
            offset = 0
        elif offset:
            job.resumed_from_bytes = job.resumed_from_bytes or offset
            job.reporter.event(
                Phase.RESUMING,
                f"continuing after {offset:,} bytes",
                done_bytes=offset,
                total_bytes=total,
            )
        _write_body(job, response, offset, total)


def _resume_offset(job: Job) -> int:
    """Return how many bytes of the partial file can be continued."""
    size = size_of(job.part)
    if size == 0:
        return 0
    state = job.state = partial.read_state(job.state_path)
    if state is None or state.url != job.url:
        job.restart("the partial file has no usable state; starting from zero")
    elif state.validator is None and job.sha256 is None:
        job.restart("the server gave nothing to recognise the file by; starting from zero")
    elif state.total_bytes is not None and size > state.total_bytes:
        job.restart("the partial file is longer than the whole; starting from zero")
    elif state.total_bytes is not None and job.size_bytes not in {None, state.total_bytes}:
        job.restart("the partial file is of another size; starting from zero")
    else:
        return size
    return 0


def _range_not_satisfiable(job: Job, response: httpx.Response, offset: int) -> None:
    """Return when a 416 says that the partial file is the whole; otherwise start again."""
    match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    total = int(match[3]) if match and match[3].isdecimal() else None
    known = job.state.total_bytes if job.state else None
    if offset and offset == (total if total is not None else known):
        etag = response.headers.get("etag")
        same = etag is None or job.state is None or etag == job.state.etag
        if same and job.size_bytes in {None, offset} and _digest_fits(job):
            job.resumed_from_bytes = offset
            note = "the server has no more to send: the partial file is complete"
            job.reporter.event(Phase.RESUMING, note, done_bytes=offset, total_bytes=offset)
            return
    error = unusable(job, "remote-range-refused", "refused the range that was asked for (416)")
    if not offset:
        raise error
    job.restart("the server refused to continue (416); starting from zero")
    raise TryAgain(error, 0.0)


def _digest_fits(job: Job) -> bool:
    try:
        partial.verify_file(job.part, job.reporter, expected_sha256=job.sha256)
    except IntegrityError:
        return False
    return True


def _refuse_page(job: Job, response: httpx.Response) -> None:
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    texts = _PAGE_TYPES if job.sha256 else (*_PAGE_TYPES, *_TEXT_TYPES)
    if kind.startswith(texts):
        raise _not_a_model(job, f"a document of type {kind}")
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise unusable(job, "remote-encoded", f"sent {encoding} although it was not asked to")


def _accept_body(job: Job, response: httpx.Response, offset: int) -> int | None:
    """Return the total size after making sure that the body begins at ``offset``, or at zero."""
    length = response.headers.get("content-length", "")
    body_bytes = int(length) if length.isdecimal() else None
    state = PartState(
        url=job.url,
        etag=response.headers.get("etag"),
        last_modified=response.headers.get("last-modified"),
        total_bytes=body_bytes,
    )
    if response.status_code == 206:
        state = _accept_range(job, response, offset, state)
    elif offset:
        job.restart("the server sent the whole file instead of the rest; starting from zero")
        offset = 0
    if state.total_bytes is not None:
        try:
            partial.check_size(state.total_bytes, job.size_bytes, what=transport.shown(job.url))
        except IntegrityError:
            job.discard()
            raise
    needed = (state.total_bytes or job.size_bytes or 0) - offset
    partial.check_space(job.destination.parent, needed, job.policy.disk_margin_bytes)
    if state != job.state:
        partial.write_state(job.state_path, state)
        job.state = state
    return state.total_bytes if state.total_bytes is not None else job.size_bytes


def _accept_range(job: Job, response: httpx.Response, offset: int, state: PartState) -> PartState:
    match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if not offset or match is None or match[1] is None:
        raise _restart_range(job, "sent part of the file without saying which")
    total = int(match[3]) if match[3].isdecimal() else None
    last, before = int(match[2]), job.state
    if int(match[1]) != offset:
        raise _restart_range(job, f"continued at byte {match[1]} instead of {offset}")
    if total is not None and last >= total:
        raise _restart_range(job, "sent a range that ends after the file")
    if before is not None:
        if state.etag and before.etag and state.etag != before.etag:
            raise _restart_range(job, "has another version of the file now")
        if None not in {total, before.total_bytes} and total != before.total_bytes:
            raise _restart_range(job, "has a file of another size now")
        return PartState(
            url=job.url,
            etag=before.etag or state.etag,
            last_modified=before.last_modified or state.last_modified,
            total_bytes=total if total is not None else before.total_bytes,
        )
    return PartState(
        url=job.url, etag=state.etag, last_modified=state.last_modified, total_bytes=total
    )


def _restart_range(job: Job, what: str) -> TryAgain:
    error = unusable(job, "remote-range-wrong", what)
    job.restart(f"the server {what}; starting from zero")
    return TryAgain(error, 0.0)


def _write_body(job: Job, response: httpx.Response, offset: int, total: int | None) -> None:
    done, checked = offset, offset
    with partial.storage_errors(job.part):
        target = job.part.open("ab" if offset else "wb", buffering=0)
    with target:
        for chunk in response.iter_raw():
            if done == 0 and chunk.lstrip()[:16].lower().startswith(_PAGE_STARTS):
                raise _not_a_model(job, "an HTML page")
            if total is not None and done + len(chunk) > total:
                job.discard()
                partial.check_size(done + len(chunk), total, what=transport.shown(job.url))
            if done - checked >= _SPACE_CHECK_BYTES:
                checked = done
                partial.check_space(job.destination.parent, 0, job.policy.disk_margin_bytes // 2)
            with partial.storage_errors(job.part):
                partial.write_all(target, chunk)
            done += len(chunk)
            job.reporter.advance(Phase.DOWNLOADING, done, total)
        with partial.storage_errors(job.part):
            os.fsync(target.fileno())
    if total is not None and done < total:
        raise TryAgain(
            unusable(job, "remote-interrupted", f"sent {done:,} of {total:,} bytes", retryable=True)
        )


def _not_a_model(job: Job, what: str) -> RemoteError:
    job.discard()
    return RemoteError(
        "remote-not-a-model",
        f"{transport.shown(job.url)} sent {what}, not a model",
        context={"url": transport.shown(job.url)},
        hint="this is often a login page or the captive portal of a network: open the address "
        "in a browser, sign in, and try again",
    )


def unusable(job: Job, code: str, what: str, *, retryable: bool = False) -> RemoteError:
    where = transport.shown(job.url)
    return RemoteError(
        code,
        f"{where} {what}",
        context={"url": where},
        hint="the server does not keep to HTTP, or something in between changes its answers",
        retryable=retryable,
    )


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
