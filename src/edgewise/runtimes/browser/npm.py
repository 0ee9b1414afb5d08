"""Packages of the npm registry: fetched with the user's own npm, verified, and unpacked with care.

Invariants: nothing of a package is run; the archive's SHA-512 is compared with the locked one
before anything is unpacked; only regular files below ``package/`` come out of it, within bounds;
a package folder is complete or absent.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import filelock

from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    IntegrityError,
    RemoteError,
    ResourceError,
    UnsupportedError,
)
from edgewise.runtimes.environment import NpmPackage

__all__ = [
    "fetch_package",
    "install_packages",
    "installed_package",
    "npm_program",
    "package_folder",
]

_STAMP = "edgewise-package.json"
_TIMEOUT_S = 600.0
_LOCK_TIMEOUT_S = 900.0
_ARCHIVE_BYTES_MAX = 128 << 20
_UNPACKED_BYTES_MAX = 512 << 20
_MEMBERS_MAX = 20_000
_STEP_BYTES = 1 << 20
_NAME = re.compile(r"(?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*")
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,64}")


def npm_program() -> str | None:
    """Return the npm on the search path, or ``None``."""
    return shutil.which("npm")


def package_folder(root: Path, package: NpmPackage) -> Path:
    """Return where a package lies below ``root``, or would: ``root/NAME/VERSION``."""
    if not _NAME.fullmatch(package.name) or not _VERSION.fullmatch(package.version):
        raise IntegrityError(
            "npm-package-malformed", f"{package.name}@{package.version} is no npm package name"
        )
    return root.joinpath(*package.name.split("/"), package.version)


def installed_package(root: Path, package: NpmPackage) -> Path | None:
    """Return a package's folder when it was unpacked there from the locked archive."""
    folder = package_folder(root, package)
    try:
        stamp = json.loads((folder / _STAMP).read_bytes())
    except (OSError, ValueError):
        return None
    found = isinstance(stamp, dict) and stamp.get("integrity") == package.integrity
    return folder if found else None


def install_packages(
    packages: Sequence[NpmPackage],
    root: Path,
    *,
    report: Callable[[str], None] = lambda _message: None,
) -> tuple[Path, ...]:
    """Return the folders of several packages; see :func:`fetch_package`.

    Args:
        packages: What is wanted.
        root: Folder that packages are kept in; made when absent.
        report: Called with what is going on, in words.
    """
    folders = []
    for package in packages:
        report(f"fetching {package.name}@{package.version} with npm")
        folders.append(fetch_package(package, root))
    return tuple(folders)


def fetch_package(package: NpmPackage, root: Path) -> Path:
    """Return the folder of a package, fetching it first when it is not there.

    Args:
        package: Name, version and integrity string.
        root: Folder that packages are kept in; made when absent.

    Raises:
        UnsupportedError: npm is not on the search path.
        RemoteError: npm cannot get the package from the user's registry.
        IntegrityError: the archive is not the locked one, or holds what a package may not.
        ResourceError: the disk is full, or another process holds the folder for too long.
        AdapterError: npm printed no archive.
    """
    folder = package_folder(root, package)
    with _held(root):
        known = installed_package(root, package)
        if known is not None:
            return known
        try:
            with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as scratch:
                archive = _pack(package, Path(scratch))
                _verify(archive, package)
                unpacked = Path(scratch) / "unpacked"
                unpacked.mkdir()
                _unpack(archive, unpacked)
                stamp = {"name": package.name, "version": package.version}
                stamp["integrity"] = package.integrity
                (unpacked / _STAMP).write_text(json.dumps(stamp), encoding="utf-8")
                folder.parent.mkdir(parents=True, exist_ok=True)
                if folder.exists():
                    shutil.rmtree(folder)
                unpacked.rename(folder)
        except OSError as error:
            raise ResourceError(
                "npm-package-unwritable",
                f"{package.name} cannot be put into {root}: {error.strerror or error}",
                hint="check free space and permissions there",
            ) from error
    return folder


@contextlib.contextmanager
def _held(root: Path) -> Iterator[None]:
    try:
        root.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(root / ".lock", timeout=_LOCK_TIMEOUT_S):
            yield
    except filelock.Timeout as error:
        raise ResourceError(
            "npm-folder-busy", f"another process keeps {root} locked", retryable=True
        ) from error
    except EdgewiseError:
        raise
    except OSError as error:
        raise ResourceError(
            "npm-package-unwritable", f"{root} cannot be written: {error.strerror or error}"
        ) from error


def _pack(package: NpmPackage, scratch: Path) -> Path:
    npm = npm_program()
    if npm is None:
        raise UnsupportedError(
            "npm-missing",
            f"npm is needed to fetch {package.name} and is not on the search path",
            hint="install Node.js with npm (Debian: apt-get install npm; macOS: brew install node)",
        )
    command = [npm, "pack", f"{package.name}@{package.version}", "--ignore-scripts"]
    command += ["--json", "--loglevel=error", f"--pack-destination={scratch}"]
    try:
        done = subprocess.run(  # in a folder of its own: a project's settings there do not count
            command,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RemoteError(
            "npm-fetch-failed", f"npm did not finish within {_TIMEOUT_S:.0f} s", retryable=True
        ) from error
    except OSError as error:
        raise UnsupportedError("npm-missing", f"{npm} cannot be started: {error}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise RemoteError(
            "npm-fetch-failed",
            f"npm cannot fetch {package.name}@{package.version}",
            context={"npm": said[-10:]},
            hint="npm's own words are in the context; check `npm config get registry`",
        )
    archives = list(scratch.glob("*.tgz"))
    if len(archives) != 1:
        raise AdapterError(
            "npm-archive-missing", f"npm left {len(archives)} archives where one was asked for"
        )
    return archives[0]


def _verify(archive: Path, package: NpmPackage) -> None:
    algorithm, _, wanted = package.integrity.partition("-")
    if algorithm != "sha512" or not wanted:
        raise IntegrityError(
            "npm-integrity-malformed", f"{package.integrity!r} is no sha512 integrity string"
        )
    size = archive.lstat().st_size
    digest = hashlib.sha512()
    with archive.open("rb") as file:
        while size <= _ARCHIVE_BYTES_MAX and (block := file.read(_STEP_BYTES)):
            digest.update(block)
    found = base64.b64encode(digest.digest()).decode()
    if found != wanted or size > _ARCHIVE_BYTES_MAX:
        raise IntegrityError(
            "npm-package-changed",
            f"{package.name}@{package.version} from the registry is not the locked archive",
            context={"wanted": wanted, "found": found, "size_bytes": size},
            hint="the registry serves something else under this version: do not use it",
        )


def _unpack(archive: Path, destination: Path) -> None:
    written = 0
    seen: set[str] = set()
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for count, member in enumerate(tar):
                if member.isdir():
                    continue
                name = _member_name(member)
                written += member.size
                if name.lower() in seen or count > _MEMBERS_MAX or written > _UNPACKED_BYTES_MAX:
                    raise _hostile(f"{member.name!r} is one file too many, or there already")
                seen.add(name.lower())
                source = tar.extractfile(member)
                if source is None:
                    raise _hostile(f"{member.name!r} has no content")
                target = destination.joinpath(*PurePosixPath(name).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, target.open("xb") as file:
                    shutil.copyfileobj(source, file, _STEP_BYTES)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise _hostile(f"it is no sound archive: {error}") from error
    if not seen:
        raise _hostile("it holds no file")


def _member_name(member: tarfile.TarInfo) -> str:
    """Return the path below the archive's one folder, or refuse the member."""
    parts = PurePosixPath(member.name).parts
    unsafe = any(part in {"..", "/"} or "\\" in part or ":" in part for part in parts)
    if not member.isreg() or unsafe or len(parts) < 2 or "\0" in member.name:
        raise _hostile(f"{member.name!r} is no plain file below the package's folder")
    return "/".join(parts[1:])


def _hostile(why: str) -> IntegrityError:
    return IntegrityError("npm-archive-hostile", f"the npm archive is refused: {why}")
