from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.servers import (
    LoopbackServer,
    Served,
    cut_after,
    hang_up,
    ignore_range,
    partial_content,
    status,
    unannounced,
)

from edgewise.errors import EdgewiseError, InputError, IntegrityError, RemoteError, ResourceError
from edgewise.models.sources import partial
from edgewise.models.sources.download import DownloadPolicy, DownloadResult, download
from edgewise.models.sources.partial import PartState
from edgewise.models.sources.progress import FetchCancelledError, Phase, Progress

BODY = b"GGUF" + bytes(range(256)) * 2000
SHA256 = hashlib.sha256(BODY).hexdigest()
OTHER = b"GGUF" + bytes(reversed(range(256))) * 2000


@dataclass
class Run:
    """A download with a recorded progress and a clock that only its own waits move."""

    folder: Path
    events: list[Progress] = field(default_factory=list)
    slept_s: list[float] = field(default_factory=list)

    @property
    def destination(self) -> Path:
        return self.folder / "model.gguf"

    @property
    def part(self) -> Path:
        return self.folder / "model.gguf.part"

    def __call__(self, url: str, **options: Any) -> DownloadResult:
        options.setdefault("policy", DownloadPolicy(disk_margin_bytes=0))
        return download(
            url,
            self.destination,
            progress=self.events.append,
            sleep=self.slept_s.append,
            now=lambda: 1_000_000_000.0,
            **options,
        )

    def interrupted(self, url: str, served: Served, kept_bytes: int, **options: Any) -> None:
        """Leave a partial file behind, as a cut connection does."""
        served.script.append(cut_after(kept_bytes))
        with pytest.raises(RemoteError):
            self(url, policy=DownloadPolicy(retries=0, disk_margin_bytes=0), **options)
        assert self.part.stat().st_size == kept_bytes
        self.events.clear()

    def notes(self, phase: Phase) -> list[str]:
        return [event.note for event in self.events if event.phase is phase]

    def leftovers(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} - {"model.gguf.lock"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackServer]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with LoopbackServer() as running:
        yield running


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_sound_file_arrives_whole_and_nothing_else_stays(
    server: LoopbackServer, run: Run
) -> None:
    url = server.serve("/m.gguf", Served(BODY))
    result = run(url, expected_sha256=SHA256.upper(), expected_size_bytes=len(BODY))
    assert run.destination.read_bytes() == BODY
    assert (result.sha256, result.size_bytes, result.etag) == (SHA256, len(BODY), '"v1"')
    assert (result.attempts, result.resumed_from_bytes) == (1, 0)
    assert run.leftovers() == {"model.gguf"}
    assert run.events[-1].phase is Phase.DONE
    assert server.log[0].headers["accept-encoding"] == "identity"


def test_a_second_download_finds_the_file(server: LoopbackServer, run: Run) -> None:
    url = server.serve("/m.gguf", Served(BODY))
    run(url, expected_sha256=SHA256)
    result = run(url, expected_sha256=SHA256)
    assert result.attempts == 0
    assert len(server.log) == 1


def test_a_file_of_other_content_at_the_destination_is_replaced_and_said(
    server: LoopbackServer, run: Run
) -> None:
    run.destination.write_bytes(OTHER)
    run(server.serve("/m.gguf", Served(BODY)), expected_sha256=SHA256)
    assert run.destination.read_bytes() == BODY
    assert "other content" in run.notes(Phase.RESTARTING)[0]


def test_a_cut_connection_is_resumed_within_the_call(server: LoopbackServer, run: Run) -> None:
    url = server.serve("/m.gguf", Served(BODY, script=[cut_after(100_000)]))
    result = run(url)
    assert run.destination.read_bytes() == BODY
    assert result.resumed_from_bytes == 100_000
    assert server.log[1].headers["range"] == "bytes=100000-"
    assert server.log[1].headers["if-range"] == '"v1"'
    assert "attempt 2 in 1 s" in run.notes(Phase.RETRYING)[0]
    assert sum(run.slept_s) == 1


def test_a_cut_connection_is_resumed_by_a_later_call(server: LoopbackServer, run: Run) -> None:
    served = Served(BODY)
    url = server.serve("/m.gguf", served)
    run.interrupted(url, served, 100_000)
    result = run(url, expected_sha256=SHA256)
    assert result.resumed_from_bytes == 100_000
    assert run.notes(Phase.RESUMING) == ["continuing after 100,000 bytes"]


def test_a_network_that_stays_bad_ends_in_a_retryable_error(
    server: LoopbackServer, run: Run
) -> None:
    faults = [cut_after(1000), *[hang_up] * 10]
    with pytest.raises(RemoteError) as caught:
        run(server.serve("/m.gguf", Served(BODY, script=faults)))
    assert caught.value.retryable
    assert caught.value.context["kept_bytes"] == 1000
    assert [float(f"{s:g}") for s in _waits(run)] == [1, 2, 4, 8]
    assert len(server.log) == 5


def _waits(run: Run) -> list[float]:
    return [float(note.rsplit(" in ", 1)[1].split()[0]) for note in run.notes(Phase.RETRYING)]


def test_progress_gives_a_bad_network_new_patience(server: LoopbackServer, run: Run) -> None:
    body = b"GGUF" + bytes(3 << 20)
    faults = [hang_up, hang_up, cut_after(1 << 20), hang_up]
    url = server.serve("/m.gguf", Served(body, script=faults))
    policy = DownloadPolicy(retries=2, disk_margin_bytes=0)
    assert run(url, policy=policy).size_bytes == len(body)
    assert _waits(run) == [1, 2, 1, 2]


def test_a_server_that_ignores_range_never_has_its_body_appended(
    server: LoopbackServer, run: Run
) -> None:
    served = Served(BODY)
    url = server.serve("/m.gguf", served)
    run.interrupted(url, served, 100_000)
    served.script.append(ignore_range)
    result = run(url)
    assert run.destination.read_bytes() == BODY
    assert result.resumed_from_bytes == 0
    assert "instead of the rest; starting from zero" in run.notes(Phase.RESTARTING)[0]


def test_a_changed_file_is_fetched_from_zero(server: LoopbackServer, run: Run) -> None:
    served = Served(OTHER)
    url = server.serve("/m.gguf", served)
    run.interrupted(url, served, 100_000)
    served.body, served.etag = BODY, '"v2"'
    assert run(url).etag == '"v2"'
    assert run.destination.read_bytes() == BODY


@pytest.mark.parametrize(
    ("content_range", "headers", "said"),
    [
        (f"bytes 0-{len(BODY) - 1}/{len(BODY)}", {}, "continued at byte 0 instead of 100000"),
        (f"bytes 100001-{len(BODY) - 1}/{len(BODY)}", {}, "continued at byte 100001"),
        (f"bytes 100000-{len(BODY) - 1}/{len(BODY)}", {"ETag": '"v9"'}, "another version"),
        (f"bytes 100000-{len(BODY)}/{len(BODY) + 1}", {}, "another size"),
        (f"bytes 100000-{len(BODY)}/{len(BODY)}", {}, "ends after the file"),
        ("bytes */5", {}, "without saying which"),
        ("nonsense", {}, "without saying which"),
    ],
)
def test_a_206_that_does_not_continue_the_part_is_not_appended(
    server: LoopbackServer, run: Run, content_range: str, headers: dict[str, str], said: str
) -> None:
    served = Served(BODY)
    url = server.serve("/m.gguf", served)
    run.interrupted(url, served, 100_000)
    served.script.append(partial_content(content_range, OTHER[100_000:], **headers))
    run(url)
    assert run.destination.read_bytes() == BODY
    assert said in run.notes(Phase.RESTARTING)[0]
    assert run.slept_s == []


def test_a_206_that_nobody_asked_for_is_not_taken_for_the_whole(
    server: LoopbackServer, run: Run
) -> None:
    part = partial_content(f"bytes 10-{len(BODY) - 1}/{len(BODY)}", BODY[10:])
    run(server.serve("/m.gguf", Served(BODY, script=[part])))
    assert run.destination.read_bytes() == BODY


def test_a_416_on_a_complete_part_finishes_without_appending_its_body(
    server: LoopbackServer, run: Run
) -> None:
    url = server.serve("/m.gguf", Served(BODY))
    _leave_part(run, url, BODY)
    result = run(url, expected_sha256=SHA256)
    assert run.destination.read_bytes() == BODY
    assert result.resumed_from_bytes == len(BODY)


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_416_on_a_wrong_part_starts_from_zero(
    server: LoopbackServer, run: Run, sha256: str | None
) -> None:
    url = server.serve("/m.gguf", Served(BODY))
    wrong = OTHER if sha256 else BODY[:-1]
    _leave_part(run, url, wrong, total_bytes=None)
    server.files["/m.gguf"].script.append(status(416, b"no", Content_Range=f"bytes */{len(BODY)}"))
    run(url, expected_sha256=sha256)
    assert run.destination.read_bytes() == BODY
    assert "(416); starting from zero" in run.notes(Phase.RESTARTING)[0]


def _leave_part(run: Run, url: str, body: bytes, total_bytes: int | None = len(BODY)) -> None:
    run.part.write_bytes(body)
    state = PartState(url=url, etag='"v1"', total_bytes=total_bytes)
    partial.write_state(run.folder / "model.gguf.part.json", state)


def test_a_416_from_zero_ends_the_download(server: LoopbackServer, run: Run) -> None:
    url = server.serve("/m.gguf", Served(BODY, script=[status(416)]))
    with pytest.raises(RemoteError) as caught:
        run(url)
    assert caught.value.code == "remote-range-refused"


@pytest.mark.parametrize("state", [b"", b"{", b'{"url": "https://elsewhere.invalid/m"}', None])
def test_a_part_of_unknown_origin_is_not_continued(
    server: LoopbackServer, run: Run, state: bytes | None
) -> None:
    url = server.serve("/m.gguf", Served(BODY))
    run.part.write_bytes(OTHER[:50_000])
    if state is not None:
        (run.folder / "model.gguf.part.json").write_bytes(state)
    run(url)
    assert run.destination.read_bytes() == BODY
    assert "no usable state" in run.notes(Phase.RESTARTING)[0]
    assert "range" not in server.log[0].headers


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_validator_only_pinned_content_is_continued(
    server: LoopbackServer, run: Run, etag: str | None
) -> None:
    served = Served(BODY, etag=etag)
    url = server.serve("/m.gguf", served)
    run.interrupted(url, served, 100_000)
    served.script.append(cut_after(100_000))
    assert run(url, expected_sha256=SHA256).resumed_from_bytes == 100_000
    run.destination.unlink()
    run.interrupted(url, served, 100_000)
    assert run(url).resumed_from_bytes == 0
    assert "nothing to recognise the file by" in run.notes(Phase.RESTARTING)[0]


def test_same_size_and_wrong_content_is_an_error_and_is_removed(
    server: LoopbackServer, run: Run
) -> None:
    url = server.serve("/m.gguf", Served(OTHER))
    with pytest.raises(IntegrityError) as caught:
        run(url, expected_sha256=SHA256, expected_size_bytes=len(BODY))
    assert caught.value.code == "digest-mismatch"
    assert caught.value.context["expected_sha256"] == SHA256
    assert caught.value.context["actual_sha256"] == hashlib.sha256(OTHER).hexdigest()
    assert run.leftovers() == set()


def test_a_wrong_announced_size_is_refused_before_any_byte(
    server: LoopbackServer, run: Run
) -> None:
    url = server.serve("/m.gguf", Served(BODY))
    with pytest.raises(IntegrityError) as caught:
        run(url, expected_size_bytes=len(BODY) + 1)
    assert caught.value.code == "size-mismatch"
    assert run.leftovers() == set()


def test_a_body_longer_than_expected_is_refused(server: LoopbackServer, run: Run) -> None:
    url = server.serve("/m.gguf", Served(BODY, script=[unannounced(BODY + b"more")]))
    with pytest.raises(IntegrityError) as caught:
        run(url, expected_size_bytes=len(BODY))
    assert caught.value.code == "size-mismatch"
    assert run.leftovers() == set()


def test_a_body_without_length_that_ends_early_is_resumed(server: LoopbackServer, run: Run) -> None:
    url = server.serve("/m.gguf", Served(BODY, script=[unannounced(BODY[:70_000])]))
    assert run(url, expected_size_bytes=len(BODY)).resumed_from_bytes == 70_000
    assert run.destination.read_bytes() == BODY


@pytest.mark.parametrize(
    ("served", "pin"),
    [
        (Served(b"<!DOCTYPE html><p>sign in", content_type="text/html; charset=utf-8"), None),
        (Served(b"<!DOCTYPE html><p>sign in", content_type="text/html; charset=utf-8"), SHA256),
        (Served(b"\n <HTML><p>sign in"), None),
        (Served(b"not found, sorry", content_type="text/plain"), None),
        (Served(b'{"error": "no"}', content_type="application/json"), None),
    ],
)
def test_a_page_is_not_a_model(
    server: LoopbackServer, run: Run, served: Served, pin: str | None
) -> None:
    with pytest.raises(RemoteError) as caught:
        run(server.serve("/m.gguf", served), expected_sha256=pin)
    assert caught.value.code == "remote-not-a-model"
    assert "captive portal" in str(caught.value.hint)
    assert run.leftovers() == set()


def test_a_login_page_on_resume_does_not_end_in_the_model(server: LoopbackServer, run: Run) -> None:
    served = Served(BODY)
    url = server.serve("/m.gguf", served)
    run.interrupted(url, served, 100_000)
    served.script.append(status(200, b"<html>", Content_Type="text/html"))
    with pytest.raises(RemoteError, match="text/html"):
        run(url)
    assert not run.destination.exists()


def test_pinned_content_may_be_served_as_text(server: LoopbackServer, run: Run) -> None:
    url = server.serve("/m.gguf", Served(BODY, content_type="text/plain"))
    assert run(url, expected_sha256=SHA256).size_bytes == len(BODY)


def test_compressed_content_is_not_stored_as_the_model(server: LoopbackServer, run: Run) -> None:
    packed = status(200, gzip.compress(BODY), Content_Encoding="gzip")
    with pytest.raises(RemoteError) as caught:
        run(server.serve("/m.gguf", Served(BODY, script=[packed])))
    assert caught.value.code == "remote-encoded"


def test_an_empty_answer_is_an_error(server: LoopbackServer, run: Run) -> None:
    with pytest.raises(RemoteError) as caught:
        run(server.serve("/m.gguf", Served(b"")))
    assert caught.value.code == "remote-empty"
    assert run.leftovers() == set()


@pytest.mark.parametrize(
    ("code", "expected", "retryable"),
    [
        (401, "remote-denied", False),
        (403, "remote-denied", False),
        (404, "remote-not-found", False),
        (410, "remote-not-found", False),
        (418, "remote-refused", False),
        (429, "remote-rate-limited", True),
        (500, "remote-failed", True),
        (503, "remote-failed", True),
    ],
)
def test_statuses_become_typed_errors(
    server: LoopbackServer, run: Run, code: int, expected: str, *, retryable: bool
) -> None:
    url = server.serve("/m.gguf", Served(BODY, script=[status(code)] * 9)) + "?token=secret"
    with pytest.raises(RemoteError) as caught:
        run(url)
    assert (caught.value.code, caught.value.retryable) == (expected, retryable)
    assert caught.value.context["status"] == code
    assert "secret" not in str(caught.value.to_dict())
    assert len(server.log) == (5 if retryable else 1)


@pytest.mark.parametrize("wanted", ["7", "Sun, 09 Sep 2001 01:46:47 GMT"])
def test_retry_after_is_honoured(server: LoopbackServer, run: Run, wanted: str) -> None:
    limited = status(429, Retry_After=wanted)
    run(server.serve("/m.gguf", Served(BODY, script=[limited])))
    assert sum(run.slept_s) == 7


def test_a_retry_after_beyond_the_bound_ends_the_download(server: LoopbackServer, run: Run) -> None:
    limited = status(429, Retry_After="86400")
    with pytest.raises(RemoteError) as caught:
        run(server.serve("/m.gguf", Served(BODY, script=[limited])))
    assert caught.value.context["retry_after_s"] == 86400
    assert run.slept_s == []


def test_redirects_are_followed_without_credentials_to_other_origins(
    server: LoopbackServer, run: Run
) -> None:
    with LoopbackServer() as other:
        target = other.serve("/real", Served(BODY))
        hop = status(302, Location="/again")
        url = server.serve("/m.gguf", Served(b"", script=[hop]))
        server.serve("/again", Served(b"", script=[status(307, Location=target)]))
        run(url, headers={"Authorization": "Bearer x"})
        assert server.log[1].headers["authorization"] == "Bearer x"
        assert "authorization" not in other.log[0].headers
    assert run.destination.read_bytes() == BODY


@pytest.mark.parametrize(
    "target", ["http://192.0.2.1/m", "ftp://127.0.0.1/m", "file:///etc/passwd"]
)
def test_redirects_out_of_protection_are_refused(
    server: LoopbackServer, run: Run, target: str
) -> None:
    url = server.serve("/m.gguf", Served(b"", script=[status(302, Location=target)]))
    with pytest.raises(RemoteError) as caught:
        run(url)
    assert caught.value.code == "remote-redirect-refused"


def test_endless_redirects_end(server: LoopbackServer, run: Run) -> None:
    url = server.serve("/m.gguf", Served(b"", script=[status(302, Location="/m.gguf")] * 50))
    with pytest.raises(RemoteError, match="more than 10 redirects"):
        run(url)


@pytest.mark.parametrize("url", ["http://192.0.2.1/m", "ftp://x/m", "file:///etc/passwd", "m"])
def test_other_addresses_are_not_fetched(run: Run, url: str) -> None:
    with pytest.raises(InputError) as caught:
        run(url)
    assert caught.value.code == "url-not-https"


def test_a_closed_port_is_a_retryable_error(server: LoopbackServer, run: Run) -> None:
    with LoopbackServer() as gone:
        url = f"{gone.url}/m.gguf"
    with pytest.raises(RemoteError) as caught:
        run(url, policy=DownloadPolicy(retries=1))
    assert (caught.value.code, caught.value.retryable) == ("remote-unreachable", True)
    assert caught.value.__cause__ is not None


def test_an_unknown_host_is_a_retryable_error(server: LoopbackServer, run: Run) -> None:
    with pytest.raises(RemoteError) as caught:
        run("https://no-such-host.invalid/m.gguf", policy=DownloadPolicy(retries=0))
    assert (caught.value.code, caught.value.retryable) == ("remote-unreachable", True)


def test_a_silent_server_times_out(server: LoopbackServer, run: Run) -> None:
    def silent(exchange: object) -> None:
        server.release.wait(30)

    url = server.serve("/m.gguf", Served(BODY, script=[silent]))
    policy = DownloadPolicy(retries=0, read_timeout_s=0.05)
    with pytest.raises(RemoteError) as caught:
        run(url, policy=policy)
    assert (caught.value.code, caught.value.retryable) == ("remote-timeout", True)


def test_the_proxy_of_the_environment_is_used(
    server: LoopbackServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    server.files["http://localhost:9/m.gguf"] = Served(BODY)
    run("http://localhost:9/m.gguf")
    assert server.log[0].target == "http://localhost:9/m.gguf"
    assert run.destination.read_bytes() == BODY


def test_missing_space_is_found_before_writing(server: LoopbackServer, run: Run) -> None:
    url = server.serve("/m.gguf", Served(BODY))
    with pytest.raises(ResourceError) as caught:
        run(url, policy=DownloadPolicy(disk_margin_bytes=1 << 60))
    assert caught.value.code == "disk-full"
    assert caught.value.context["shortfall_bytes"] > 1 << 59
    assert caught.value.context["needed_bytes"] == len(BODY)
    assert run.leftovers() == set()


def test_cancelling_keeps_the_part_for_later(server: LoopbackServer, run: Run) -> None:
    url = server.serve("/m.gguf", Served(BODY))
    with pytest.raises(FetchCancelledError):
        run(url, cancelled=lambda: run.part.exists() and run.part.stat().st_size > 0)
    kept = run.part.stat().st_size
    assert 0 < kept < len(BODY)
    assert run(url).resumed_from_bytes == kept
    assert run.destination.read_bytes() == BODY


def test_cancelling_interrupts_a_wait(server: LoopbackServer, run: Run) -> None:
    url = server.serve("/m.gguf", Served(BODY, script=[status(503, Retry_After="100")]))
    with pytest.raises(FetchCancelledError):
        run(url, cancelled=lambda: sum(run.slept_s) >= 3)
    assert sum(run.slept_s) == 3


def test_progress_counts_bytes_and_rates(server: LoopbackServer, run: Run) -> None:
    ticks = iter(range(10_000))
    url = server.serve("/m.gguf", Served(BODY))
    run(url, clock=lambda: float(next(ticks)))
    moving = [event for event in run.events if event.phase is Phase.DOWNLOADING]
    done = [event.done_bytes for event in moving]
    assert done == sorted(done)
    assert done[-1] == len(BODY)
    assert {event.total_bytes for event in moving} == {len(BODY)}
    assert moving[-1].rate_bytes_s is not None
    assert moving[-1].rate_bytes_s > 0


def test_the_public_face_is_what_it_says() -> None:
    from edgewise.models import sources

    assert all(hasattr(sources, name) for name in sources.__all__)
    assert sorted(sources.__all__) == sources.__all__
    assert sources.download is download
    assert issubclass(FetchCancelledError, EdgewiseError)
