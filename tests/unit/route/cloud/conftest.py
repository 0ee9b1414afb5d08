"""What the tests of the cloud tier share."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from tests.unit.route.cloud.servers import Authority, Desk


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


# Imported before anything is timed, as in a process that has asked once.
for library in ("httpx", "openai"):
    importlib.import_module(library)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    for name in ("HTTPS_PROXY", "ALL_PROXY", "SOCKS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return Desk(tmp_path / "home")
