"""Local-only requests through every failure, inside walls: nothing of the prompt gets out."""

from __future__ import annotations

import doctest
import json
import os
import sys
from pathlib import Path

import pytest
from tests.docs.pages import DOCS, examples
from tests.failure_lab import egress_victim as victim
from tests.failure_lab.test_artifact_damaged import damage

from edgewise.route import DEFAULT_POLICY
from edgewise.route.records import RecordStore
from edgewise.runtimes.llamacpp.engine import LlamaCppEngine
from edgewise.store import Home
from edgewise.testing.egress import Canary, EgressReport, EgressVerdict, Wall, run_isolated

pytestmark = [pytest.mark.model, pytest.mark.slow]

PASS, FAIL = EgressVerdict.PASS, EgressVerdict.FAIL
ALL = ("sockets", "names", "programs", "files", "output", "crash-dumps", "end")

Told = list[dict[str, str]]


def run(
    role: str, home: Path, folder: Path, canary: Canary | None = None
) -> tuple[EgressReport, Told]:
    """Run the victim; its cores, if there were any, would lie in its folder."""
    canary = canary or Canary.mint()
    seen: dict[str, bytes] = {}
    report = run_isolated(
        Path(victim.__file__),
        role,
        canary=canary,
        home=home,
        folder=folder,
        stdin=canary.text.encode(),
        environment={"PYTHONPATH": os.pathsep.join(sys.path)},
        on_output=seen.__setitem__,
    )
    told = [json.loads(line) for line in seen["stdout"].splitlines()]
    assert told or report.exit_status, seen["stderr"].decode()
    return report, told


def assert_nothing_got_out(report: EgressReport) -> None:
    """Hold every check to what this system lets be verified.

    The application here may leave a dump of its own; that is its own affair, and its workers',
    which start after it has allowed that, may not.
    """
    assert report.failures == (), report.text()
    assert (report.sockets, report.lookups, report.hits) == ((), (), ())
    for process in report.processes[1:]:
        assert process.core_limit_bytes in {0, 1} or not is_worker(process.command), process
    assert "supervisor failed" not in report.text()
    if Wall.SECCOMP not in report.walls:
        return
    for name in ALL:
        if name != "crash-dumps":
            assert report.check(name).verdict is PASS, report.text()


def is_worker(command: tuple[str, ...]) -> bool:
    return any(word.endswith("bootstrap.py") for word in command)


@pytest.fixture(scope="module")
def lab(ready_home: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[EgressReport, Told]:
    return run("everything", ready_home, tmp_path_factory.mktemp("lab"))


@pytest.mark.parametrize("failure", victim.FAILURES)
def test_the_failure_happened(failure: str, lab: tuple[EgressReport, Told]) -> None:
    codes = {told["failure"]: told["code"] for told in lab[1]}
    assert codes[failure] in victim.FAILURES[failure][1]


def test_no_failure_lets_anything_out(lab: tuple[EgressReport, Told]) -> None:
    report, _ = lab
    assert_nothing_got_out(report)
    workers = [p for p in report.processes if is_worker(p.command)]
    assert len(workers) >= 6, "one for each that was struck, and they were watched"
    assert {p.core_limit_bytes for p in workers} <= {0, 1}


def test_an_application_that_dies(ready_home: Path, tmp_path: Path) -> None:
    report, _ = run("application_dies", ready_home, tmp_path)
    assert report.exit_status == -9
    assert_nothing_got_out(report)


def test_a_damaged_artifact(own_home: Path, tmp_path: Path) -> None:
    damage(own_home, "cut")
    report, told = run("artifact_damaged", own_home, tmp_path)
    assert told == [{"failure": "artifact", "code": "artifact-corrupt"}]
    assert_nothing_got_out(report)


@pytest.fixture
def token_canary(shared_engine: LlamaCppEngine) -> Canary:
    canary = Canary.mint()
    ids = shared_engine.tokenize(f" {canary.text}", add_special=False, parse_special=False)
    return canary.with_tokens(ids)


def test_two_at_once_keep_no_state_on_disk_unasked(
    ready_home: Path, tmp_path: Path, token_canary: Canary
) -> None:
    report, told = run("two_at_once", ready_home, tmp_path, token_canary)
    assert [one["code"] for one in told] == ["0", "0"]
    assert_nothing_got_out(report)
    assert not [path for path in report.writes if "prefix" in path]


def test_states_on_disk_hold_the_prompt_and_the_check_says_so(
    own_home: Path, tmp_path: Path, token_canary: Canary
) -> None:
    """Decision 0022: they are opt-in for this reason. The tokens stand in them in the clear."""
    report, _ = run("asks_with_states_on_disk", own_home, tmp_path, token_canary)
    assert report.check("files").verdict is FAIL, report.text()
    assert {hit.form.split()[0] for hit in report.hits} == {"tokens"}
    assert all("/prefixes/" in hit.place or "/staging/" in hit.place for hit in report.hits)


def test_a_policy_that_records_decisions_records_none_of_the_prompt(
    own_home: Path, tmp_path: Path, token_canary: Canary
) -> None:
    policy = 'name = "p"\n[[tasks]]\nname = "chat"\n[records]\nshare = 1\nlocal_only = true\n'
    (own_home / "policy.toml").write_text(policy)
    report, told = run("records_its_routes", own_home, tmp_path, token_canary)
    assert [one["code"] for one in told] == ["local", "decline", "decline"]
    assert_nothing_got_out(report)
    held = RecordStore(Home(own_home)).read()
    assert [str(one.route) for one in held.records].count("decline") == 2
    assert len(held.records) == 3


def test_a_disk_that_is_full_while_a_state_is_written(own_home: Path, tmp_path: Path) -> None:
    report, told = run("disk_is_full", own_home, tmp_path)
    assert told[0]["code"] in {"length", "stop"}
    assert_nothing_got_out(report)
    assert not list((own_home / "prefixes").rglob("*.prefix"))


def test_the_example_of_the_page(
    ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(ready_home))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    text = examples(DOCS / "egress.md", with_model=True)
    test = doctest.DocTestParser().get_doctest(text, {}, "egress.md", "egress.md", 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    assert test.examples
    assert runner.run(test, out=said.append).failed == 0, "\n".join(said)


def test_the_command(
    ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    from edgewise.cli.egress import egress

    monkeypatch.setenv("EDGEWISE_HOME", str(ready_home))
    monkeypatch.chdir(tmp_path)
    code = egress.main(["check", "--max-tokens", "4", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == {
        "outcome": "completed",
        "route": "local",
        "policy": DEFAULT_POLICY.version,
    }
    assert found["report"]["hits"] == []
    assert (code == 0) == (found["verdict"] == "pass")
    assert found["verdict"] != "fail"
