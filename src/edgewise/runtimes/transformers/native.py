"""The libraries: loading torch and transformers, and naming their versions and operators."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgewise.core.recipe import RunConfig
from edgewise.errors import AdapterError, UnsupportedError

__all__ = ["huge_page_variables", "installed_version", "library_digest", "load"]

_HINT = "install the runtime: edgewise runtime install transformers"
_CHUNK_BYTES = 1 << 20
_LIBRARY_SUFFIXES = (".so", ".dylib", ".dll", ".pyd")


def installed_version() -> str | None:
    """Return the versions of transformers and torch, ``None`` when one is not installed."""
    try:
        return f"{version('transformers')}+torch-{version('torch')}"
    except PackageNotFoundError:
        return None


@functools.cache
def load() -> tuple[Any, Any]:
    """Return the modules ``torch`` and ``transformers``.

    Raises:
        UnsupportedError: one is not installed.
        AdapterError: one does not load.
    """
    modules = []
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise UnsupportedError("runtime-not-installed", f"{name} is not installed", hint=_HINT)
        try:
            modules.append(importlib.import_module(name))
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            raise AdapterError(
                "runtime-library-broken",
                f"{name} does not load: {error}",
                hint="install the runtime again on this machine",
            ) from error
    torch, transformers = modules
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return torch, transformers


def library_digest() -> str:
    """Return the SHA-256 over torch's native libraries and the version of transformers.

    Raises:
        UnsupportedError: the runtime is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations or installed_version() is None:
        raise UnsupportedError("runtime-not-installed", "torch is not installed", hint=_HINT)
    folder = Path(next(iter(spec.submodule_search_locations))) / "lib"
    found = {_sha256(path) for path in folder.iterdir() if _is_library(path)}
    # The operators' order is python code of transformers, which its version stands for.
    lines = [*sorted(found), f"transformers {version('transformers')}"]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def huge_page_variables(run_config: RunConfig) -> dict[str, str]:
    """Return what asks glibc's allocator for huge pages, if the configuration does."""
    if not run_config.huge_pages:
        return {}
    mine = "glibc.malloc.hugetlb=1"
    theirs = os.environ.get("GLIBC_TUNABLES")
    return {"GLIBC_TUNABLES": f"{theirs}:{mine}" if theirs else mine}


def _is_library(path: Path) -> bool:
    return path.is_file() and any(suffix in _LIBRARY_SUFFIXES for suffix in path.suffixes)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
