"""OpenVINO's libraries: loading them, their versions, and what they truly offer here.

This package bears the library's name; ``import openvino`` below is absolute and means the library.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgewise.errors import AdapterError, UnsupportedError
from edgewise.store.digest import file_digest

__all__ = [
    "DEVICE",
    "EXPORT_MODULES",
    "installed_version",
    "library_digest",
    "load",
    "load_genai",
    "loaded_devices",
    "missing_modules",
    "need",
    "offered_precisions",
    "quiet_export_imports",
    "tool_versions",
]

DEVICE = "CPU"
EXPORT_MODULES = ("torch", "transformers", "optimum.intel", "nncf")

_INSTALL_HINT = "install the runtime: edgewise runtime install openvino"
_TOOLS = (
    "openvino",
    "openvino-genai",
    "openvino-tokenizers",
    "optimum",
    "optimum-intel",
    "nncf",
    "torch",
    "transformers",
)
# The libraries whose code decides what comes out; other devices' and formats' plugins do not.
_OPERATORS = (
    "libopenvino.",
    "openvino.dll",
    "libopenvino_intel_cpu_plugin",
    "openvino_intel_cpu_plugin",
    "libopenvino_arm_cpu_plugin",
    "openvino_arm_cpu_plugin",
    "libopenvino_gguf_frontend",
    "openvino_gguf_frontend",
    "libopenvino_ir_frontend",
    "openvino_ir_frontend",
    "libopenvino_genai",
    "openvino_genai.dll",
    "libtbb",
    "tbb",
)


def installed_version() -> str | None:
    """Return the versions of OpenVINO and its GenAI library, or ``None`` without OpenVINO."""
    try:
        base = version("openvino")
    except PackageNotFoundError:
        return None
    try:
        return f"{base}+genai-{version('openvino-genai')}"
    except PackageNotFoundError:
        return base


def tool_versions() -> dict[str, str]:
    """Return ``package -> version`` of everything here that takes part in an export."""
    found = {}
    for name in _TOOLS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def missing_modules(names: tuple[str, ...] = EXPORT_MODULES) -> tuple[str, ...]:
    """Return those of the named modules that are not installed; nothing heavy is imported."""
    return tuple(name for name in names if not _findable(name))


def _findable(name: str) -> bool:
    parent = name.partition(".")[0]
    if importlib.util.find_spec(parent) is None:
        return False
    if parent == name:
        return True
    folder = Path(next(iter(importlib.util.find_spec(parent).submodule_search_locations or ())))  # type: ignore[union-attr]
    return (folder / name.partition(".")[2]).is_dir()


@functools.cache
def load() -> Any:
    """Return the module ``openvino`` with its native library loaded.

    Raises:
        UnsupportedError: it is not installed.
        AdapterError: its library does not load, e.g. built for another system.
    """
    # Absent, the libraries send no usage statistics.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return need("openvino")


@functools.cache
def load_genai() -> Any:
    """Return the module ``openvino_genai``.

    Raises:
        UnsupportedError: it is not installed.
        AdapterError: its library does not load.
    """
    load()
    return need("openvino_genai")


def need(name: str) -> Any:
    """Return a module of the runtime's environment.

    Raises:
        UnsupportedError: it is not installed.
        AdapterError: it does not load.
    """
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        raise UnsupportedError(
            "runtime-not-installed", f"{name} is not installed", hint=_INSTALL_HINT
        )
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise AdapterError(
            "runtime-library-broken",
            f"the native library of {name} does not load: {error}",
            hint="install the runtime again on this machine: edgewise runtime install openvino",
        ) from error


@functools.cache
def loaded_devices() -> dict[str, str]:
    """Return ``device -> full name`` of the plugins that loaded and found hardware.

    Raises:
        UnsupportedError: OpenVINO is not installed.
        AdapterError: no plugin loads.
    """
    try:
        core = load().Core()
        return {
            device: str(core.get_property(device, "FULL_DEVICE_NAME"))
            for device in core.available_devices
        }
    except RuntimeError as error:
        raise AdapterError(
            "runtime-library-broken", f"OpenVINO loads no device plugin: {error}"
        ) from error


def offered_precisions() -> tuple[str, ...]:
    """Return the inference precisions that the CPU plugin has kernels for on this processor.

    The plugin takes ``f16`` as a hint also where it has none, says so when asked, and computes in
    bf16; its list of capabilities is the truthful one.
    """
    offered = load().Core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")
    names = {"FP32": "f32", "BF16": "bf16", "FP16": "f16"}
    return tuple(ours for theirs, ours in names.items() if theirs in offered)


def quiet_export_imports() -> None:
    """Keep out what exporting text models neither needs nor survives, and the network.

    torchvision's wheel of the package index is built for another torch than the CPU wheel and
    fails when it is imported; seen as absent, nothing imports it.
    """
    sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def library_digest() -> str:
    """Return the SHA-256 over the contents of the libraries that hold the operators.

    Raises:
        UnsupportedError: OpenVINO is not installed, or without its libraries.
    """
    found = []
    for name, below in (("openvino", "libs"), ("openvino_genai", "")):
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            continue
        folder = Path(next(iter(spec.submodule_search_locations))) / below
        found += [path for path in folder.glob("*") if path.name.startswith(_OPERATORS)]
    by_content = sorted({file_digest(path) for path in found if path.is_file()})
    if not by_content:
        raise UnsupportedError(
            "runtime-not-installed", "OpenVINO's libraries are not here", hint=_INSTALL_HINT
        )
    return hashlib.sha256("\n".join(by_content).encode()).hexdigest()
