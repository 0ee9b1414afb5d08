"""Downloads one URL into one file: resumable, verified, atomic.

Invariants: the digest is taken from the disk, before the file gets its final name. A failure of
the network keeps the partial file; content that fails verification is removed. Waiting is
bounded and visible, and goes through the injected ``sleep``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.errors import IntegrityError, RemoteError
from edgewise.models.sources import partial, transport
from edgewise.models.sources.attempt import (
    DownloadPolicy,
    Job,
    TryAgain,
    attempt,
    size_of,
    unusable,
)
from edgewise.models.sources.progress import Cancelled, Phase, ProgressCallback, Reporter

if TYPE_CHECKING:
    import httpx

__all__ = ["DownloadPolicy", "DownloadResult", "download"]

_PROGRESS_BYTES = 1 << 20  # specified: so much new data makes the next failure the first again
_SLEEP_SLICE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadResult:
    """A verified file and what the server said about it.

    Attributes:
        path: The file.
        url: Where it was asked for, before redirects.
        sha256: Digest of the file on disk.
        size_bytes: Its size.
        etag: The server's entity tag, if it gave one.
        last_modified: The server's modification date, if it gave one.
        resumed_from_bytes: Bytes that an earlier run had already fetched and that were kept.
        attempts: Requests made; 0 when the file was already there.
    """

    path: Path
    url: str
    sha256: str
    size_bytes: int
    etag: str | None = None
    last_modified: str | None = None
    resumed_from_bytes: int = 0
    attempts: int = 0


def download(
    url: str,
    destination: Path,
    *,
    expected_sha256: str | None = None,
    expected_size_bytes: int | None = None,
    progress: ProgressCallback | None = None,
    cancelled: Cancelled | None = None,
    headers: Mapping[str, str] | None = None,
    policy: DownloadPolicy | None = None,
    transport_layer: httpx.BaseTransport | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.time,
) -> DownloadResult:
    """Return the verified file at ``destination``, fetched from ``url`` or found there.

    The partial file is ``destination`` plus ``.part``, with its state in ``.part.json`` and a
    lock in ``.lock``. A file already at ``destination`` is taken when it has the expected digest,
    or when none is expected, since the name only ever appears on a complete file.

    Args:
        url: An https URL, or http on this computer.
        destination: Final path; its folder exists.
        expected_sha256: Digest that the content must have.
        expected_size_bytes: Size that the content must have.
        progress: Receives typed events.
        cancelled: Asked often; true stops the download and keeps the partial file.
        headers: Extra request headers; credentials are not forwarded to other origins.
        policy: Retries, timeouts and margins.
        transport_layer: Replaces the network, for callers with one of their own.
        clock: Monotonic seconds, for rates.
        sleep: Waits between attempts.
        now: Wall clock in seconds, for a ``Retry-After`` date.

    Raises:
        FetchCancelledError: ``cancelled`` said yes.
        InputError: the URL is not allowed, or a CA bundle cannot be read.
        IntegrityError: wrong digest or size; the partial file is removed.
        RemoteError: the server or the network failed, refused, or sent no model.
        ResourceError: no space, no permission, or the lock was held too long.
    """
    policy = policy or DownloadPolicy()
    reporter = Reporter(progress, cancelled, clock)
    transport.check_url(url, allow_http=policy.allow_http)
    job = Job(
        url=url,
        destination=destination,
        sha256=expected_sha256.lower() if expected_sha256 else None,
        size_bytes=expected_size_bytes,
        headers=headers or {},
        policy=policy,
        reporter=reporter,
    )
    lock = destination.with_name(destination.name + ".lock")
    with partial.hold_lock(lock, reporter, timeout_s=policy.lock_timeout_s):
        found = _found(job)
        if found is not None:
            return found
        import httpx  # noqa: PLC0415 - heavy, and only fetching needs it

        timeout = httpx.Timeout(policy.read_timeout_s, connect=policy.connect_timeout_s)
        with httpx.Client(
            transport=transport_layer,
            verify=transport.tls_context(),
            timeout=timeout,
            headers={"accept": "*/*", "accept-encoding": "identity", "user-agent": "edgewise"},
        ) as client:
            _fetch_all(job, client, sleep=sleep, now=now)
        return _finish(job)


def _found(job: Job) -> DownloadResult | None:
    if not job.destination.is_file():
        return None
    actual = partial.verify_file(job.destination, job.reporter, expected_sha256=None)
    size = job.destination.stat().st_size
    if job.sha256 not in {None, actual} or job.size_bytes not in {None, size}:
        job.reporter.event(
            Phase.RESTARTING, f"{job.destination} holds other content; fetching it again"
        )
        return None
    note = "already fetched" if job.sha256 else "already fetched; its digest was not given"
    job.reporter.event(Phase.DONE, note, done_bytes=size, total_bytes=size)
    partial.remove(job.part, job.state_path)
    return DownloadResult(path=job.destination, url=job.url, sha256=actual, size_bytes=size)


def _fetch_all(
    job: Job, client: httpx.Client, *, sleep: Callable[[float], None], now: Callable[[], float]
) -> None:
    """Make attempts until the partial file is complete."""
    import httpx  # noqa: PLC0415

    failures, furthest_bytes = 0, size_of(job.part)
    while True:
        job.reporter.check()
        job.attempts += 1
        try:
            attempt(job, client, now=now)
        except TryAgain as again:
            error, after_s = again.error, again.after_s
        except (httpx.HTTPError, httpx.InvalidURL) as raised:
            typed = transport.translate_error(raised, job.url)
            if not isinstance(typed, RemoteError) or not typed.retryable:
                raise typed from raised
            typed.__cause__ = raised
            error, after_s = typed, None
        else:
            return
        if size_of(job.part) >= furthest_bytes + _PROGRESS_BYTES:
            failures, furthest_bytes = 0, size_of(job.part)
        failures += 1
        if failures > job.policy.retries:
            error.context.update(attempts=job.attempts, kept_bytes=size_of(job.part))
            raise error
        _wait(job, error, failures, after_s, sleep)


def _wait(
    job: Job,
    error: RemoteError,
    failures: int,
    after_s: float | None,
    sleep: Callable[[float], None],
) -> None:
    """Say why and how long, then wait before the next attempt."""
    delay_s = min(job.policy.backoff_s * 2 ** (failures - 1), job.policy.backoff_max_s)
    if after_s is not None:
        if after_s > job.policy.retry_after_max_s:
            raise error
        delay_s = after_s
    job.reporter.event(
        Phase.RETRYING,
        f"{error.message}; attempt {job.attempts + 1} in {delay_s:g} s",
        done_bytes=size_of(job.part),
        total_bytes=job.state.total_bytes if job.state else job.size_bytes,
    )
    while delay_s > 0:
        job.reporter.check()
        sleep(min(delay_s, _SLEEP_SLICE_S))
        delay_s -= _SLEEP_SLICE_S


def _finish(job: Job) -> DownloadResult:
    """Verify the complete partial file and give it its final name."""
    if size_of(job.part) == 0:
        job.discard()
        raise unusable(job, "remote-empty", "sent an empty file")
    try:
        partial.check_size(size_of(job.part), job.size_bytes, what=transport.shown(job.url))
        actual = partial.verify_file(job.part, job.reporter, expected_sha256=job.sha256)
    except IntegrityError:
        job.discard()
        raise
    size, state = size_of(job.part), job.state
    partial.publish(job.part, job.destination)
    partial.remove(job.state_path)
    job.reporter.event(Phase.DONE, done_bytes=size, total_bytes=size)
    return DownloadResult(
        path=job.destination,
        url=job.url,
        sha256=actual,
        size_bytes=size,
        etag=state.etag if state else None,
        last_modified=state.last_modified if state else None,
        resumed_from_bytes=job.resumed_from_bytes,
        attempts=job.attempts,
    )
