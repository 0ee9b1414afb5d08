"""A command that holds a prompt leaves no core dump, however freely its shell lets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgewise.cli.root import COMMANDS

resource = pytest.importorskip("resource")

CANARY = "quince-lantern-5b1e97c4"
PATTERN = Path("/proc/sys/kernel/core_pattern")
CONTROL = "import sys; held = sys.stdin.readline(); sys.stdin.readline()"
# Runs Python anew under a limit that lets it dump as much as may be.
DUMPING = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
CLI = ["-m", "edgewise.cli"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PATTERN.exists(), reason="core dumps of Linux"),
]


def started(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that may dump, in a folder of its own, with the canary in its pipe."""
    made = subprocess.Popen(
        [sys.executable, "-c", DUMPING, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "EDGEWISE_HOME": str(folder / "home"),
        },
    )
    assert made.stdin is not None
    made.stdin.write(CANARY.encode() + b"\n")
    made.stdin.flush()
    return made


def until_it_reads(made: subprocess.Popen[bytes]) -> None:
    """Wait until the process has taken the canary in and waits for more."""
    import fcntl
    import termios

    assert made.stdin is not None
    left = bytearray(4)
    ends = time.monotonic() + 120
    while time.monotonic() < ends and made.poll() is None:
        fcntl.ioctl(made.stdin, termios.FIONREAD, left)
        if not any(left):
            return
        time.sleep(0.02)
    raise AssertionError(f"it never read its input: {made.poll()}")


def core_limits(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("Max core file size"))
    return set(line.split()[4:6])


def ended(made: subprocess.Popen[bytes], number: int) -> None:
    made.send_signal(number)
    assert made.wait() == -number
    assert made.stdin is not None
    made.stdin.close()


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT], ids=["segv", "abrt"])
@pytest.mark.parametrize("command", ["run", "minimise", "queue add", "route"])
def test_a_command_that_crashes_leaves_no_core(
    command: str, number: signal.Signals, tmp_path: Path
) -> None:
    words = {"queue add": ["queue", "add", "--task", "t", "--data-class", "personal"]}
    made = started([*CLI, *words.get(command, [command])], tmp_path)
    until_it_reads(made)
    assert core_limits(made.pid) <= {"0", "1"}
    ended(made, number)
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(CANARY.encode() in path.read_bytes() for path in found)
    assert not list(tmp_path.glob("core*"))


def test_another_process_there_leaves_one_with_the_prompt(tmp_path: Path) -> None:
    pattern = PATTERN.read_text().strip()
    if not pattern or "/" in pattern or pattern[0] in "|@":
        pytest.skip(f"cores go elsewhere here: {pattern}")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("no process here may leave a core")
    made = started(["-c", CONTROL], tmp_path)
    until_it_reads(made)
    ended(made, signal.SIGABRT)
    (core,) = tmp_path.glob("core*")
    assert CANARY.encode() in core.read_bytes()


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_refuses_but_the_one_that_looks_for_dumps(command: str) -> None:
    code = (
        "import atexit, resource, sys\n"
        "from edgewise.cli import main\n"
        f"sys.argv = ['edgewise', {command!r}, '--help']\n"
        "atexit.register(lambda: print(*resource.getrlimit(resource.RLIMIT_CORE)))\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", DUMPING, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    limits = set(done.stdout.splitlines()[-1].split())
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    assert limits <= ({str(hard)} if command == "egress" else {"0", "1"}), done


def test_a_program_that_calls_the_command_line_keeps_its_own() -> None:
    code = (
        "import resource\n"
        "from edgewise.cli import main\n"
        "before = resource.getrlimit(resource.RLIMIT_CORE)\n"
        "try:\n"
        "    main(['run', '--help'])\n"
        "except SystemExit:\n"
        "    assert resource.getrlimit(resource.RLIMIT_CORE) == before\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", DUMPING, "-c", code], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
