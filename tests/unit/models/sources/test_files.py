from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from edgewise.errors import InputError, IntegrityError, ResourceError
from edgewise.models.sources.files import copy_file, local_path
from edgewise.models.sources.progress import Phase, Progress, Reporter

MODEL = b"GGUF" + bytes(range(256)) * 10_000
SHA256 = hashlib.sha256(MODEL).hexdigest()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "mein Modell 模型.gguf"
    path.write_bytes(MODEL)
    return path


def test_a_copy_has_the_digest_and_its_own_bytes(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.gguf"
    events: list[Progress] = []
    assert copy_file(source, target, reporter=Reporter(events.append), margin_bytes=0) == SHA256
    assert target.read_bytes() == MODEL
    assert events[0].phase is Phase.COPYING
    with source.open("r+b") as raw:
        raw.write(b"edit")
    assert target.read_bytes() == MODEL
    assert not (tmp_path / "copy.gguf.part").exists()


def test_links_to_files_are_followed(source: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(source)
    assert local_path(str(link)).read_bytes() == MODEL


def test_the_home_folder_is_expanded(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(source.parent))
    monkeypatch.setenv("USERPROFILE", str(source.parent))
    assert local_path(f"~/{source.name}") == source


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    cases = {
        "missing": "file-missing",
        ".": "file-is-folder",
        "pipe": "file-not-regular",
        "loop": "file-unreadable",
        "x" * 5000: "file-unreadable",
    }
    for name, code in cases.items():
        with pytest.raises(InputError) as caught:
            local_path(str(tmp_path / name))
        assert caught.value.code == code
    with pytest.raises(InputError):
        local_path("~no-such-user-here/x.gguf")


@pytest.mark.parametrize(
    ("pins", "code"),
    [
        ({"expected_sha256": "0" * 64}, "digest-mismatch"),
        ({"expected_size_bytes": 1}, "size-mismatch"),
    ],
)
def test_other_content_than_pinned_leaves_nothing(
    source: Path, tmp_path: Path, pins: dict[str, object], code: str
) -> None:
    target = tmp_path / "copy.gguf"
    with pytest.raises(IntegrityError) as caught:
        copy_file(source, target, reporter=Reporter(), margin_bytes=0, **pins)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == [source]


def test_a_file_that_changes_meanwhile_is_refused(source: Path, tmp_path: Path) -> None:
    def disturb(event: Progress) -> None:
        with source.open("ab") as raw:
            raw.write(b"more")

    with pytest.raises(IntegrityError) as caught:
        copy_file(source, tmp_path / "c", reporter=Reporter(disturb), margin_bytes=0)
    assert caught.value.code == "file-changed"
    assert not (tmp_path / "c.part").exists()


def test_no_folder_to_copy_to(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ResourceError) as caught:
        copy_file(source, tmp_path / "none" / "c", reporter=Reporter(), margin_bytes=0)
    assert caught.value.code == "storage-failed"
