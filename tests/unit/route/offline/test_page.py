"""The examples on the queue's page run and print what they say."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from tests.docs.pages import DOCS, examples
from tests.docs.test_examples import run

from edgewise.cli import _run


def test_the_examples_of_the_page() -> None:
    run("offline-queue.md", examples(DOCS / "offline-queue.md", with_model=False), {})


def test_the_commands_of_the_page_work_as_they_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "offline-queue.md").read_text(encoding="utf-8")
    policy = page.split("```toml\n", 1)[1].split("```", 1)[0]
    commands = page.split("```console\n", 1)[1].split("```", 1)[0]
    monkeypatch.chdir(tmp_path)
    Path("notes.toml").write_text(policy, encoding="utf-8")
    letter, add, drain = (line.strip() for line in commands.replace("\\\n", "").split("$ ")[1:])
    assert letter == 'echo "The meeting is on Tuesday." > letter.txt'
    Path("letter.txt").write_text("The meeting is on Tuesday.\n", encoding="utf-8")
    assert _run(shlex.split(add)[1:]) == 0, capsys.readouterr().err
    assert _run([*shlex.split(drain)[1:], "--link", "online"]) == 10
    err = capsys.readouterr().err
    assert "waits for consent" in err
    (grant,) = (line for line in err.splitlines() if "edgewise consent grant" in line)
    assert _run(shlex.split(grant.partition("edgewise ")[2])) == 0
