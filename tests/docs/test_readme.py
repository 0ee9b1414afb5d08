"""What the README says about routing works as it is printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

NEED_A_MODEL = ("route", "run", "queue add", "egress")


def commands() -> list[str]:
    """Return the commands of the section in order, without the installation."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("## Decide what may leave")[1].split("\n## ")[0]
    found = re.findall(r"^\$ (.*)$", section, re.MULTILINE)
    assert "pip install" in found[0]
    return found[1:]


def works_as_printed(command: str, folder: Path, home: Path) -> None:
    # A user's shell reads the line, with its comment.
    shell = re.sub(r"^\.venv/bin/python", sys.executable, command)
    shell = re.sub(r"^\.venv/bin/edgewise", f"{sys.executable} -m edgewise.cli", shell)
    done = subprocess.run(
        ["bash", "-c", shell],
        cwd=folder,
        env={**os.environ, "EDGEWISE_HOME": str(home), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)


def laid_out(folder: Path) -> None:
    for name in ("docs/examples", "benchmarks/results"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(ROOT / name)


@pytest.mark.slow
def test_the_commands_of_routing_work_in_order(tmp_path: Path) -> None:
    laid_out(tmp_path)
    for command in commands():
        if not re.search(rf"edgewise ({'|'.join(NEED_A_MODEL)})", command):
            works_as_printed(command, tmp_path, tmp_path / "home")


@pytest.mark.model
@pytest.mark.slow
def test_all_commands_of_routing_work_in_order(tmp_path: Path, ready_home: Path) -> None:
    laid_out(tmp_path)
    home = tmp_path / "home"
    shutil.copytree(ready_home, home)
    for command in commands():
        works_as_printed(command, tmp_path, home)
