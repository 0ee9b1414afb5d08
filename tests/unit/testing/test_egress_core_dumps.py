"""A worker leaves no core dump, however freely its application lets its children dump."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

resource = pytest.importorskip("resource")

PATTERN = Path("/proc/sys/kernel/core_pattern")
PREPARE = """
import os, resource, signal, sys
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
os.chdir(sys.argv[1])
"""
WORKER = """
from edgewise.runtimes.worker import WorkerProcess
from tests.services import ECHO
worker = WorkerProcess(ECHO, environment={"PYTHONPATH": os.pathsep.join(sys.path)})
assert worker.call("echo", 1, int) == 1
print(open(f"/proc/{worker.pid}/limits").read())
os.kill(worker.pid, signal.SIGSEGV)
worker._process.wait()
worker.close()
"""


def run(code: str, folder: Path) -> str:
    words = [sys.executable, "-c", PREPARE + code, str(folder)]
    path = ":".join(sys.path)
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={"PYTHONPATH": path}
    )
    return done.stdout


@pytest.mark.skipif(not PATTERN.exists(), reason="core dumps of Linux")
def test_a_worker_that_crashes_leaves_no_core(tmp_path: Path) -> None:
    limits = run(WORKER, tmp_path)
    (line,) = (line for line in limits.splitlines() if line.startswith("Max core file size"))
    assert set(line.split()[4:6]) <= {"0", "1"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not PATTERN.exists(), reason="core dumps of Linux")
def test_another_process_there_would_leave_one(tmp_path: Path) -> None:
    pattern = PATTERN.read_text().strip()
    if not pattern or "/" in pattern or pattern[0] in "|@":
        pytest.skip(f"cores go elsewhere here: {pattern}")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("no process here may leave a core")
    run("os.kill(os.getpid(), signal.SIGSEGV)", tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_refusing_is_for_good() -> None:
    code = (
        "import resource\n"
        "from edgewise.device.process import refuse_core_dumps\n"
        "assert refuse_core_dumps() and refuse_core_dumps()\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_CORE)\n"
        "assert soft == hard and soft in (0, 1), (soft, hard)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
