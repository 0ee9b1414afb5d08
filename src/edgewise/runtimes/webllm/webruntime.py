"""TVM's WebAssembly runtime, compiled once from the wheel's own sources and our shims.

The wheel ships the sources but not nine headers that they include; ``shims/`` holds replacements.
Sources and shims are laid together in a scratch folder, since the sources include by relative
paths, and compiled with emscripten into three objects. These are kept inside the environment,
under a key of everything that went in, and linked into every model library.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from filelock import FileLock

from edgewise.errors import AdapterError, UnsupportedError
from edgewise.runtimes.webllm.native import EMCC_HINT, emcc, installed_version, tvm_folder
from edgewise.store.home import storage_error

__all__ = ["emcc_version", "link", "missing_pieces", "runtime_objects"]

SHIMS: Final = Path(__file__).parent / "shims"
_UNITS: Final = ("wasm_runtime", "tvmjs_support", "webgpu_runtime")
_INCLUDES: Final = (
    ".",
    "include",
    "3rdparty/tvm-ffi/include",
    "3rdparty/tvm-ffi/3rdparty/dlpack/include",
    "3rdparty/compiler-rt",
)
_COMPILE: Final = ("-O2", "-std=c++17", "-Wno-ignored-attributes")
# The page's JavaScript supplies what stays undefined.
_LINK: Final = (
    "-O1",  # the objects are optimised already; more than this takes longer than compiling them
    "--no-entry",
    "-sWASM_BIGINT=1",
    "-sERROR_ON_UNDEFINED_SYMBOLS=0",
    "-sSTANDALONE_WASM=1",
    "-sALLOW_MEMORY_GROWTH=1",
    "-sTOTAL_MEMORY=160MB",
)
# The longest step, the runtime itself, takes about a minute of one core.
_TIMEOUT_S: Final = 1800.0
_OUTPUT_CHARS: Final = 2000
_VERSION: Final = re.compile(r"\b\d+\.\d+\.\d+\b")


def missing_pieces() -> tuple[str, ...]:
    """Return what is missing to link a model library, each with how to get it; empty if nothing."""
    missing = []
    if emcc() is None:
        missing.append(f"emcc: {EMCC_HINT}")
    try:
        sources = tvm_folder() / "web" / "emcc"
        missing += [
            f"TVM's web runtime source {unit}.cc: install the wheel apache-tvm 0.27"
            for unit in _UNITS
            if not (sources / f"{unit}.cc").is_file()
        ]
        if not (tvm_folder("tvm_ffi") / "src" / "ffi").is_dir():
            missing.append("the sources of tvm-ffi: install the wheel apache-tvm-ffi 0.1.15")
    except UnsupportedError as error:
        missing.append(f"{error.message}: {error.hint}")
    if not SHIMS.is_dir():
        missing.append("Edgewise's shims for TVM's headers: reinstall edgewise")
    return tuple(missing)


def emcc_version() -> str:
    """Return emscripten's version, or all that it prints where there is none in it.

    Raises:
        UnsupportedError: there is no emcc.
        AdapterError: it does not run.
    """
    told = _run([str(_require_emcc()), "--version"], SHIMS)
    found = _VERSION.search(told)
    return found[0] if found else told.strip()


def runtime_objects() -> tuple[Path, ...]:
    """Return the compiled runtime, compiling it first if this environment has none yet.

    Raises:
        UnsupportedError: a piece is missing; the hint says how to get it.
        AdapterError: emscripten failed; the context holds the end of its output.
        ResourceError: the disk is full.
    """
    missing = missing_pieces()
    if missing:
        raise UnsupportedError(
            "native-piece-missing",
            f"the page's library cannot be linked here: {missing[0]}",
            context={"missing": list(missing)},
            hint=missing[0].partition(": ")[2],
        )
    folder = _cache_folder() / _key()
    with FileLock(f"{folder}.lock"):
        objects = tuple(folder / f"{unit}.o" for unit in _UNITS)
        if not all(path.is_file() for path in objects):
            _compile_into(folder)
    return objects


def link(output: str, objects: Sequence[str], runtime: Sequence[Path]) -> None:
    """Link a model library from TVM's objects and the compiled runtime.

    Raises:
        UnsupportedError: there is no emcc.
        AdapterError: emscripten failed; the context holds the end of its output.
    """
    made = Path(output).absolute()
    inputs = [str(path.absolute()) for path in (*runtime, *map(Path, objects))]
    _run([str(_require_emcc()), *_LINK, "-o", str(made), *inputs], made.parent)


def _cache_folder() -> Path:
    inside = Path(sys.prefix) / "share" / "edgewise-webruntime"
    try:
        inside.mkdir(parents=True, exist_ok=True)
    except OSError:
        inside = Path(tempfile.gettempdir()) / f"edgewise-webruntime-{os.getpid()}"
        inside.mkdir(parents=True, exist_ok=True)
    return inside


def _key() -> str:
    digest = hashlib.sha256()
    for fact in (emcc_version(), installed_version() or "", *_COMPILE):
        digest.update(f"{fact}\0".encode())
    for path in sorted(SHIMS.rglob("*.h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _compile_into(folder: Path) -> None:
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="build-") as name:
            stage = Path(name)
            _lay_out(stage)
            made = stage / "made"
            made.mkdir()
            includes = [f"-I{include}" for include in _INCLUDES]
            for unit in _UNITS:
                source = f"web/emcc/{unit}.cc"
                command = [str(_require_emcc()), *_COMPILE, *includes, "-c", source]
                _run([*command, "-o", str(made / f"{unit}.o")], stage)
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
    except OSError as error:
        raise storage_error(error, folder, "compiling TVM's web runtime") from error


def _lay_out(stage: Path) -> None:
    tvm, ffi = tvm_folder(), tvm_folder("tvm_ffi")
    for part in ("src/runtime", "web/emcc", "include"):
        shutil.copytree(tvm / part, stage / part)
    for part in ("include", "src", "3rdparty/dlpack"):
        shutil.copytree(ffi / part, stage / "3rdparty/tvm-ffi" / part)
    shutil.copytree(SHIMS, stage, dirs_exist_ok=True)


def _require_emcc() -> Path:
    found = emcc()
    if found is None:
        raise UnsupportedError(
            "native-piece-missing", "emscripten's compiler emcc is not installed", hint=EMCC_HINT
        )
    return found


def _run(command: list[str], folder: Path) -> str:
    # Emscripten is a Python program of the system: this environment's settings are not for it.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AdapterError("emcc-failed", f"emscripten does not run: {error}") from error
    if done.returncode:
        output = done.stderr[-_OUTPUT_CHARS:] or done.stdout[-_OUTPUT_CHARS:]
        raise AdapterError(
            "emcc-failed",
            f"emscripten failed with code {done.returncode}: {_last_line(output)}",
            context={"output": output},
            hint="the output says why; Debian's emscripten 3.1.6 is known to work",
        )
    return done.stdout


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
