"""`edgewise up` is killed after each of its steps: nothing half-made is active, the next works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import seeded_home

from edgewise.errors import InputError
from edgewise.store import BundleStore, Home

pytestmark = [pytest.mark.model, pytest.mark.slow]

STAGES = ["probe", "plan", "fetch", "build", "tune", "qualify"]


@pytest.mark.parametrize("stage", STAGES)
def test_killed_after_a_step(tmp_path: Path, stage: str) -> None:
    home = seeded_home(tmp_path / "seeded")
    process = subprocess.Popen(
        [sys.executable, "-m", "edgewise.cli", "up", "--offline", "--no-chat"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "EDGEWISE_HOME": str(home)},
    )
    assert process.stderr is not None
    with process:
        for line in process.stderr:
            if line.split()[:2] == ["ok", stage]:
                process.send_signal(signal.SIGKILL)
                break
        process.wait()
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(InputError) as caught:
        BundleStore(Home(home)).active()
    assert caught.value.code == "nothing-active"
    if stage != STAGES[-1]:
        return  # the whole way again takes long; once is enough
    again = subprocess.run(
        [sys.executable, "-m", "edgewise.cli", "up", "--offline", "--no-chat", "--json"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "EDGEWISE_HOME": str(home)},
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["up"]["status"] == "ready"
