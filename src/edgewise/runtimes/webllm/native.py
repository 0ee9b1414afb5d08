"""What these runtimes need that is no Python: TVM's libraries, and for a page emscripten."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import shutil
from pathlib import Path
from typing import Any, Final

from edgewise.errors import AdapterError, UnsupportedError

__all__ = [
    "EMCC_HINT",
    "compiler",
    "emcc",
    "installed_version",
    "library_digest",
    "load_tvm",
    "tvm_folder",
]

EMCC_HINT: Final = (
    "install emscripten 3.1.6 or newer (Debian: apt-get install emscripten; elsewhere: the emsdk "
    "of emscripten.org), so that emcc is on the PATH"
)
_DISTRIBUTION = "apache-tvm"


def installed_version() -> str | None:
    """Return TVM's version without loading it, or ``None``."""
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


def load_tvm() -> Any:
    """Return the ``tvm`` module, its native libraries loaded.

    Raises:
        UnsupportedError: it is not installed.
        AdapterError: its libraries do not load.
    """
    if installed_version() is None:
        raise UnsupportedError(
            "runtime-not-installed",
            f"{_DISTRIBUTION} is not installed",
            hint="edgewise runtime install tvm",
        )
    try:
        import tvm  # noqa: PLC0415
        import tvm.relax  # noqa: PLC0415
    except (ImportError, OSError, RuntimeError) as error:
        raise AdapterError(
            "runtime-load-failed",
            f"TVM's libraries do not load: {error}",
            hint="edgewise runtime install tvm --reinstall",
        ) from error
    return tvm


def tvm_folder(package: str = "tvm") -> Path:
    """Return the folder of an installed package, not loading it.

    Raises:
        UnsupportedError: it is not installed.
    """
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise UnsupportedError(
            "runtime-not-installed",
            f"{package} is not installed",
            hint="edgewise runtime install tvm",
        )
    return Path(found.origin).parent


def library_digest() -> str:
    """Return the SHA-256 over TVM's native libraries.

    Raises:
        UnsupportedError: TVM is not installed.
    """
    digest = hashlib.sha256()
    for package in ("tvm", "tvm_ffi"):
        folder = tvm_folder(package)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and {".so", ".dylib", ".dll"} & set(path.suffixes):
                digest.update(path.name.encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def emcc() -> Path | None:
    """Return emscripten's compiler, or ``None``."""
    found = shutil.which("emcc")
    return None if found is None else Path(found)


def compiler() -> Path | None:
    """Return the C++ compiler that links a shared library here, or ``None``."""
    for name in ("g++", "clang++", "c++"):
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    return None
