"""`edgewise up` with a model that is missing, cut, hostile, not a model, or of another kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.builders import tiny_gguf

pytestmark = pytest.mark.model


def up(home: Path, model: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgewise.cli", "up", str(model), "--offline", "--json", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "EDGEWISE_HOME": str(home)},
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "fresh-home"


def nothing_is_left(home: Path) -> None:
    assert not (home / "active").exists()
    assert not list((home / "bundles").glob("*"))
    assert not list((home / "staging").glob("work-*"))


def broken(kind: str, folder: Path, sound: Path) -> Path:
    path = folder / f"{kind} modèle.gguf"
    if kind == "missing":
        return path
    if kind == "folder":
        path.mkdir()
        return path
    data = sound.read_bytes()
    path.write_bytes(
        {
            "truncated": data[:60_000_000],
            "empty": b"",
            "html": b"<!doctype html><html>log in</html>",
            "flipped-header": data[:8] + b"\xff" * 8 + data[16:4096],
        }[kind]
    )
    return path


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("missing", 2, "file-missing"),
        ("folder", 2, "hf-file-missing"),
        ("truncated", 4, "gguf-data-truncated"),
        ("empty", 4, "gguf-empty"),
        ("html", 4, "gguf-bad-magic"),
        ("flipped-header", 4, "gguf-count-absurd"),
    ],
)
def test_a_broken_file_is_refused(
    home: Path, tmp_path: Path, smollm2_path: Path, kind: str, status: int, code: str
) -> None:
    result = up(home, broken(kind, tmp_path, smollm2_path))
    assert result.returncode == status, result.stderr
    error = json.loads(result.stdout)["error"]
    assert error["code"] == code
    assert error["hint"]
    nothing_is_left(home)
    assert not list((home / "blobs").glob("*"))


def test_an_architecture_without_rules_is_unknown_and_not_set_up(
    home: Path, tmp_path: Path
) -> None:
    model = tmp_path / "mamba.gguf"
    tiny_gguf(model, architecture="mamba")
    result = up(home, model, "--template", "chatml")
    assert result.returncode == 10, result.stderr
    report = json.loads(result.stdout)
    assert report["answer"] is None
    assert report["up"]["status"] == "plan-unknown"
    assert "mamba" in " ".join(report["up"]["reasons"])
    nothing_is_left(home)


def test_a_model_without_a_template_says_what_to_do(home: Path, gemma_path: Path) -> None:
    result = up(home, gemma_path)
    error = json.loads(result.stdout)["error"]
    assert (result.returncode, error["code"]) == (3, "template-missing")
    assert "template" in error["hint"]
    nothing_is_left(home)


@pytest.mark.slow
def test_a_path_with_spaces_and_accents_works(
    home: Path, tmp_path: Path, smollm2_path: Path
) -> None:
    model = tmp_path / "mon modèle é 漢字.gguf"
    os.link(smollm2_path, model)
    result = up(home, model, "--context", "512")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["up"]["status"] == "ready"
    assert report["up"]["checkpoint"]["pinned"] is False
    assert report["answer"]["outcome"] == "completed"
