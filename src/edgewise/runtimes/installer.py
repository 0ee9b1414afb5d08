"""Make a runtime's environment: a virtual environment, its libraries at locked versions.

The lock file beside each adapter pins every distribution that was tested; it is given to pip as
constraints, so that another platform resolves what is its own and keeps what is common. An
environment counts as installed by its stamp, which is written last: an interrupted installation
leaves none, and installing again goes on from what pip has kept.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import msgspec

from edgewise.errors import RemoteError, ResourceError, UnsupportedError
from edgewise.runtimes.environment import BASE_REQUIREMENTS, EnvironmentSpec
from edgewise.runtimes.launch import STAMP, Installed, environment_folder, installed, python_of
from edgewise.runtimes.sharing import share_files
from edgewise.store.home import Home, storage_error
from edgewise.store.trees import size_of

__all__ = ["install", "lock_text", "remove"]

Report = Callable[[str], None]

_TAIL_LINES = 30
_SPARE_BYTES = 256 << 20
_STEP = re.compile(r"^(Collecting|Downloading|Building|Installing collected)\b\s*(.{0,80})")
_NO_WHEEL = (
    "No matching distribution found",
    "no matching distributions available for your environment",
    "is not a supported wheel",
)
# Said in pip's log whatever the number of retries; on the terminal only while it retries.
_UNREACHABLE = ("connection error:", "after connection broken by")
_LOG = "pip.log"
_NO_SPACE = ("No space left on device", "Errno 28")


def install(
    spec: EnvironmentSpec,
    *,
    export: bool = True,
    report: Report = lambda _message: None,
    home: Home | None = None,
) -> Installed:
    """Install an environment, or complete it; return its stamp.

    Args:
        spec: What to install.
        export: Whether to install what exporting takes besides.
        report: Called with what is going on, in words.
        home: Whose lock is taken; the default home if none is given.

    Raises:
        UnsupportedError: a library has no build for this platform or Python.
        RemoteError: the package registry cannot be reached or refuses.
        ResourceError: the disk is too full or cannot be written.
    """
    parts = ("run", "export") if export and spec.export else ("run",)
    wanted = _lock_digest(spec)
    folder = environment_folder(spec)
    with (home or Home()).lock(f"runtime-{spec.name}", on_wait=lambda: report("waiting")):
        known = installed(spec)
        if known is not None and known.lock_sha256 == wanted:
            if set(parts) <= set(known.parts):
                report("already installed")
                return known
            parts = ("run", "export")
        _check_disk(spec, parts, folder)
        try:
            (folder / STAMP).unlink(missing_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            if not python_of(folder).exists():
                report("making the environment")
                venv.create(folder, with_pip=False, symlinks=os.name != "nt")
            lock = folder / "lock.txt"
            lock.write_text(lock_text(spec), encoding="utf-8")
        except OSError as error:
            raise storage_error(error, folder, "making an environment") from error
        for part in parts:
            requirements = spec.run if part == "run" else spec.export
            base = BASE_REQUIREMENTS if part == "run" else ()
            report(f"installing what it takes to {part}: {', '.join(requirements)}")
            _pip(folder, [*base, *requirements], lock, report)
        _install_npm(spec, folder, report)
        shared = share_files(folder, folder.parent)
        if shared:
            report(f"sharing {shared >> 20} MiB of equal files with other environments")
        return _stamp(spec, folder, parts, wanted)


def remove(spec: EnvironmentSpec, *, home: Home | None = None) -> bool:
    """Remove an environment; return whether there was one.

    Raises:
        ResourceError: it cannot be removed.
    """
    folder = environment_folder(spec)
    with (home or Home()).lock(f"runtime-{spec.name}"):
        if not folder.exists():
            return False
        try:
            (folder / STAMP).unlink(missing_ok=True)
            shutil.rmtree(folder)
        except OSError as error:
            raise storage_error(error, folder, "removing an environment") from error
    return True


def lock_text(spec: EnvironmentSpec) -> str:
    """Return the lock file of an environment."""
    package = resources.files(f"edgewise.runtimes.{spec.package}")
    return package.joinpath("lock.txt").read_text(encoding="utf-8")


def _lock_digest(spec: EnvironmentSpec) -> str:
    facts = [spec, BASE_REQUIREMENTS, lock_text(spec), sys.version_info[:2]]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


def _check_disk(spec: EnvironmentSpec, parts: Sequence[str], folder: Path) -> None:
    needed = spec.run_bytes + (spec.export_bytes if "export" in parts else 0)
    place = folder
    while not place.exists():
        place = place.parent
    present = size_of(folder) if folder.exists() else 0
    free = shutil.disk_usage(place).free
    if needed + _SPARE_BYTES > free + present:
        raise ResourceError(
            "disk-too-small",
            f"{spec.name} takes about {needed >> 20} MiB and {free >> 20} MiB are free",
            context={"needed_bytes": needed, "free_bytes": free, "path": str(place)},
            hint="free some space, or set EDGEWISE_RUNTIMES to a folder on a larger volume",
        )


def _pip(folder: Path, requirements: Sequence[str], lock: Path, report: Report) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python_of(folder)), "install"]
    command += ["--no-input", "--disable-pip-version-check", "--no-compile", "--progress-bar=off"]
    log = folder / _LOG
    command += ["--log", str(log), "--constraint", str(lock), *requirements]
    tail: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                tail = [*tail[1 - _TAIL_LINES :], line.strip()]
                found = _STEP.match(line)
                if found is not None:
                    report(f"{found[1].lower()} {found[2]}".strip())
        except BaseException:
            process.kill()
            raise
    said = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    log.unlink(missing_ok=True)
    if process.returncode:
        unreachable = any(words in said for words in _UNREACHABLE)
        raise _pip_error(folder.name, tail, unreachable=unreachable)


def _pip_error(
    name: str, tail: list[str], *, unreachable: bool = False
) -> UnsupportedError | RemoteError | ResourceError:
    text = "\n".join(tail)
    context = {"environment": name, "output": tail}
    said = next((line for line in reversed(tail) if line.startswith("ERROR")), "pip failed")
    if any(words in text for words in _NO_SPACE):
        return ResourceError(
            "disk-full",
            f"the disk is full while {name} is installed",
            context=context,
            hint="free some space, or set EDGEWISE_RUNTIMES to a folder on a larger volume",
        )
    if not unreachable and any(words in text for words in _NO_WHEEL):
        return UnsupportedError(
            "runtime-wheel-missing",
            f"{name} cannot be installed on this platform: {said}",
            context=context,
            hint="another runtime may do; `edgewise runtime list` shows them",
        )
    return RemoteError(
        "runtime-install-failed",
        f"{name} could not be installed: {said}",
        context=context,
        hint="check the package index (pip's own settings are used) and try again",
        retryable=True,
    )


def _install_npm(spec: EnvironmentSpec, folder: Path, report: Report) -> None:
    if not spec.npm:
        return
    from edgewise.runtimes.browser.npm import install_packages  # noqa: PLC0415

    install_packages(spec.npm, folder / "npm", report=report)


def _stamp(
    spec: EnvironmentSpec, folder: Path, parts: tuple[str, ...], lock_sha256: str
) -> Installed:
    places = [str(path) for path in folder.glob("**/site-packages")]
    versions = {
        found.metadata["Name"]: found.version
        for found in importlib.metadata.distributions(path=places)
    }
    stamp = Installed(
        parts=parts,
        lock_sha256=lock_sha256,
        versions={**dict(sorted(versions.items())), **{p.name: p.version for p in spec.npm}},
        size_bytes=size_of(folder),
    )
    path = folder / STAMP
    try:
        temporary = path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(stamp))
        temporary.replace(path)
    except OSError as error:
        raise storage_error(error, path, "finishing an environment") from error
    return stamp
