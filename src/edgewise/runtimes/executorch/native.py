"""ExecuTorch's runtime half: its extension module and the operator libraries beside it.

The documented way in imports the exporter's packages, which costs half a minute cold and 150 MB.
The extension module itself needs only torch, and the two operator libraries register themselves
when they are loaded. They must be loaded before a program is, or its operators are missing.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from edgewise.errors import AdapterError, UnsupportedError
from edgewise.store.digest import file_digest

__all__ = ["INSTALL_HINT", "installed_version", "library_digest", "load", "quiet", "tools"]

INSTALL_HINT: Final = "install the runtime: edgewise runtime install executorch"
_MODULE: Final = "executorch.extension.pybindings._C"
_OPERATORS: Final = (
    "extension/llm/custom_ops/libcustom_ops_aot_lib",
    "kernels/quantized/libquantized_ops_aot_lib",
)
_SUFFIXES: Final = (".so", ".dylib", ".dll")
_TOOLS: Final = ("executorch", "torch", "torchao", "safetensors")


def installed_version() -> str | None:
    """Return the version of ExecuTorch, or ``None`` when it is not installed."""
    try:
        return version("executorch")
    except PackageNotFoundError:
        return None


def tools(*more: str) -> dict[str, str]:
    """Return ``library -> version`` of what takes part in an export."""
    return {name: version(name) for name in (*_TOOLS, *more)}


def quiet() -> None:
    """Keep the libraries from reaching the network, whatever their defaults."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Empty, not absent: absent, lowering for Qualcomm fetches that vendor's kit by itself.
    os.environ["QNN_SDK_ROOT"] = ""


@functools.cache
def load() -> Any:
    """Return the extension module, with the operator libraries loaded.

    Raises:
        UnsupportedError: ExecuTorch or torch is not installed.
        AdapterError: a library does not load, e.g. built for another processor or torch.
    """
    quiet()
    folder = _folder()
    try:
        torch = importlib.import_module("torch")
        module = importlib.import_module(_MODULE)
        for stem in _OPERATORS:
            torch.ops.load_library(str(_library(folder, stem)))
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "runtime-not-installed", f"executorch lacks {error.name}", hint=INSTALL_HINT
        ) from error
    except (ImportError, OSError, RuntimeError) as error:
        raise AdapterError(
            "runtime-library-broken",
            f"ExecuTorch's native libraries do not load: {error}",
            hint="remove the environment and install it again: edgewise runtime remove executorch",
        ) from error
    return module


def library_digest() -> str:
    """Return the SHA-256 over the native libraries' contents.

    Raises:
        UnsupportedError: ExecuTorch is not installed.
    """
    folder = _folder()
    extension = folder / "extension" / "pybindings"
    files = [path for path in extension.glob("_C*") if path.suffix in {*_SUFFIXES, ".pyd"}]
    files += [_library(folder, stem) for stem in _OPERATORS]
    digests = sorted(file_digest(path) for path in files)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _library(folder: Path, stem: str) -> Path:
    for suffix in _SUFFIXES:
        path = folder / f"{stem}{suffix}"
        if path.is_file():
            return path
    raise UnsupportedError(
        "runtime-incomplete",
        f"this build of executorch has no {Path(stem).name}",
        hint=INSTALL_HINT,
    )


def _folder() -> Path:
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedError(
            "runtime-not-installed", "executorch is not installed", hint=INSTALL_HINT
        )
    return Path(next(iter(spec.submodule_search_locations)))
