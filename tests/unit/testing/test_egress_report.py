"""The report's verdict, and the command that prints it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cli.egress import egress
from edgewise.errors import InputError
from edgewise.testing.egress import EgressCheck, EgressReport, EgressVerdict, Wall
from edgewise.testing.egress.judging import _dumps_nothing

FAIL, PASS, UNVERIFIED = EgressVerdict.FAIL, EgressVerdict.PASS, EgressVerdict.UNVERIFIED


def report(verdicts: list[EgressVerdict]) -> EgressReport:
    return EgressReport(
        walls=(Wall.AUDIT_HOOK,),
        missing=("no filter",),
        exit_status=0,
        processes=(),
        programs=(),
        sockets=(),
        lookups=(),
        writes=(),
        hits=(),
        checks=tuple(
            EgressCheck(name=f"check-{n}", verdict=verdict, reasons=(f"reason {n}",))
            for n, verdict in enumerate(verdicts)
        ),
    )


@given(st.lists(st.sampled_from(EgressVerdict), min_size=1, max_size=7))
def test_the_worst_verdict_is_the_reports(verdicts: list[EgressVerdict]) -> None:
    found = report(verdicts)
    assert (found.verdict is PASS) == (set(verdicts) == {PASS})
    assert (found.verdict is FAIL) == (FAIL in verdicts)
    assert len(found.failures) == verdicts.count(FAIL)
    assert msgspec.json.decode(msgspec.json.encode(found), type=EgressReport) == found
    assert all(f"reason {n}" in found.text() for n in range(len(verdicts)))


def test_a_check_that_does_not_exist_is_no_pass() -> None:
    with pytest.raises(KeyError):
        report([PASS]).check("telemetry")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="core dumps of Linux")
@pytest.mark.parametrize(
    ("limit", "pattern", "safe"),
    [
        (0, "core", True),
        (0, "|/usr/lib/systemd/systemd-coredump %P", False),
        (1, "core", True),
        (1, "|/usr/lib/systemd/systemd-coredump %P", True),
        (1, "@/run/coredump.socket", False),
        (-1, "core", False),
        (1 << 20, "/var/crash/core.%p", False),
    ],
)
def test_which_limits_hold_dumps_back(limit: int, pattern: str, safe: bool) -> None:
    assert _dumps_nothing(limit, pattern) is safe


def check(capsys, *words: str) -> tuple[int, dict[str, Any]]:
    code = egress.main(["check", "--json", *words], standalone_mode=False)
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_a_command_that_keeps_its_prompt(capsys) -> None:
    code, said = check(capsys, "--", sys.executable, "-c", "print(input())")
    assert said["verdict"] in {"pass", "unverified"}
    assert code == (0 if said["verdict"] == "pass" else 10)
    assert said["report"]["hits"] == []


def test_a_command_that_does_not(capsys) -> None:
    code, said = check(capsys, "--", sys.executable, "-c", "open('log', 'w').write(input())")
    assert (code, said["verdict"]) == (10, "fail")
    assert [Path(hit["place"]).name for hit in said["report"]["hits"]] == ["log"]


def test_for_a_reader(capsys) -> None:
    words = ["check", "--", sys.executable, "-c", "import sys; sys.exit('went wrong')"]
    egress.main(words, standalone_mode=False)
    out, err = capsys.readouterr()
    assert out.startswith("egress: ")
    assert "ended with 1" in err
    assert "went wrong" in err


def test_without_a_model_the_error_says_what_to_do() -> None:
    with pytest.raises(InputError) as caught:
        egress.main(["check"], standalone_mode=False)
    assert caught.value.code == "nothing-active"
