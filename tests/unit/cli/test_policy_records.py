"""``edgewise policy diff`` and ``edgewise policy records``: what a person and a program see."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.unit.route.policies import WHOLE
from tests.unit.route.records.recorded import HERE_KNOWN, record, whole

from edgewise.cli import _run
from edgewise.errors import ExitCode
from edgewise.route.policy import RecordRule
from edgewise.route.records import RecordStore
from edgewise.store import Home

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    """Return a policy, one that asks for more evidence, and one with a limit within a bucket."""
    texts = {
        "old": WHOLE,
        "new": WHOLE.replace('evidence = ["smoke"]', 'evidence = ["smoke", "quality"]'),
        "limit": WHOLE.replace("temperature = 1.0", "temperature = 1.0\ncharacters = 77"),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.toml").write_text(text)
    old, new, limit = (str(tmp_path / f"{name}.toml") for name in texts)
    return old, new, limit


def put(count: int = 3, share: float = 1.0, lost: int = 0) -> RecordStore:
    store = RecordStore(Home())
    day = store.today().isoformat()
    made = record(whole(), evidence=HERE_KNOWN, day=day)
    store.add([made] * count, RecordRule(share=share), lost=lost)
    return store


def run(capsys: Capture, *words: str) -> tuple[int, str, str]:
    code = _run(["policy", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_what_changes_is_shown_and_ends_with_its_code(
    files: tuple[str, str, str], capsys: Capture
) -> None:
    put()
    old, new, _ = files
    code, out, _ = run(capsys, "diff", old, new)
    assert code == ExitCode.NEGATIVE
    row = next(line for line in out.splitlines() if "draft" in line)
    assert row.split() == ["3", "draft", "ticket", "local", "decline", "evidence"]
    assert "3 records from" in out
    code, out, _ = run(capsys, "diff", old, old)
    assert (code, "3 stay" in out) == (0, True)


def test_a_share_shows_as_an_estimate(files: tuple[str, str, str], capsys: Capture) -> None:
    put(share=0.1, lost=2)
    old, new, _ = files
    _, out, err = run(capsys, "diff", old, new)
    assert "about 30 ± 16" in out
    assert "2 records of these days could not be written" in err
    _, out, _ = run(capsys, "diff", old, new, "--json")
    told = json.loads(out)
    assert told["lost"] == 2
    (change,) = told["changed"]
    assert change["tally"]["records"] == 3
    assert change["tally"]["requests"]["kind"] == "estimated"
    assert change["tally"]["requests"]["value"] == 30
    assert (change["before"], change["after"]["route"]) == (
        {"route": "local", "destination": ""},
        "decline",
    )


def test_what_cannot_be_told_is_no_pass(files: tuple[str, str, str], capsys: Capture) -> None:
    put()
    old, _, limit = files
    code, out, _ = run(capsys, "diff", old, limit)
    assert code == ExitCode.NEGATIVE
    assert "cannot be told" in out
    assert "local or decline" in out or "decline or local" in out
    assert "characters" in out


def test_without_records_nothing_is_compared(files: tuple[str, str, str], capsys: Capture) -> None:
    old, new, _ = files
    code, _, err = run(capsys, "diff", old, new)
    assert code == ExitCode.INPUT
    assert "route-records-none" in err


def test_records_travel_as_a_file(
    files: tuple[str, str, str], tmp_path: Path, capsys: Capture
) -> None:
    put(share=0.5)
    file = tmp_path / "records.jsonl"
    assert run(capsys, "records", "export", str(file))[:2] == (0, f"{file}: 3 records\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run(capsys, "records", "clear")[0] == 0
    old, new, _ = files
    code, out, _ = run(capsys, "diff", old, new, "--records", str(file))
    assert code == ExitCode.NEGATIVE
    assert "about 6 ± 2" in out
    code, _, err = run(capsys, "records", "export", str(file))  # it is there already
    assert (code, "route-records-unwritable" in err) == (ExitCode.RESOURCE, True)


def shown(out: str) -> Any:
    return json.loads(out)


def test_they_are_listed_and_cleared(capsys: Capture) -> None:
    assert run(capsys, "records", "list")[2] == "nothing is recorded\n"
    put(share=0.5)
    code, out, _ = run(capsys, "records", "list")
    assert code == 0
    assert out.splitlines()[1].split()[1:] == ["draft", "ticket", "local", "3", "6"]
    listed = shown(run(capsys, "records", "list", "--json")[1])
    assert [one["weight"] for one in listed["records"]] == [2.0] * 3
    assert shown(run(capsys, "records", "clear", "--json")[1]) == {
        "records": 3,
        "log_emptied": True,
    }
    assert run(capsys, "records", "clear")[1] == "0 records erased\n"
