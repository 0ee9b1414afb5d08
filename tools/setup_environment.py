"""Make .venv ready: the package, its llama.cpp runtime built for this processor, and more.

Usage: python3 tools/setup_environment.py [run|test]

``run`` installs what ``edgewise up`` needs. ``test`` adds the test, lint and docs groups, the two
registry models that the tests read, the JavaScript clients that try the local API, and every
runtime in an environment of its own (about 6 GiB in ``.cache/runtimes``). What is not to be had
here, such as a runtime without wheels for this platform or one that the disk has no room for, is
left out, and its tests say so. Both are safe to repeat and then take seconds: stamps hold the
digest of what was asked for. Only the standard library is used here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
NATIVE = ROOT / "native" / "llamacpp.cmake"
LEAST_PYTHON = (3, 11)
TEST_MODELS = ("smollm2-135m-instruct", "gemma-3-270m")
TEST_CACHE = ROOT / ".cache" / "test-home"
TEST_RUNTIMES = ROOT / ".cache" / "runtimes"
CLIENTS = ROOT / "tests" / "e2e" / "clients" / "node"
TEST_CLIENTS = ROOT / ".cache" / "clients"
# Written for the tests' summary: what was left out, and why.
LEFT_OUT = ROOT / ".cache" / "left-out.txt"
# One name for each environment; the other runtimes share these. On a small disk the first ones win.
RUNTIMES = (
    "transformers",
    "ik",
    "mlx",
    "wllama",
    "tvm",
    "webllm",
    "onnx-genai",
    "openvino",
    "executorch",
    "litert",
)
UNSUPPORTED = 3  # the command's exit code for what this platform does not have
# The largest environment takes half of it; the tests' own files need the rest.
LEAST_FREE_BYTES = 4 << 30


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(what: str, command: Sequence[str], *, may_end: Sequence[int] = (), **variables: str) -> int:
    """Run a command; say what is going on every 15 s, and show its output if it fails.

    Exit codes in ``may_end`` are no failure of the setup; the code is returned.
    """
    say(f".. setup     {what}")
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **variables},
        text=True,
        errors="replace",
    )
    output: list[str] = []
    reader = threading.Thread(target=lambda: output.extend(process.stdout or ()))
    reader.start()
    while True:
        try:
            code = process.wait(15)
            break
        except subprocess.TimeoutExpired:
            say(f"   setup     {what}: {time.monotonic() - started:.0f} s so far")
    reader.join()
    if code and code in may_end:
        say(f"-- setup     {what}: left out, it is not to be had here\n" + "".join(output[-3:]))
        return code
    if code:
        say("".join(output[-60:]))
        sys.exit(f"setup: {what} failed; the output is above")
    say(f"ok setup     {what}: {time.monotonic() - started:.0f} s")
    return code


def check_machine() -> None:
    if sys.version_info < LEAST_PYTHON:
        sys.exit(f"setup: Python 3.11 or newer is needed; this is {sys.version.split()[0]}")
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        sys.exit(
            "setup: no C++ compiler was found; install one "
            "(Debian: apt-get install build-essential; macOS: xcode-select --install)"
        )


def fresh(kind: str) -> tuple[Path, str]:
    """Return the stamp file of a kind of setup, and what it must hold to be up to date."""
    digest = hashlib.sha256(kind.encode())
    locks = sorted((ROOT / "src").glob("edgewise/runtimes/*/lock.txt")) if kind == "test" else []
    if kind == "test":
        locks.append(CLIENTS / "package-lock.json")
    for path in (ROOT / "pyproject.toml", NATIVE, Path(__file__), *locks):
        digest.update(path.read_bytes())
    return VENV / f"setup-{kind}.stamp", digest.hexdigest()


def install(kind: str) -> None:
    pip = [str(PYTHON), "-m", "pip"]
    quiet = ["--disable-pip-version-check", "--no-input"]
    if not PYTHON.exists():
        say(".. setup     making .venv")
        venv.create(VENV, with_pip=True)
    run("a current pip", [*pip, "install", *quiet, "-U", "pip>=25.1"])
    run("edgewise and its libraries", [*pip, "install", *quiet, "-e", f"{ROOT}[serve]"])
    run("a look whether it imports", [str(PYTHON), "-c", "import edgewise.workflow.up"])
    arguments = f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={NATIVE.as_posix()} -DLLAVA_BUILD=OFF"
    theirs = os.environ.get("CMAKE_ARGS", "")
    # Without pip's cache, which would give back what was built with other flags or elsewhere.
    run(
        "llama.cpp, built for this processor (about 2 minutes on 2 cores)",
        [*pip, "install", *quiet, "--no-cache-dir", "-e", f"{ROOT}[llamacpp]"],
        CMAKE_ARGS=f"{arguments} {theirs}".strip(),
    )
    if kind == "test":
        groups = [word for name in ("test", "lint", "docs") for word in ("--group", name)]
        run("the test, lint and docs tools", [*pip, "install", *quiet, *groups])


def fetch_test_models() -> None:
    for model in TEST_MODELS:
        run(
            f"the test model {model}",
            [str(PYTHON), "-m", "edgewise.cli", "fetch", model],
            EDGEWISE_HOME=str(TEST_CACHE),
        )


def install_test_clients() -> None:
    npm = shutil.which("npm")
    if npm is None:
        say("-- setup     the clients in JavaScript: left out, npm is not on the search path")
        return
    TEST_CLIENTS.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(CLIENTS / name, TEST_CLIENTS)
    # Versions and digests are the lock's; which registry, the user's own settings say.
    run(
        "the clients in JavaScript",
        [npm, "ci", "--prefix", str(TEST_CLIENTS), "--ignore-scripts", "--no-audit", "--no-fund"],
        may_end=range(1, 256),
    )


def install_test_runtimes() -> bool:
    """Return whether the disk had room for all of them."""
    left_out, room = [], True
    for name in RUNTIMES:
        free = shutil.disk_usage(ROOT).free
        if free < LEAST_FREE_BYTES and not (TEST_RUNTIMES / name).exists():
            room = False
            left_out.append(f"{name}: the disk has {free >> 20} MiB free")
            say(f"-- setup     the runtime {left_out[-1]}, so it is left out")
            continue
        code = run(
            f"the runtime {name}, in an environment of its own",
            [str(PYTHON), "-m", "edgewise.cli", "runtime", "install", name],
            may_end=(UNSUPPORTED,),
            EDGEWISE_HOME=str(TEST_CACHE),
            EDGEWISE_RUNTIMES=str(TEST_RUNTIMES),
        )
        if code:
            left_out.append(f"{name}: it has no build for this platform")
    LEFT_OUT.parent.mkdir(exist_ok=True)
    LEFT_OUT.write_text("".join(f"{line}\n" for line in left_out), encoding="utf-8")
    return room


def main() -> None:
    kind = sys.argv[1] if len(sys.argv) > 1 else "run"
    if kind not in {"run", "test"}:
        sys.exit(f"setup: {kind!r} is neither run nor test")
    stamp, wanted = fresh(kind)
    fresh_enough = stamp.exists() and stamp.read_text() == wanted
    if not fresh_enough:
        check_machine()
        install(kind)
    if kind == "test":
        fetch_test_models()
        if not fresh_enough:
            install_test_clients()
            if not install_test_runtimes():
                return  # without the stamp, so that the next time tries again
    stamp.write_text(wanted)


if __name__ == "__main__":
    main()
