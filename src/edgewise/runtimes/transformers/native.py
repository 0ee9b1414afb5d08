"""The libraries: loading torch and transformers, and naming their versions and operators."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgewise.errors import AdapterError, UnsupportedError
from edgewise.store.digest import file_digest

__all__ = ["installed_version", "library_digest", "load"]

_HINT = "install the runtime: edgewise runtime install transformers"
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
    found = {file_digest(path) for path in folder.iterdir() if _is_library(path)}
    # The operators' order is python code of transformers, which its version stands for.
    lines = [*sorted(found), f"transformers {version('transformers')}"]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _is_library(path: Path) -> bool:
    return path.is_file() and any(suffix in _LIBRARY_SUFFIXES for suffix in path.suffixes)
