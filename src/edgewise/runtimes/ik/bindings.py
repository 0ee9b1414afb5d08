"""ik_llama.cpp's native library through the wheel ``ik_llama_cpp_python`` 0.1.5.

The wheel's low-level module declares the structures and about half of the functions that are
used here; the others are declared below from the headers of the same release. The package is
entered without its own ``__init__``, whose high-level class is not used.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edgewise.errors import AdapterError, UnsupportedError
from edgewise.runtimes.llamacpp.native import NativeLog
from edgewise.store.digest import file_digest

__all__ = ["QuantizeParams", "Tensor", "installed_version", "library_digest", "load", "native_log"]

_PACKAGE = "ik_llama_cpp"
_DISTRIBUTION = "ik-llama-cpp-python"
_INSTALL_HINT = "install the runtime: edgewise runtime install ik"


class Tensor(ctypes.Structure):
    """``struct ggml_tensor`` up to its name, as in the release's ``ggml.h`` (read 2026-11-30).

    It has a backend number and a gradient that today's llama.cpp has no longer.
    """

    _fields_ = (
        ("type", ctypes.c_int32),
        ("backend", ctypes.c_int32),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int32),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("grad", ctypes.c_void_p),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    )


class QuantizeParams(ctypes.Structure):
    """``llama_model_quantize_params`` of the release's ``llama.h`` (read 2026-11-30).

    The last four point to C++ containers and cannot be filled from here.
    """

    _fields_ = (
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int),
        ("output_tensor_type", ctypes.c_int),
        ("token_embedding_type", ctypes.c_int),
        ("attention_and_ffn_types", ctypes.c_int * 9),
        ("allow_requantize", ctypes.c_bool),
        ("quantize_output_tensor", ctypes.c_bool),
        ("only_copy", ctypes.c_bool),
        ("pure", ctypes.c_bool),
        ("keep_split", ctypes.c_bool),
        ("ignore_imatrix_rules", ctypes.c_bool),
        ("only_repack", ctypes.c_bool),
        ("dry_run", ctypes.c_bool),
        ("partial_requant", ctypes.c_bool),
        ("imatrix", ctypes.c_void_p),
        ("kv_overrides", ctypes.c_void_p),
        ("custom_quants", ctypes.c_void_p),
        ("repack_pattern", ctypes.c_void_p),
    )


_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)

_POINTER, _INT, _UINT, _SIZE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_size_t

# name -> (argument types, result type); what the wheel's module does not declare.
_MORE: dict[str, tuple[list[Any], Any]] = {
    "llama_kv_cache_seq_pos_min": ([_POINTER, _INT], _INT),
    "llama_kv_cache_seq_rm": ([_POINTER, _INT, _INT, _INT], ctypes.c_bool),
    "llama_log_set": ([_LogCallback, _POINTER], None),
    "llama_model_quantize": (
        [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(QuantizeParams)],
        _UINT,
    ),
    "llama_model_quantize_default_params": ([], QuantizeParams),
    "llama_model_size": ([_POINTER], ctypes.c_uint64),
    "llama_print_system_info": ([], ctypes.c_char_p),
    "llama_set_n_threads": ([_POINTER, _UINT, _UINT], None),
    "llama_state_seq_get_data": ([_POINTER, _POINTER, _SIZE, _INT, _UINT], _SIZE),
    "llama_state_seq_get_size": ([_POINTER, _INT, _UINT], _SIZE),
    "llama_state_seq_set_data": ([_POINTER, _POINTER, _SIZE, _INT, _UINT], _SIZE),
}


def installed_version() -> str | None:
    """Return the version of the wheel, or ``None`` when it is not installed."""
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return None


def library_digest() -> str:
    """Return the SHA-256 over the native libraries' contents.

    Raises:
        UnsupportedError: the wheel is not installed, or without its libraries.
    """
    package = Path(next(iter(_spec().submodule_search_locations or ())))
    # The loader takes the kernels from the folder beside the package, where a wheel has one.
    folders = (package / "lib", package.parent / "ik_llama_cpp_python.libs")
    files = {path.resolve() for folder in folders for path in folder.glob("*") if path.is_file()}
    if not files:
        raise UnsupportedError(
            "runtime-incomplete", f"{package} holds no native library", hint=_INSTALL_HINT
        )
    digests = sorted(file_digest(path) for path in files)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _spec() -> ModuleSpec:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedError(
            "runtime-not-installed", "ik_llama_cpp_python is not installed", hint=_INSTALL_HINT
        )
    return spec


@functools.cache
def load() -> Any:
    """Return the native functions by name, with the library loaded.

    Raises:
        UnsupportedError: the wheel is not installed.
        AdapterError: its library does not load, e.g. for want of AVX2.
    """
    if _PACKAGE not in sys.modules:
        sys.modules[_PACKAGE] = importlib.util.module_from_spec(_spec())
    try:
        declared = importlib.import_module(f"{_PACKAGE}._ctypes_api")
        library = declared._lib  # noqa: SLF001 - no public accessor
        functions = {name: _declare(library, name) for name in _MORE}
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise AdapterError(
            "runtime-library-broken",
            f"ik_llama.cpp's native library does not load: {error}",
            hint="its wheel is built for Linux x86_64 with AVX2; install it again or use llamacpp",
        ) from error
    # The structures' layouts are this release's; ctypes would not notice another.
    functions["llama_set_abort_callback"] = _declare_abort(library, declared)
    functions["llama_batch_get_one"] = _declare_batch(library, declared)
    named = {key: value for key, value in vars(declared).items() if not key.startswith("__")}
    return SimpleNamespace(**{**named, **functions, "llama_log_callback": _LogCallback})


def _declare(library: ctypes.CDLL, name: str) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = _MORE[name]
    return function


def _declare_abort(library: ctypes.CDLL, declared: Any) -> Any:
    function = library.llama_set_abort_callback
    function.argtypes = [_POINTER, declared.ggml_abort_callback, _POINTER]
    function.restype = None
    return function


def _declare_batch(library: ctypes.CDLL, declared: Any) -> Any:
    function = library.llama_batch_get_one
    function.argtypes = [ctypes.POINTER(ctypes.c_int32), _INT, _INT, _INT]
    function.restype = declared.llama_batch
    return function


@functools.cache
def native_log() -> NativeLog:
    """Return this process's log of the library, connected on the first call.

    Raises:
        UnsupportedError: the wheel is not installed.
        AdapterError: its library does not load.
    """
    return NativeLog(load())
