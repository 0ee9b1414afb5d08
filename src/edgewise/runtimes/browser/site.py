"""One site per loaded model: the page, the runtime's page script, its npm files, and the model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgewise.errors import UnsupportedError
from edgewise.runtimes.browser.npm import installed_package
from edgewise.runtimes.browser.server import CONTENT_POLICY, LoopbackServer, Mount, serve
from edgewise.runtimes.environment import EnvironmentSpec, NpmPackage
from edgewise.runtimes.launch import environment_folder

__all__ = ["MODEL_PREFIX", "Site", "find_package", "open_site"]

MODEL_PREFIX = "/model/"
_PAGE = Path(__file__).with_name("page")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a runtime's site consists of.

    Attributes:
        runtime: Name of the runtime.
        page: Its page folder, with ``runtime.js``.
        package: Its npm package, found by :func:`find_package`, appears at ``/npm/NAME/``.
        package_folder: Where that package lies.
        package_names: The files of it that the page needs.
        content_policy: The ``Content-Security-Policy`` header.
    """

    runtime: str
    page: Path
    package: NpmPackage
    package_folder: Path
    package_names: tuple[str, ...]
    content_policy: str = CONTENT_POLICY


def find_package(package: NpmPackage, spec: EnvironmentSpec) -> Path:
    """Return where a package of an environment lies: below this interpreter, or the environment.

    Raises:
        UnsupportedError: it is in neither.
    """
    for root in (Path(sys.prefix) / "npm", environment_folder(spec) / "npm"):
        found = installed_package(root, package)
        if found is not None:
            return found
    raise UnsupportedError(
        "npm-package-missing",
        f"the npm package {package.name}@{package.version} is not installed here",
        hint=f"install the runtime: edgewise runtime install {spec.name}",
    )


def open_site(
    site: Site,
    model: Path,
    *,
    load: Mapping[str, object] | None,
    documents: Mapping[str, object] | None = None,
    port: int = 0,
) -> LoopbackServer:
    """Return a running server for a model.

    Args:
        site: The runtime's site.
        model: A file, or a folder of files; they appear below ``/model/``.
        load: What the page loads by itself, for a person; ``None`` when a program drives it.
        documents: Further content by path.
        port: A port, or 0 for one that the system chooses.

    Raises:
        InputError: a file is missing.
        ResourceError: the port is taken.
    """
    session = {
        "runtime": f"{site.runtime} {site.package.version}",
        "model": {"name": model.name},
        "load": None if load is None else dict(load),
    }
    mounts = (
        Mount(prefix="/", source=_PAGE),
        Mount(prefix="/", source=site.page),
        Mount(
            prefix=f"/npm/{site.package.name}/",
            source=site.package_folder,
            names=site.package_names,
        ),
        Mount(prefix=MODEL_PREFIX, source=model),
    )
    return serve(
        mounts,
        documents={"/session.json": session, **(documents or {})},
        content_policy=site.content_policy,
        port=port,
    )
