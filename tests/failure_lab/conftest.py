"""Homes that a test may break, and processes that it may kill."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def own_home(ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the ready home that the test may damage; its files are its own."""
    copy = tmp_path / "own"
    shutil.copytree(ready_home, copy)
    monkeypatch.setenv("EDGEWISE_HOME", str(copy))
    return copy


@pytest.fixture
def edgewise() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own and wait for it."""

    def call(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "edgewise.cli", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            stdin=options.pop("stdin", subprocess.DEVNULL),
            env={**os.environ, **options.pop("env", {})},
            **options,
        )

    return call
