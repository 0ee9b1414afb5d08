"""npm packages: the locked archive and nothing else, unpacked with care, complete or absent."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from edgewise.errors import IntegrityError, RemoteError, ResourceError, UnsupportedError
from edgewise.runtimes.browser import npm, packages
from edgewise.runtimes.environment import NpmPackage

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-in for npm is a script")

Entry = tuple[str, bytes | str, bytes]
GOOD: list[Entry] = [
    ("package/package.json", tarfile.REGTYPE, b"{}"),
    ("package/esm/index.js", tarfile.REGTYPE, b"export {};"),
]

NPM = """#!{python}
import json, os, pathlib, shutil, sys
log = pathlib.Path({log!r})
log.write_text(json.dumps({{"argv": sys.argv[1:], "cwd": os.getcwd()}}))
folder = next(a.split("=", 1)[1] for a in sys.argv if a.startswith("--pack-destination="))
{action}
"""


def archive(entries: list[Entry]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, kind, body in entries:
            member = tarfile.TarInfo(name)
            member.type = kind if isinstance(kind, bytes) else kind.encode()
            if member.isreg():
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))
            else:
                member.linkname = body.decode()
                tar.addfile(member)
    return out.getvalue()


def package_of(data: bytes) -> NpmPackage:
    digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
    return NpmPackage(name="@scope/thing", version="1.2.3", integrity=f"sha512-{digest}")


@pytest.fixture
def fake_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts an npm first on the path that hands out an archive, or does something else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(data: bytes = b"", action: str | None = None) -> None:
        (tmp_path / "archive.tgz").write_bytes(data)
        copy = f"shutil.copy({str(tmp_path / 'archive.tgz')!r}, folder + '/thing-1.2.3.tgz')"
        text = NPM.format(
            python=sys.executable, log=str(tmp_path / "npm.log"), action=action or copy
        )
        (folder / "npm").write_text(text)
        (folder / "npm").chmod(0o755)

    return put


def left(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file() and path.name != ".lock")


def test_a_package_is_fetched_once(tmp_path: Path, fake_npm: Callable[..., None]) -> None:
    data = archive(GOOD)
    fake_npm(data)
    root = tmp_path / "npm"
    said: list[str] = []
    (folder,) = npm.install_packages((package_of(data),), root, report=said.append)
    assert folder == root / "@scope" / "thing" / "1.2.3"
    assert (folder / "esm" / "index.js").read_bytes() == b"export {};"
    assert npm.installed_package(root, package_of(data)) == folder
    assert "@scope/thing@1.2.3" in said[0]
    log = (tmp_path / "npm.log").read_text()
    assert "--ignore-scripts" in log
    assert str(root) in log  # it runs in a folder of its own, not in the user's project
    fake_npm(action="sys.exit(1)")
    assert npm.fetch_package(package_of(data), root) == folder
    assert not list(root.glob(".fetch-*"))


def test_another_archive_under_the_same_version_is_refused(
    tmp_path: Path, fake_npm: Callable[..., None]
) -> None:
    fake_npm(archive([*GOOD, ("package/more.js", tarfile.REGTYPE, b"1")]))
    with pytest.raises(IntegrityError) as caught:
        npm.fetch_package(package_of(archive(GOOD)), tmp_path / "npm")
    assert caught.value.code == "npm-package-changed"
    assert left(tmp_path / "npm") == []


@pytest.mark.parametrize(
    "entry",
    [
        ("package/../../evil.js", tarfile.REGTYPE, b"x"),
        ("/package/evil.js", tarfile.REGTYPE, b"x"),
        ("evil.js", tarfile.REGTYPE, b"x"),
        ("package/a\\..\\evil.js", tarfile.REGTYPE, b"x"),
        ("package/c:evil.js", tarfile.REGTYPE, b"x"),
        ("package/link", tarfile.SYMTYPE, b"/etc/passwd"),
        ("package/hard", tarfile.LNKTYPE, b"package/package.json"),
        ("package/device", tarfile.CHRTYPE, b""),
        ("package/pipe", tarfile.FIFOTYPE, b""),
        ("package/PACKAGE.json", tarfile.REGTYPE, b"{}"),
    ],
)
def test_a_hostile_archive_is_refused_though_it_is_the_locked_one(
    tmp_path: Path, fake_npm: Callable[..., None], entry: Entry
) -> None:
    data = archive([*GOOD, entry])
    fake_npm(data)
    with pytest.raises(IntegrityError) as caught:
        npm.fetch_package(package_of(data), tmp_path / "npm")
    assert caught.value.code == "npm-archive-hostile"
    assert left(tmp_path / "npm") == []
    assert not list(tmp_path.rglob("evil.js"))


@pytest.mark.parametrize(
    "data",
    [b"", b"not gzip", archive([]), archive(GOOD)[:60]],
    ids=["empty", "not-gzip", "no-entry", "cut"],
)
def test_what_is_no_archive_is_refused(
    tmp_path: Path, fake_npm: Callable[..., None], data: bytes
) -> None:
    fake_npm(data)
    with pytest.raises(IntegrityError):
        npm.fetch_package(package_of(data), tmp_path / "npm")
    assert left(tmp_path / "npm") == []


def test_too_much_is_refused(
    tmp_path: Path, fake_npm: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = archive([*GOOD, ("package/big", tarfile.REGTYPE, bytes(5000))])
    fake_npm(data)
    monkeypatch.setattr(npm, "_UNPACKED_BYTES_MAX", 4000)
    with pytest.raises(IntegrityError, match="one file too many"):
        npm.fetch_package(package_of(data), tmp_path / "npm")
    monkeypatch.setattr(npm, "_ARCHIVE_BYTES_MAX", 10)
    with pytest.raises(IntegrityError, match="not the locked archive"):
        npm.fetch_package(package_of(data), tmp_path / "npm")


def test_without_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError) as caught:
        npm.fetch_package(packages.WLLAMA, tmp_path / "npm")
    assert caught.value.code == "npm-missing"
    assert "nodejs" in str(caught.value.hint).lower() or "Node.js" in str(caught.value.hint)


def test_npms_own_words_are_kept(tmp_path: Path, fake_npm: Callable[..., None]) -> None:
    fake_npm(action="print('npm error code ENOTFOUND', file=sys.stderr); sys.exit(1)")
    with pytest.raises(RemoteError) as caught:
        npm.fetch_package(packages.WLLAMA, tmp_path / "npm")
    assert caught.value.context["npm"] == ["npm error code ENOTFOUND"]


def test_a_half_made_package_is_made_again(tmp_path: Path, fake_npm: Callable[..., None]) -> None:
    data = archive(GOOD)
    fake_npm(data)
    folder = npm.package_folder(tmp_path / "npm", package_of(data))
    folder.mkdir(parents=True)
    (folder / "old.js").touch()
    assert npm.installed_package(tmp_path / "npm", package_of(data)) is None
    npm.fetch_package(package_of(data), tmp_path / "npm")
    assert not (folder / "old.js").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path, fake_npm: Callable[..., None]) -> None:
    fake_npm(archive(GOOD))
    (tmp_path / "npm").touch()
    with pytest.raises(ResourceError):
        npm.fetch_package(package_of(archive(GOOD)), tmp_path / "npm")


@pytest.mark.parametrize("name", ["../x", "@a/../b", "/x", "A b", "@a/b/c", ""])
def test_odd_names_lead_nowhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(IntegrityError):
        npm.package_folder(tmp_path, NpmPackage(name=name, version="1.0.0", integrity="sha512-x"))


@pytest.mark.parametrize("package", [packages.WLLAMA, packages.WEB_LLM])
def test_the_locked_packages_name_a_whole_digest(package: NpmPackage) -> None:
    algorithm, _, digest = package.integrity.partition("-")
    assert algorithm == "sha512"
    assert len(base64.b64decode(digest)) == 64
