"""The application is killed without warning: no worker survives it, and the next run works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

SCRIPT = """
import os, signal, edgewise
chat = edgewise.open()
def on_text(text):
    print(chat._session.worker_pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
chat.ask("Write a long story.", max_tokens=300, on_text=on_text)
"""


def test_no_worker_survives_its_application(
    ready_home: Path, edgewise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(ready_home))
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL
    worker = int(killed.stdout.split()[0])
    # Reading its exit from the pipe end is not possible for a grandchild: look until it is gone.
    for _ in range(1_000_000):
        if not running(worker):
            break
    assert not running(worker)
    again = edgewise("run", "Hi", "--max-tokens", "2")
    assert again.returncode == 0, again.stderr


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"
