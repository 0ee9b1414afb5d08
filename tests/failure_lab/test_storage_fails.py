"""A read-only home and a full disk: typed, nothing half-written, and better afterwards."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import seeded_home

pytestmark = [
    pytest.mark.root,
    pytest.mark.model,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    point = tmp_path / "volume"
    point.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=120m", "tmpfs", str(point)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def error_of(result) -> Any:
    return json.loads(result.stdout)["error"]


def test_a_full_disk_during_the_fetch(small_volume: Path, edgewise, smollm2_path: Path) -> None:
    home = small_volume / "home"
    (small_volume / "ballast").write_bytes(bytes(60 << 20))
    result = edgewise("fetch", str(smollm2_path), "--json", env={"EDGEWISE_HOME": str(home)})
    assert result.returncode == 5, result.stderr
    assert error_of(result)["code"] == "disk-full"
    assert error_of(result)["retryable"]
    assert not list((home / "blobs").glob("*")) if (home / "blobs").exists() else True


def test_a_full_disk_during_the_build(small_volume: Path, edgewise) -> None:
    # The checkpoint fits, its copy does not.
    home = small_volume / "home"
    seeded = seeded_home(small_volume.parent / "seed")
    (home / "blobs").mkdir(parents=True)
    subprocess.run(["cp", "-r", str(seeded / "checkpoints"), str(home)], check=True)
    record = json.loads(next((seeded / "checkpoints").glob("*.json")).read_text())
    for path in (seeded / "checkpoints").glob("*.json"):
        data = json.loads(path.read_text())
        record = data if "smollm2" in data["reference"] else record
    blob = seeded / "blobs" / record["sha256"]
    subprocess.run(["cp", str(blob), str(home / "blobs" / record["sha256"])], check=True)
    result = edgewise("up", "--offline", "--json", env={"EDGEWISE_HOME": str(home)})
    assert result.returncode == 5, result.stderr
    assert error_of(result)["code"] == "disk-full"
    assert not (home / "active").exists()
    assert not list((home / "staging").glob("work-*"))


def test_a_read_only_home(small_volume: Path, edgewise) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_volume)], check=True)
    result = edgewise("up", "--offline", "--json", env={"EDGEWISE_HOME": str(small_volume / "h")})
    assert result.returncode == 5, result.stderr
    assert "EDGEWISE_HOME" in error_of(result)["hint"]
