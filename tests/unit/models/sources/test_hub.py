"""Runs the real huggingface_hub library, against a hub that these tests serve on loopback."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.servers import HubServer, cut_after, hang_up, status

from edgewise.errors import (
    EdgewiseError,
    InputError,
    IntegrityError,
    RemoteError,
    ResourceError,
    UnsupportedError,
)
from edgewise.models.sources import FetchedCheckpoint, Pins, fetch, parse_reference
from edgewise.models.sources.download import DownloadPolicy
from edgewise.models.sources.progress import FetchCancelledError, Phase, Progress

huggingface_hub = pytest.importorskip("huggingface_hub")

MODEL = b"GGUF" + bytes(range(256)) * 2000
SHA256 = hashlib.sha256(MODEL).hexdigest()
POLICY = DownloadPolicy(disk_margin_bytes=0)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    still = SimpleNamespace(sleep=lambda _s: None)  # the library waits between its own retries
    monkeypatch.setattr("huggingface_hub.file_download.time", still)
    monkeypatch.setattr("huggingface_hub.utils._http.time", still)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with HubServer("org/model", {"sub/m.gguf": MODEL}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
        huggingface_hub.utils.close_session()


def get(
    tmp_path: Path, text: str = "hf:org/model/sub/m.gguf", **options: object
) -> FetchedCheckpoint:
    return fetch(parse_reference(text), tmp_path / "s", policy=POLICY, **options)  # type: ignore[arg-type]


def test_the_real_library_brings_the_file_of_the_commit(hub: HubServer, tmp_path: Path) -> None:
    events: list[Progress] = []
    got = get(tmp_path, progress=events.append)
    assert got.path.read_bytes() == MODEL
    assert not got.path.is_symlink()
    assert got.revision == f"hf:org/model@{hub.commit}/sub/m.gguf"
    assert (got.sha256, got.size_bytes, got.licence, got.pinned) == (
        SHA256,
        len(MODEL),
        "mit",
        False,
    )
    moved = [event for event in events if event.phase is Phase.DOWNLOADING]
    assert moved[-1].done_bytes == len(MODEL)
    assert {path.name for path in got.path.parent.iterdir()} == {"m.gguf", "fetched.json"}


def test_nothing_but_the_repository_is_asked_and_nothing_is_told(
    hub: HubServer, tmp_path: Path
) -> None:
    get(tmp_path, f"hf:org/model@main/sub/m.gguf#sha256={SHA256}")
    assert {one.path for one in hub.log} == {
        "/api/models/org/model/revision/main",
        f"/org/model/resolve/{hub.commit}/sub/m.gguf",
    }
    assert not any("torch" in one.headers["user-agent"] for one in hub.log)
    assert huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY is True


def test_a_pin_in_the_reference_makes_it_pinned(hub: HubServer, tmp_path: Path) -> None:
    assert get(tmp_path, f"hf:org/model/sub/m.gguf#sha256={SHA256}").pinned


def test_a_cut_connection_is_continued_by_the_library(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    hub.get_faults.append(cut_after(100_000))
    assert get(tmp_path).sha256 == SHA256
    assert hub.log[-1].headers["range"] == "bytes=100000-"


def refused(
    tmp_path: Path, text: str = "hf:org/model/sub/m.gguf", **options: object
) -> EdgewiseError:
    with pytest.raises(EdgewiseError) as caught:
        get(tmp_path, text, **options)
    return caught.value


def test_a_network_that_stays_cut_is_retryable(hub: HubServer, tmp_path: Path) -> None:
    hub.get_faults += [cut_after(1000), *[hang_up] * 20]
    error = refused(tmp_path)
    assert isinstance(error, RemoteError)
    assert (error.code, error.retryable) == ("hub-unreachable", True)
    assert error.__cause__ is not None


def test_gated(hub: HubServer, tmp_path: Path) -> None:
    hub.gated = True
    error = refused(tmp_path)
    assert isinstance(error, RemoteError)
    assert (error.code, error.retryable) == ("hub-gated", False)
    assert "accept its terms" in str(error.hint)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("hf:org/other/sub/m.gguf", "repository"),
        ("hf:org/model@v9/sub/m.gguf", "revision"),
        ("hf:org/model/none.gguf", "file"),
    ],
)
def test_not_found(hub: HubServer, tmp_path: Path, text: str, missing: str) -> None:
    error = refused(tmp_path, text)
    assert isinstance(error, InputError)
    assert error.context["missing"] == missing


@pytest.mark.parametrize(("code", "retryable"), [(401, False), (429, True), (503, True)])
def test_other_statuses(hub: HubServer, tmp_path: Path, code: int, *, retryable: bool) -> None:
    hub.get_faults += [status(code)] * 20
    error = refused(tmp_path)
    assert isinstance(error, RemoteError)
    assert (error.retryable, error.context["status"]) == (retryable, code)


def test_no_hub_at_all(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HubServer("a/b", {}) as gone:
        monkeypatch.setenv("HF_ENDPOINT", gone.url)
    error = refused(tmp_path)
    assert (error.code, error.retryable) == ("hub-unreachable", True)


def test_the_librarys_offline_switch(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert refused(tmp_path).code == "hub-offline"


def test_same_size_and_other_content_than_the_hub_states(hub: HubServer, tmp_path: Path) -> None:
    hub.content["sub/m.gguf"] = bytes(reversed(MODEL))
    error = refused(tmp_path)
    assert isinstance(error, IntegrityError)
    assert error.code == "digest-mismatch"


def test_another_pin_than_the_hub_states_is_refused_before_the_download(
    hub: HubServer, tmp_path: Path
) -> None:
    assert refused(tmp_path, "hf:org/model/sub/m.gguf#sha256=" + "0" * 64).code == "digest-mismatch"
    assert refused(tmp_path, pins=Pins(size_bytes=1)).code == "size-mismatch"
    assert not any("resolve" in one.path for one in hub.log)


def test_missing_space(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(ResourceError):
        fetch(
            parse_reference("hf:org/model/sub/m.gguf"),
            tmp_path,
            policy=DownloadPolicy(disk_margin_bytes=1 << 60),
        )


def test_cancelling(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(FetchCancelledError):
        get(
            tmp_path,
            cancelled=lambda: any(one.method == "GET" and "resolve" in one.path for one in hub.log),
        )


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    error = refused(tmp_path)
    assert isinstance(error, UnsupportedError)
    assert "pip install 'edgewise[hf]'" in str(error.hint)
