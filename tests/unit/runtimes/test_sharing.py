"""Large files that environments have in common are kept once, and never when they differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.runtimes.sharing import share_files

MIB = 1 << 20


def put(path: Path, data: bytes, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_equal_large_files_become_one(tmp_path: Path) -> None:
    first = put(tmp_path / "a/lib/big.so", b"x" * MIB)
    second = put(tmp_path / "b/other/name.so", b"x" * MIB)
    assert share_files(tmp_path / "b", tmp_path) == MIB
    assert first.stat().st_ino == second.stat().st_ino
    assert sorted(path.name for path in second.parent.iterdir()) == ["name.so"]
    # Said again, it is what is shared, not what was done.
    assert share_files(tmp_path / "b", tmp_path) == MIB


@pytest.mark.parametrize(
    ("data", "mode"),
    [(b"x" * (MIB - 1) + b"y", 0o644), (b"x" * (MIB + 1), 0o644), (b"x" * MIB, 0o755)],
    ids=["bytes", "size", "permissions"],
)
def test_what_differs_stays_apart(tmp_path: Path, data: bytes, mode: int) -> None:
    first = put(tmp_path / "a/big.so", b"x" * MIB)
    second = put(tmp_path / "b/big.so", data, mode)
    assert share_files(tmp_path / "b", tmp_path) == 0
    assert first.stat().st_ino != second.stat().st_ino
    assert second.read_bytes() == data


def test_small_files_links_and_an_environments_own_copies_are_left(tmp_path: Path) -> None:
    put(tmp_path / "a/small", b"x")
    put(tmp_path / "b/small", b"x")
    put(tmp_path / "b/one", b"z" * MIB)
    put(tmp_path / "b/two", b"z" * MIB)
    (tmp_path / "b/link").symlink_to(tmp_path / "b/one")
    assert share_files(tmp_path / "b", tmp_path) == 0
    assert (tmp_path / "b/link").is_symlink()


def test_replacing_a_shared_file_leaves_the_other(tmp_path: Path) -> None:
    """What pip does: it unlinks what it replaces."""
    first = put(tmp_path / "a/big.so", b"x" * MIB)
    second = put(tmp_path / "b/big.so", b"x" * MIB)
    share_files(tmp_path / "b", tmp_path)
    second.unlink()
    put(second, b"new")
    assert first.read_bytes() == b"x" * MIB


def test_where_links_cannot_be_made_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(95, "not supported")

    put(tmp_path / "a/big.so", b"x" * MIB)
    second = put(tmp_path / "b/big.so", b"x" * MIB)
    monkeypatch.setattr(Path, "hardlink_to", refused)
    assert share_files(tmp_path / "b", tmp_path) == 0
    assert second.read_bytes() == b"x" * MIB
    assert [path.name for path in second.parent.iterdir()] == ["big.so"]
