"""The native library: loading the bindings without their high-level half, and its log.

Importing ``llama_cpp`` the ordinary way also imports its chat, cache and template code, which
costs the worker about 0.1 s and tens of MB. The low-level module needs none of it, so the
package is entered through an empty stand-in. A process that has imported the whole package
already (the benchmark's peer) keeps what it has.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import hashlib
import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgewise.errors import AdapterError, UnsupportedError
from edgewise.store.digest import file_digest

__all__ = ["NativeLog", "installed_version", "library_digest", "load", "native_log"]

_PACKAGE = "llama_cpp"
_LOG_LINES = 400
_LEVEL_DEBUG = 1
_LEVEL_WARN = 3
_LEVEL_CONTINUED = 5

_INSTALL_HINT = "install the runtime: pip install 'edgewise[llamacpp]'"


def installed_version() -> str | None:
    """Return the version of llama-cpp-python, or ``None`` when it is not installed."""
    try:
        return version("llama-cpp-python")
    except PackageNotFoundError:
        return None


def library_digest() -> str:
    """Return the SHA-256 over the native libraries, by name and content, sorted by name.

    Raises:
        UnsupportedError: llama-cpp-python is not installed, or without its libraries.
    """
    folder = _folder() / "lib"
    found = {path.resolve() for path in folder.glob("*") if path.is_file()}
    by_content = {file_digest(path) for path in found}
    if not by_content:
        raise UnsupportedError(
            "runtime-incomplete", f"{folder} holds no native library", hint=_INSTALL_HINT
        )
    return hashlib.sha256("\n".join(sorted(by_content)).encode()).hexdigest()


def _folder() -> Path:
    return Path(next(iter(_spec().submodule_search_locations or ())))


def _spec() -> ModuleSpec:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedError(
            "runtime-not-installed", "llama-cpp-python is not installed", hint=_INSTALL_HINT
        )
    return spec


def load() -> Any:
    """Return the low-level bindings module, with the native library loaded.

    Raises:
        UnsupportedError: llama-cpp-python is not installed.
        AdapterError: its library does not load, e.g. built for another processor.
    """
    if _PACKAGE not in sys.modules:
        # Found but not executed: submodules resolve through it, its own imports never run.
        sys.modules[_PACKAGE] = importlib.util.module_from_spec(_spec())
    try:
        return importlib.import_module(f"{_PACKAGE}.llama_cpp")
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise AdapterError(
            "runtime-library-broken",
            f"llama.cpp's native library does not load: {error}",
            hint="reinstall the runtime on this machine: pip install --force-reinstall "
            "--no-cache-dir llama-cpp-python",
        ) from error


class NativeLog:
    """Keeps the last lines the native library logged; nothing is printed.

    There is one per process, and it lives as long: the library keeps the address of its callback
    and logs also while an engine is being freed. Get it from :func:`native_log`.
    """

    def __init__(self, bindings: Any) -> None:
        self._lines: collections.deque[tuple[int, str]] = collections.deque(maxlen=_LOG_LINES)
        self._callback = bindings.llama_log_callback(self._take)
        bindings.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _take(self, level: int, text: bytes, _data: Any) -> None:
        if level == _LEVEL_DEBUG:
            return
        line = text.decode("utf-8", "replace")
        if level == _LEVEL_CONTINUED and self._lines:
            last_level, last = self._lines.pop()
            self._lines.append((last_level, last + line))
        else:
            self._lines.append((level, line))

    def clear(self) -> None:
        """Forget what was logged so far."""
        self._lines.clear()

    @property
    def lines(self) -> list[str]:
        """Return all kept lines."""
        return [text.rstrip() for _, text in self._lines]

    @property
    def complaints(self) -> list[str]:
        """Return the kept warnings and errors, newest last."""
        return [text.rstrip() for level, text in self._lines if level >= _LEVEL_WARN][-8:]


@functools.cache
def native_log() -> NativeLog:
    """Return this process's log of the native library, connected on the first call.

    Raises:
        UnsupportedError: llama-cpp-python is not installed.
        AdapterError: its library does not load.
    """
    return NativeLog(load())
