"""Where a runtime's worker runs: in its own environment when there is one, else beside Edgewise."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgewise.core.recipe import LoadMode, RunConfig
from edgewise.runtimes import registry
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.worker import IDLE_TIMEOUT_S, WorkerProcess
from edgewise.store.home import default_home

if TYPE_CHECKING:
    from edgewise.runtimes.protocol import RuntimeAdapter
    from edgewise.runtimes.reports import Capabilities

__all__ = [
    "RUNTIMES_VARIABLE",
    "Installed",
    "Presence",
    "default_loading",
    "environment_folder",
    "installed",
    "interpreter",
    "look_for",
    "start_worker",
]

RUNTIMES_VARIABLE = "EDGEWISE_RUNTIMES"
STAMP = "edgewise-installed.json"


class Installed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an environment's stamp says: which parts are complete, and by which lock.

    Attributes:
        parts: ``run``, and ``export`` where it was asked for.
        lock_sha256: Digest of the requirements and the lock it was installed from.
        versions: ``distribution -> version`` of everything in it.
        size_bytes: Its files' size; large ones may be links that other environments share.
    """

    parts: tuple[str, ...]
    lock_sha256: str
    versions: dict[str, str]
    size_bytes: int


def default_loading(runtime: str, *, device_has_huge_pages: bool = True) -> tuple[LoadMode, bool]:
    """Return how weights are loaded when nothing was tuned, and whether huge pages are asked for.

    Huge pages back allocated memory only, so where they can be had the weights are read into it,
    if the runtime can do that; what a runtime that maps its file repacks profits all the same.
    """
    adapter = registry.adapter(runtime)
    modes = adapter.load_modes()
    huge = device_has_huge_pages and adapter.huge_pages_possible()
    if huge and LoadMode.MALLOC in modes:
        return LoadMode.MALLOC, huge
    return next(iter(modes), LoadMode.MMAP), huge


def environment_folder(spec: EnvironmentSpec) -> Path:
    """Return where an environment lies, or would.

    Environments are software, not state: they are shared among homes when the variable
    ``EDGEWISE_RUNTIMES`` names their folder.
    """
    named = os.environ.get(RUNTIMES_VARIABLE)
    root = Path(named).absolute() if named else default_home() / "runtimes"
    return root / spec.name


def installed(spec: EnvironmentSpec) -> Installed | None:
    """Return what is installed of an environment; ``None`` when it is absent or half-made."""
    folder = environment_folder(spec)
    try:
        stamp = msgspec.json.decode((folder / STAMP).read_bytes(), type=Installed)
    except (OSError, msgspec.MsgspecError):
        return None
    return stamp if python_of(folder).exists() else None


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """What is there of a runtime's environment, as seen without starting anything."""

    absent: bool = False
    can_export: bool = True
    reason: str = ""
    missing: tuple[str, ...] = ()

    def narrow(self, found: Capabilities) -> Capabilities:
        """Return what a worker found, less what is not installed."""
        if self.can_export or not found.can_export:
            return found
        return msgspec.structs.replace(
            found, can_export=False, reason=self.reason, missing=(*found.missing, *self.missing)
        )


def look_for(adapter: RuntimeAdapter) -> Presence:
    """Return what is installed for a runtime, in its environment or beside Edgewise."""
    spec = adapter.environment
    if spec is None:
        return Presence()
    stamp = installed(spec)
    command = f"edgewise runtime install {adapter.name}"
    if stamp is None and not _beside(spec):
        return Presence(
            absent=True, can_export=False, reason=f"not installed: {command}", missing=spec.run
        )
    if spec.export and (stamp is None or "export" not in stamp.parts):
        return Presence(
            can_export=False,
            reason=f"what exporting takes is not installed: {command}",
            missing=spec.export,
        )
    return Presence()


def _beside(spec: EnvironmentSpec) -> bool:
    """Whether the libraries to run are installed where Edgewise is, e.g. through an extra."""
    for requirement in spec.run:
        try:
            version(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])
        except PackageNotFoundError:
            return False
    return bool(spec.run)


def python_of(folder: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def interpreter(adapter: RuntimeAdapter) -> str:
    """Return the interpreter that a runtime's worker runs in."""
    spec = adapter.environment
    if spec is None or installed(spec) is None:
        return sys.executable
    return str(python_of(environment_folder(spec)))


def start_worker(
    runtime: str,
    service: str,
    *,
    run_config: RunConfig | None = None,
    environment: Mapping[str, str] | None = None,
    memory_limit_bytes: int | None = None,
    idle_timeout_s: float = IDLE_TIMEOUT_S,
) -> WorkerProcess:
    """Start a worker for a runtime, in the interpreter where its libraries are.

    Args:
        runtime: Name of the runtime.
        service: ``module:attribute`` of the service.
        run_config: The configuration it will load with; decides what must stand before exec.
        environment: Further variables.
        memory_limit_bytes: Most anonymous memory the worker may allocate.
        idle_timeout_s: Silence after which a running call counts as hung.

    Raises:
        UnsupportedError: no such runtime is registered.
        ResourceError: the process cannot be started.
    """
    adapter = registry.adapter(runtime)
    variables = {} if run_config is None else adapter.worker_environment(run_config)
    return WorkerProcess(
        service,
        python=interpreter(adapter),
        environment={**variables, **(environment or {})},
        memory_limit_bytes=memory_limit_bytes,
        idle_timeout_s=idle_timeout_s,
    )
