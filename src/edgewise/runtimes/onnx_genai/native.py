"""The native libraries: loading ONNX Runtime and its generator, and what they truly offer.

``onnxruntime_genai.is_*_available()`` answers yes for providers that are not there, so nothing
here asks it. A provider counts as loaded when a session has placed an operator on it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from edgewise.errors import AdapterError, UnsupportedError
from edgewise.store.digest import file_digest

__all__ = [
    "CPU",
    "EXPORT_MODULES",
    "installed_version",
    "library_digest",
    "load",
    "load_runtime",
    "loaded_providers",
    "missing_modules",
    "record_assignment",
    "use_flash_attention",
]

CPU = "CPUExecutionProvider"
EXPORT_MODULES = ("torch", "transformers", "onnx", "onnx_ir")

_GENAI, _RUNTIME = "onnxruntime_genai", "onnxruntime"
_NATIVE_SUFFIXES = (".so", ".dll", ".dylib", ".pyd")
_RECORD = "session.record_ep_graph_assignment_info"
_FLASH_VARIABLE = "ORT_GQA_DISABLE_FLASH_ATTENTION"
_LOG_ERRORS_ONLY = 3

# An ONNX model of one operator, y = x + x: enough to see which provider takes an operator.
_PROBE_MODEL = bytes.fromhex(
    "080a3a350a0e0a01780a017812017922034164641201705a0f0a0178120a0a08080112040a02080162"
    "0f0a0179120a0a08080112040a02080142040a001016"
)

_INSTALL_HINT = "install the runtime: edgewise runtime install onnx-genai"


def installed_version() -> str | None:
    """Return the versions of generator and runtime, or ``None`` when one is not installed."""
    try:
        return f"{version('onnxruntime-genai')}+onnxruntime-{version('onnxruntime')}"
    except PackageNotFoundError:
        return None


def missing_modules(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the named modules that are not installed; nothing is imported."""
    return tuple(name for name in names if importlib.util.find_spec(name) is None)


@functools.cache
def load() -> Any:
    """Return ``onnxruntime_genai`` with its native library loaded, telemetry switched off.

    Raises:
        UnsupportedError: it is not installed.
        AdapterError: its library does not load, e.g. built for another processor.
    """
    load_runtime()  # first: the generator links against this library
    module = _import(_GENAI)
    module.disable_telemetry_events()
    return module


@functools.cache
def load_runtime() -> Any:
    """Return ``onnxruntime`` with its native library loaded, telemetry switched off.

    Raises:
        UnsupportedError: it is not installed.
        AdapterError: its library does not load.
    """
    module: Any = _import(_RUNTIME)
    module.disable_telemetry_events()
    module.set_default_logger_severity(_LOG_ERRORS_ONLY)
    return module


def _import(name: str) -> ModuleType:
    if importlib.util.find_spec(name) is None:
        raise UnsupportedError(
            "runtime-not-installed", f"{name} is not installed", hint=_INSTALL_HINT
        )
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise AdapterError(
            "runtime-library-broken",
            f"the native library of {name} does not load: {error}",
            hint="install the runtime again on this machine: edgewise runtime install onnx-genai",
        ) from error


def library_digest() -> str:
    """Return the SHA-256 over the contents of the native libraries, sorted.

    Raises:
        UnsupportedError: one of the two packages is not installed, or without its libraries.
    """
    found = [path for name in (_RUNTIME, _GENAI) for path in _libraries(name)]
    by_content = {file_digest(path) for path in found}
    return hashlib.sha256("\n".join(sorted(by_content)).encode()).hexdigest()


def _libraries(name: str) -> list[Path]:
    spec = importlib.util.find_spec(name)
    folders = () if spec is None else tuple(spec.submodule_search_locations or ())
    found = [
        path
        for folder in folders
        for path in Path(folder).rglob("*")
        if path.is_file() and any(suffix in path.name for suffix in _NATIVE_SUFFIXES)
    ]
    if not found:
        raise UnsupportedError(
            "runtime-not-installed",
            f"{name} is not installed, or without its native library",
            hint=_INSTALL_HINT,
        )
    return found


def record_assignment(options: Any) -> None:
    """Ask a session to remember which provider took which operator."""
    options.add_session_config_entry(_RECORD, "1")


@functools.cache
def loaded_providers() -> tuple[str, ...]:
    """Return the execution providers that take an operator when asked first.

    Raises:
        UnsupportedError: ONNX Runtime is not installed.
        AdapterError: its library does not load, or runs not even on the CPU.
    """
    runtime = load_runtime()
    found = [
        provider
        for provider in runtime.get_available_providers()
        if provider in _takers(runtime, provider)
    ]
    if CPU not in found:
        raise AdapterError("runtime-library-broken", f"ONNX Runtime does not run on the {CPU}")
    return tuple(found)


def _takers(runtime: Any, provider: str) -> set[str]:
    options = runtime.SessionOptions()
    record_assignment(options)
    order = [provider] if provider == CPU else [provider, CPU]
    try:
        session = runtime.InferenceSession(_PROBE_MODEL, options, providers=order)
    except Exception:  # noqa: BLE001 - whatever a provider raises, it did not load
        return set()
    return {part.ep_name for part in session.get_provider_graph_assignment_info()}


def use_flash_attention(wanted: bool) -> None:
    """Choose the attention kernel of the models that this process loads from now on.

    ONNX Runtime reads the variable when it makes the kernel.
    """
    os.environ[_FLASH_VARIABLE] = "0" if wanted else "1"
