"""The runtimes of this machine: what is there, what is missing, installing, checking."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgewise.errors import AdapterError, InputError
from edgewise.run.service import capabilities_in_worker
from edgewise.runtimes import installer, registry
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.launch import Installed, environment_folder, installed
from edgewise.runtimes.reports import Capabilities
from edgewise.workflow.context import Context, Step

__all__ = ["RuntimeStatus", "install_runtimes", "list_runtimes", "remove_runtime"]


class RuntimeStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One runtime on this machine.

    Attributes:
        name: Name under which it is registered.
        state: ``beside`` (installed where Edgewise is), ``not installed``, ``run only``,
            ``installed``, or ``broken``.
        environment: Folder of its environment, whether or not it exists; ``None`` for one that
            has none of its own.
        size_bytes: Size of its environment's files, measured when it was installed; what it has
            in common with other environments is counted in each.
        takes_bytes: Disk that installing takes, as measured elsewhere before.
        capabilities: What it can do here.
        note: What a person should know before installing it.
    """

    name: str
    state: str
    environment: str | None
    size_bytes: int | None
    takes_bytes: int | None
    capabilities: Capabilities
    note: str = ""


def list_runtimes(
    context: Context, names: Sequence[str] | None = None
) -> tuple[RuntimeStatus, ...]:
    """Return the state of runtimes; each that is installed is loaded once to be sure.

    Raises:
        UnsupportedError: a name is not registered.
    """
    found = []
    for name in names or registry.names():
        context.report(Step(stage="runtime", status="progress", message=f"trying {name}"))
        found.append(_status(name))
    return tuple(found)


def install_runtimes(
    context: Context, names: Sequence[str], *, export: bool = True
) -> tuple[RuntimeStatus, ...]:
    """Install the environments of runtimes, one after the other, and return their state.

    Raises:
        UnsupportedError: a name is not registered, or a library has no build for this platform.
        RemoteError: the package registry failed.
        ResourceError: the disk is too full.
    """
    done: set[str] = set()
    for name in names:
        spec = registry.adapter(name).environment
        if spec is None:
            message = f"{name} is installed beside Edgewise: pip install 'edgewise[{name}]'"
            context.report(Step(stage="install", status="note", message=message))
        elif spec.name not in done:
            _install(context, name, spec, export=export)
            done.add(spec.name)
    return list_runtimes(context, names)


def remove_runtime(context: Context, name: str) -> bool:
    """Remove a runtime's environment; return whether there was one.

    Raises:
        UnsupportedError: the name is not registered.
        InputError: the runtime has no environment of its own.
        ResourceError: it cannot be removed.
    """
    spec = registry.adapter(name).environment
    if spec is None:
        raise InputError(
            "runtime-has-no-environment",
            f"{name} has no environment of its own",
            hint="it is part of the environment that Edgewise runs in; use pip there",
        )
    return installer.remove(spec, home=context.home)


def _install(context: Context, name: str, spec: EnvironmentSpec, *, export: bool) -> None:
    size = spec.run_bytes + (spec.export_bytes if export else 0)
    message = f"{name}: about {size >> 20} MiB in {environment_folder(spec)}"
    context.report(Step(stage="install", status="start", message=message))
    if spec.note:
        context.report(Step(stage="install", status="note", message=spec.note))

    def report(what: str) -> None:
        status = "note" if what.startswith("installing what") else "progress"
        context.report(Step(stage="install", status=status, message=what))

    stamp = installer.install(spec, export=export, report=report, home=context.home)
    message = f"{name}: {len(stamp.versions)} packages, {stamp.size_bytes >> 20} MiB"
    context.report(Step(stage="install", status="done", message=message))


def _status(name: str) -> RuntimeStatus:
    try:
        spec = registry.adapter(name).environment
    except AdapterError as error:
        capabilities = Capabilities(
            runtime=name, version=None, can_export=False, can_run=False, reason=error.message
        )
        return RuntimeStatus(
            name=name,
            state="broken",
            environment=None,
            size_bytes=None,
            takes_bytes=None,
            capabilities=capabilities,
        )
    capabilities = capabilities_in_worker(name)
    stamp = None if spec is None else installed(spec)
    return RuntimeStatus(
        name=name,
        state=_state(spec, stamp, capabilities),
        environment=None if spec is None else str(environment_folder(spec)),
        size_bytes=None if stamp is None else stamp.size_bytes,
        takes_bytes=None if spec is None else spec.run_bytes + spec.export_bytes,
        capabilities=capabilities,
        note="" if spec is None else spec.note,
    )


def _state(
    spec: EnvironmentSpec | None, stamp: Installed | None, capabilities: Capabilities
) -> str:
    if capabilities.broken:
        return "broken"
    if stamp is None:
        there = capabilities.version is not None
        return "beside" if there else "not installed"
    if spec is not None and spec.export and "export" not in stamp.parts:
        return "run only"
    return "installed"
