"""Folders kept by content: identity, storing, damage, and what is no plain file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgewise.errors import InputError, IntegrityError
from edgewise.store import Home, trees


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def folder(path: Path, **files: bytes) -> Path:
    for name, data in files.items():
        target = path / name.replace("__", "/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return path


def test_the_digest_depends_on_names_and_bytes_only(tmp_path: Path) -> None:
    one = folder(tmp_path / "1", a=b"x", d__b=b"y")
    two = folder(tmp_path / "2", d__b=b"y", a=b"x")
    os.utime(two / "a", (1, 1))
    digest = trees.tree_digest(trees.index(one))
    assert digest == trees.tree_digest(trees.index(two))
    for other in ({"a": b"x", "d__c": b"y"}, {"a": b"x", "d__b": b"z"}, {"a": b"x", "e": b""}):
        changed = folder(tmp_path / f"o{len(list(tmp_path.iterdir()))}", **other)
        assert trees.tree_digest(trees.index(changed)) != digest


def test_one_file_is_a_blob_under_its_own_digest(home: Home, tmp_path: Path) -> None:
    source = folder(tmp_path / "one", model=b"weights")
    entries = trees.index(source)
    path = trees.adopt(home, source, entries)
    assert path == home.blob(entries[0].sha256) == trees.path_of(home, entries[0].sha256)
    assert trees.verified_path(home, entries[0].sha256).read_bytes() == b"weights"


def test_several_files_are_a_tree_that_nobody_can_write(home: Home, tmp_path: Path) -> None:
    source = folder(tmp_path / "two", a=b"1", d__b=b"22")
    entries = trees.index(source)
    digest = trees.tree_digest(entries)
    path = trees.adopt(home, source, entries)
    assert path == trees.verified_path(home, digest)
    assert not source.exists()
    assert {entry.path: entry.size_bytes for entry in trees.index(path)} == {"a": 1, "d/b": 2}
    assert all(not file.stat().st_mode & 0o222 for file in path.rglob("*") if file.is_file())
    assert trees.size_of(path) == 3


def test_storing_again_is_harmless_and_heals(home: Home, tmp_path: Path) -> None:
    entries = trees.index(folder(tmp_path / "x", a=b"1", b=b"2"))
    path = trees.adopt(home, tmp_path / "x", entries)
    trees.adopt(home, folder(tmp_path / "y", a=b"1", b=b"2"), entries)
    (path / "a").chmod(0o644)
    (path / "a").write_bytes(b"!")
    with pytest.raises(IntegrityError) as caught:
        trees.verified_path(home, trees.tree_digest(entries))
    assert caught.value.code == "tree-corrupt"
    trees.adopt(home, folder(tmp_path / "z", a=b"1", b=b"2"), entries)
    assert trees.verified_path(home, trees.tree_digest(entries)) == path


@pytest.mark.parametrize("kind", ["link", "pipe", "link to folder"])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, kind: str) -> None:
    source = folder(tmp_path / "t", a=b"1")
    if kind == "pipe":
        os.mkfifo(source / "p")
    else:
        (source / "l").symlink_to(source / "a" if kind == "link" else tmp_path)
    with pytest.raises(InputError) as caught:
        trees.index(source)
    assert caught.value.code == "tree-not-plain"


def test_an_empty_folder_is_no_tree(tmp_path: Path) -> None:
    (tmp_path / "e" / "inner").mkdir(parents=True)
    with pytest.raises(InputError, match="holds no file"):
        trees.index(tmp_path / "e")


def test_copying_takes_only_what_was_listed(home: Home, tmp_path: Path) -> None:
    source = folder(tmp_path / "s", a=b"1", b=b"2", evil=b"code")
    entries = tuple(entry for entry in trees.index(source) if entry.path != "evil")
    path = trees.copy_in(home, source, entries)
    assert sorted(file.name for file in path.iterdir()) == ["a", "b"]
    assert (source / "evil").exists()


def test_a_source_that_changes_meanwhile_is_noticed(home: Home, tmp_path: Path) -> None:
    source = folder(tmp_path / "s", a=b"1", b=b"2")
    entries = trees.index(source)
    (source / "b").write_bytes(b"other")
    with pytest.raises(IntegrityError) as caught:
        trees.copy_in(home, source, entries)
    assert caught.value.code == "tree-changed"
    assert not (home.root / "trees").exists() or not list((home.root / "trees").iterdir())
