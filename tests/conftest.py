"""Fixtures that several suites share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgewise.store import Home
from edgewise.workflow.checkpoints import fetch_checkpoint
from edgewise.workflow.context import Context

CACHE = Path(__file__).parents[1] / ".cache" / "test-home"


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's home."""
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))


def _model(name: str) -> Path:
    """Return a registry model's file, fetched once into the test cache and verified each time."""
    home = Home(Path(os.environ.get("EDGEWISE_TEST_CACHE", CACHE)))
    checkpoint = fetch_checkpoint(Context(home), name)
    return home.blob(checkpoint.sha256)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return _model("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    return _model("gemma-3-270m")
