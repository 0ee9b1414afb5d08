"""The installed libraries: versions, digest of the native parts, and loading them.

Importing this module loads nothing; it reads metadata and files only when asked.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgewise.errors import AdapterError, UnsupportedError
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.store.digest import file_digest

__all__ = [
    "ENVIRONMENT",
    "RUNTIME_PACKAGE",
    "TEXT_PACKAGE",
    "installed_version",
    "library_digest",
    "load",
    "missing_for_export",
    "require_export",
    "tools",
]

RUNTIME_PACKAGE = "ai-edge-litert"
TEXT_PACKAGE = "litert-lm-api"

_EXPORT_PACKAGES: tuple[str, ...] = ("litert-torch", "ai-edge-quantizer", "torch", "transformers")
_BUNDLE_PACKAGES: tuple[str, ...] = ("litert-lm-builder",)
_MODULES = {RUNTIME_PACKAGE: "ai_edge_litert", TEXT_PACKAGE: "litert_lm"}

ENVIRONMENT = EnvironmentSpec(
    name="litert",
    package="litert",
    run=("ai-edge-litert==2.3.0", "litert-lm-api==0.18.1"),
    export=(
        "torch==2.13.0",
        "litert-torch==0.10.0",
        "litert-lm-builder==0.18.1",
        "ai-edge-quantizer==0.10.0",
        "transformers==5.24.0",
        "safetensors==0.8.0",
    ),
    run_bytes=314_000_000,
    export_bytes=1_656_000_000,
    note="the runtimes litert and litert-lm share it",
)


def installed_version(package: str) -> str | None:
    """Return the version of a package, or ``None`` when it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def library_digest(package: str) -> str:
    """Return the SHA-256 over a package's native libraries, by content.

    Raises:
        UnsupportedError: the package is not installed, or without its libraries.
    """
    folder = _folder(package)
    found = sorted(
        file_digest(path)
        for pattern in ("*.so", "*.dylib", "*.dll", "*.pyd")
        for path in folder.glob(pattern)
    )
    if not found:
        raise UnsupportedError(
            "runtime-incomplete",
            f"{package} holds no native library",
            hint=_INSTALL_HINT,
        )
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def load(package: str, *modules: str) -> list[Any]:
    """Return modules of a package, its native library loaded.

    Args:
        package: ``ai-edge-litert`` or ``litert-lm-api``.
        modules: Names below the package's top module; none for the top module itself.

    Raises:
        UnsupportedError: the package is not installed.
        AdapterError: its library does not load.
    """
    _folder(package)
    top = _MODULES[package]
    names = [f"{top}.{module}" for module in modules] or [top]
    try:
        return [importlib.import_module(name) for name in names]
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise AdapterError(
            "runtime-library-broken",
            f"{package} does not load: {error}",
            hint="install the runtime again: edgewise runtime install litert --reinstall",
        ) from error


def require_export(*, bundle: bool) -> None:
    """Make sure that what an export takes is installed.

    Raises:
        UnsupportedError: a package is missing; names it.
    """
    missing = missing_for_export(bundle=bundle)
    if missing:
        raise UnsupportedError(
            "exporter-not-installed",
            f"exporting for LiteRT takes packages that are not installed: {', '.join(missing)}",
            context={"missing": list(missing)},
            hint="install the runtime with its exporter: edgewise runtime install litert --export",
        )


def missing_for_export(*, bundle: bool) -> tuple[str, ...]:
    """Return the packages an export would take and that are not installed."""
    wanted = _EXPORT_PACKAGES + (_BUNDLE_PACKAGES if bundle else ())
    return tuple(package for package in wanted if installed_version(package) is None)


def tools(*, bundle: bool) -> dict[str, str]:
    """Return the versions of everything an export uses."""
    beside = _BUNDLE_PACKAGES if bundle else ()
    wanted = (RUNTIME_PACKAGE, "litert-converter", *_EXPORT_PACKAGES, *beside)
    return {package: installed_version(package) or "not-installed" for package in wanted}


_INSTALL_HINT = "install the runtime: edgewise runtime install litert"


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(_MODULES[package])
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedError(
            "runtime-not-installed", f"{package} is not installed", hint=_INSTALL_HINT
        )
    return Path(next(iter(spec.submodule_search_locations)))
