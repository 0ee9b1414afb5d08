"""``edgewise minimise``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgewise.cli.minimise import minimise
from edgewise.errors import InputError


def run(*arguments: str, given: str = "") -> str:
    result = CliRunner().invoke(minimise, arguments, input=given, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_text_is_shown_as_it_would_leave() -> None:
    out = run("Mail a@x.org")
    assert out.startswith("Mail [EMAIL_1]\n")
    assert "a@x.org" not in out


def test_standard_input_and_files_are_read(tmp_path: Path) -> None:
    assert run("-", given="a@x.org\n").startswith("[EMAIL_1]\n")
    (tmp_path / "text").write_text("ask Zenobia", "utf-8")
    (tmp_path / "contacts").write_text("Zenobia\n\n", "utf-8")
    out = run("--file", str(tmp_path / "text"), "--contacts", str(tmp_path / "contacts"))
    assert out.startswith("ask [PERSON_1]\n")


def test_json_has_all_but_the_values() -> None:
    data = json.loads(run("--json", "a@x.org"))
    assert data["fields"] == {"text": "[EMAIL_1]"}
    assert data["replaced"] == {"EMAIL": 1}
    assert data["not_guaranteed"]
    assert "a@x.org" not in str(data)
    revealed = json.loads(run("--json", "--reveal", "a@x.org"))
    assert revealed["replacements"][0]["value"] == "a@x.org"


def test_the_table_reveals_values_when_asked() -> None:
    assert "a@x.org" in run("--reveal", "a@x.org")


def test_regions_are_taken_in_any_case() -> None:
    assert run("--region", "dk", "32 12 34 56").startswith("[PHONE_1]")


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff")
    for name in ("missing", "latin", "."):
        with pytest.raises(InputError, match="minimise-unreadable"):
            run("--file", str(tmp_path / name))
    with pytest.raises(InputError, match="minimise-source-contradiction"):
        run("text", "--file", "x")
