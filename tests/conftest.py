"""Fixtures that several suites share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from edgewise.core.recipe import LoadMode, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.run.session import Session
from edgewise.runtimes.llamacpp.engine import LlamaCppEngine
from edgewise.store import Home
from edgewise.workflow.checkpoints import fetch_checkpoint
from edgewise.workflow.context import Context
from edgewise.workflow.opening import open_session
from edgewise.workflow.up import bring_up
from edgewise.workflow.up_report import UpRequest

# A loaded machine is slow, not wrong: no time limit per example.
settings.register_profile("edgewise", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edgewise")

CACHE = Path(__file__).parents[1] / ".cache" / "test-home"
SMOLLM2, GEMMA = "smollm2-135m-instruct", "gemma-3-270m"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests record as ``shown``, from whichever process ran them."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "shown" and report.when == "call":
                terminalreporter.write_line(str(text))
    left_out = CACHE.with_name("left-out.txt")
    for line in left_out.read_text(encoding="utf-8").splitlines() if left_out.exists() else ():
        terminalreporter.write_line(f"LEFT OUT the runtime {line}")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's home."""
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))


def _cache() -> Home:
    return Home(Path(os.environ.get("EDGEWISE_TEST_CACHE", CACHE)))


def _model(name: str) -> Path:
    """Return a registry model's file from the test cache; `make test` puts it there."""
    home = _cache()
    try:
        checkpoint = fetch_checkpoint(Context(home), name, offline=True)
    except EdgewiseError as error:
        pytest.fail(f"{name} is not in {home.root} ({error.code}): run `make test` once")
    return home.blob(checkpoint.sha256)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return _model(SMOLLM2)


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    return _model(GEMMA)


def seeded_home(root: Path) -> Path:
    """Return a home that has the default model's checkpoint and nothing else."""
    _model(SMOLLM2)
    cache = _cache()
    (root / "blobs").mkdir(parents=True)
    for blob in (cache.root / "blobs").iterdir():
        try:
            os.link(blob, root / "blobs" / blob.name)
        except OSError:
            shutil.copy(blob, root / "blobs" / blob.name)
    shutil.copytree(cache.root / "checkpoints", root / "checkpoints")
    return root


@pytest.fixture(scope="session")
def ready_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an active SmolLM2 deployment, made the way a user makes it. Do not alter it."""
    root = seeded_home(tmp_path_factory.mktemp("ready") / "home")
    report = bring_up(Context(Home(root)), UpRequest(offline=True))
    assert report.status == "ready", report.reasons
    return root


@pytest.fixture
def session(ready_home: Path) -> Iterator[Session]:
    """A session of its own on the ready home."""
    with open_session(Context(Home(ready_home))) as opened:
        yield opened


QUICK = RunConfig(
    context_length=512, threads=1, flash_attention=True, load_mode=LoadMode.MMAP, batch_tokens=64
)


@pytest.fixture(scope="session")
def shared_engine(smollm2_path: Path) -> Iterator[LlamaCppEngine]:
    engine = LlamaCppEngine(smollm2_path, QUICK)
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine: LlamaCppEngine) -> LlamaCppEngine:
    """A loaded SmolLM2 in this process, its cache empty and no cancel pending."""
    shared_engine.clear_cancel()
    shared_engine.rewind(0)
    return shared_engine
