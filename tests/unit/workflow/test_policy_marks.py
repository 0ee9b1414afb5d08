"""A home does not go back to an older signed policy unless somebody says so."""

from __future__ import annotations

import base64
import concurrent.futures
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.workflow.leaving import LEAVING

from edgewise.cli import main
from edgewise.cli.root import root
from edgewise.core.outcome import Route
from edgewise.core.request import Message, Request
from edgewise.core.state import DeviceState, LinkState
from edgewise.errors import EdgewiseError, InputError, IntegrityError
from edgewise.route import RouteEvidence
from edgewise.route.consent import ConsentLedger
from edgewise.route.facts import PolicyTrust
from edgewise.route.policy_file import parse_policy, public_key, sign_policy
from edgewise.route.policy_marks import MarkEvent, PolicyMarks
from edgewise.route.service import Router
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.draining import open_drain
from edgewise.workflow.hybrid import open_hybrid
from edgewise.workflow.policies import load_policy
from edgewise.workflow.routing import explain_route, open_router
from edgewise.workflow.serving import open_served

KEY = bytes(range(32))
OPEN = (
    """
name = "team"
revision = {revision}
feature = "{feature}"
require_signature = {signature}
"""
    + LEAVING
)
REQUEST = Request(messages=(Message(role="user", content="x"),), data_class="sensitive")


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    context = Context(Home(tmp_path / "home"))
    key = base64.b64encode(public_key(KEY)).decode()
    (context.home.folder("policy-keys") / "team.pub").write_text(key, encoding="ascii")
    return context


def write(
    path: Path, revision: int, *, feature: str = "a", signed: bool = True, signature: bool = True
) -> Path:
    text = OPEN.format(revision=revision, feature=feature, signature=str(signature).lower())
    path.write_text(text, encoding="utf-8")
    beside = path.with_name(f"{path.name}.sig")
    beside.unlink(missing_ok=True)
    if signed:
        beside.write_text(sign_policy(parse_policy(path), KEY), encoding="ascii")
    return path


def route(context: Context, path: Path | None = None) -> Route:
    router = Router(load_policy(context, path), ConsentLedger(context.home))
    return router.decide(REQUEST, DeviceState(link=LinkState.ONLINE), RouteEvidence()).route


def code(call: Callable[[], Any]) -> str:
    with pytest.raises(IntegrityError) as caught:
        call()
    assert "edgewise policy accept" in (caught.value.hint or "")
    return caught.value.code


def ways(context: Context, path: Path) -> list[Callable[[], Any]]:
    return [
        lambda: load_policy(context, path),
        lambda: open_router(context, path),
        lambda: open_hybrid(context, path),
        lambda: open_served(context, policy=path),
        lambda: open_drain(context, path),
        lambda: explain_route(context, REQUEST, policy=path),
    ]


def test_an_older_one_is_refused_wherever_it_is_loaded(context: Context, tmp_path: Path) -> None:
    path = write(tmp_path / "p.toml", 3)
    assert route(context, path) is Route.CLOUD
    write(path, 4)
    assert route(context, path) is Route.CLOUD
    write(path, 3)
    assert {code(way) for way in ways(context, path)} == {"policy-older"}
    write(path, 4, feature="b")
    assert {code(way) for way in ways(context, path)} == {"policy-revision-reused"}
    write(path, 4)
    assert route(context, path) is Route.CLOUD
    found = [(one.event, one.revision, one.key) for one in PolicyMarks(context.home).all()]
    assert found == [(MarkEvent.SEEN, 3, "team"), (MarkEvent.SEEN, 4, "team")]


@pytest.mark.parametrize("dates", ['issued_at = "2090-01-01"', 'expires_at = "2026-01-01"'])
def test_one_that_is_not_in_force_takes_nothing_from_the_one_that_is(
    context: Context, tmp_path: Path, dates: str
) -> None:
    path = write(tmp_path / "p.toml", 3)
    assert route(context, path) is Route.CLOUD
    staged = write(tmp_path / "next.toml", 9)
    staged.write_text(f"{dates}\n{staged.read_text()}", encoding="utf-8")
    (tmp_path / "next.toml.sig").write_text(sign_policy(parse_policy(staged), KEY), "ascii")
    assert route(context, staged) is not Route.CLOUD
    assert route(context, path) is Route.CLOUD


def test_the_homes_own_does_not_go_back_either(context: Context) -> None:
    path = write(context.home.root / "policy.toml", 4)
    assert route(context) is Route.CLOUD
    write(path, 3)
    assert code(lambda: load_policy(context)) == "policy-older"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "Hello"],
        ["route", "Hello"],
        ["queue", "drain"],
        ["queue", "add", "Hello", "--task", "chat", "--data-class", "personal"],
        ["consent", "grant", "--feature", "a", "--data-class", "personal", "--destination", "far",
         "--purpose", "help", "--standing", "--until", "2999-01-01"],
        ["serve"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)  # fmt: skip
def test_every_command_refuses_an_older_one(
    context: Context, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(context.home.root / "policy.toml", 4)
    load_policy(context)
    write(path, 3)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 4
    assert "policy-older" in capsys.readouterr().err


def test_a_question_moves_no_mark(context: Context, tmp_path: Path) -> None:
    path = write(tmp_path / "p.toml", 7)
    explain_route(context, REQUEST, policy=path)
    done = CliRunner().invoke(root, ["policy", "check", str(path)], standalone_mode=False)
    assert done.return_value == 0
    assert PolicyMarks(context.home).all() == ()
    load_policy(context, path)
    write(path, 9)
    explain_route(context, REQUEST, policy=path)
    assert [one.revision for one in PolicyMarks(context.home).all()] == [7]


def test_the_check_warns_of_an_older_one(context: Context, tmp_path: Path) -> None:
    path = write(tmp_path / "p.toml", 7)
    load_policy(context, path)
    write(path, 6)
    done = CliRunner().invoke(root, ["policy", "check", str(path), "--json"])
    (found,) = (one for one in json.loads(done.output)["findings"] if one["place"] == "revision")
    assert (found["code"], found["severity"]) == ("policy-older", "warning")


def test_going_back_is_said_and_kept(context: Context, tmp_path: Path) -> None:
    path = write(tmp_path / "p.toml", 5)
    newer = load_policy(context, path).policy.digest[:12]
    write(path, 4)
    older = parse_policy(path).digest[:12]
    done = CliRunner().invoke(root, ["policy", "accept", str(path)])
    assert done.exit_code == 0
    assert done.stdout == f"team: back from revision 5 ({newer}) to revision 4 ({older})\n"
    assert route(context, path) is Route.CLOUD
    again = CliRunner().invoke(root, ["policy", "accept", str(path)])
    assert "in force here already" in again.stdout
    events = [(one.event, one.revision) for one in PolicyMarks(context.home).all()]
    assert events == [(MarkEvent.SEEN, 5), (MarkEvent.ACCEPTED, 4)]
    listed = CliRunner().invoke(root, ["policy", "marks", "--json"])
    assert [one["revision"] for one in json.loads(listed.output)] == [5, 4]


def test_what_nobody_signed_cannot_be_accepted(context: Context, tmp_path: Path) -> None:
    path = write(tmp_path / "p.toml", 5, signed=False)
    with pytest.raises(InputError) as caught:
        root.main(["policy", "accept", str(path)], standalone_mode=False)
    assert caught.value.code == "policy-unsigned"


def test_taking_the_signature_away_gets_nothing(context: Context, tmp_path: Path) -> None:
    """An unsigned one has no mark; of a name that has one, nothing leaves under it."""
    path = write(tmp_path / "p.toml", 5, signed=False, signature=False)
    assert route(context, path) is Route.CLOUD
    assert PolicyMarks(context.home).all() == ()
    load_policy(context, write(path, 5))
    write(path, 6, signed=False, signature=False)
    loaded = load_policy(context, path)
    assert loaded.trust is PolicyTrust.UNTRUSTED
    assert "a signed one of its name was in force here" in loaded.reason
    assert route(context, path) is Route.DECLINE


@pytest.mark.parametrize("signed", [True, False])
def test_what_cannot_be_told_lets_nothing_leave(
    context: Context, tmp_path: Path, signed: bool
) -> None:
    path = write(tmp_path / "p.toml", 5, signed=signed, signature=False)
    (context.home.root / "state.sqlite").write_bytes(b"no database" * 1000)
    loaded = load_policy(context, path)
    assert loaded.trust is PolicyTrust.UNTRUSTED
    assert "cannot be told" in loaded.reason
    assert route(context, path) is Route.DECLINE


def test_a_mark_is_never_changed_and_a_damaged_one_is_no_absence(
    context: Context, tmp_path: Path
) -> None:
    load_policy(context, write(tmp_path / "p.toml", 5))
    with sqlite3.connect(context.home.root / "state.sqlite") as connection:
        for change in ("UPDATE policy_marks SET revision = 1", "DELETE FROM policy_marks"):
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(change)
        connection.execute("DROP TRIGGER policy_marks_unchanged")
        connection.execute("UPDATE policy_marks SET revision = 'five'")
    with pytest.raises(EdgewiseError) as caught:
        PolicyMarks(context.home).find("team")
    assert caught.value.code == "policy-marks-damaged"


def test_many_at_once_make_one_mark(context: Context, tmp_path: Path) -> None:
    policy = parse_policy(write(tmp_path / "p.toml", 5))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: PolicyMarks(context.home).see(policy, "team"), range(16)))
    assert {one.seq for one in found} == {1}
