"""Two processes work on one home at the same time: both succeed, one thing is active."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import seeded_home

from edgewise.store import BundleStore, Home

pytestmark = [pytest.mark.model, pytest.mark.slow]


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "edgewise.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "EDGEWISE_HOME": str(home)},
    )


def test_two_ups(tmp_path: Path) -> None:
    home = seeded_home(tmp_path / "seeded")
    both = [start(home, "up", "--offline", "--no-chat", "--json") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        assert json.loads(out)["answer"]["outcome"] == "completed"
    assert (home / "bundles" / BundleStore(Home(home)).active().fingerprint).is_dir()
    assert not list((home / "staging").glob("work-*"))


def test_two_runs(ready_home: Path) -> None:
    both = [start(ready_home, "run", "Say hello.", "--max-tokens", "8") for _ in range(2)]
    texts = set()
    for process in both:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        texts.add(out)
    assert len(texts) == 1
