"""Under a policy that is over, or lets nothing leave, that is said before anything runs."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.route.policies import WHOLE

from edgewise.cli.chat import _say_policy
from edgewise.cli.root import root
from edgewise.cli.serve import _show, _show_json
from edgewise.core.outcome import Event
from edgewise.route.consent import ConsentLedger
from edgewise.route.facts import PolicyTrust
from edgewise.route.policy_file import Force, LoadedPolicy, parse_policy
from edgewise.route.policy_standing import standing
from edgewise.serve.server import Ready
from edgewise.store import Home
from edgewise.workflow.context import Context, Step
from edgewise.workflow.routing import open_router

NOW = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
SIGN = "require_signature = false\n"


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return Context(Home(tmp_path / "home"))


def write(context: Context, *, expires: str = "2999-01-01", unsigned: bool = True) -> Path:
    path = context.home.root / "policy.toml"
    text = WHOLE.replace("2999-01-01", expires)
    path.write_text((SIGN if unsigned else "") + text, encoding="utf-8")
    return path


def told(context: Context) -> list[Event]:
    found: list[Event] = []
    open_router(context, on_event=found.append)
    return found


def test_what_is_said_of_a_policy(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(WHOLE.replace("2999-01-01", "2026-11-30"), encoding="utf-8")
    policy = parse_policy(path)
    signed = LoadedPolicy(policy=policy, trust=PolicyTrust.SIGNED, reason="a key", key="team")
    found = standing(signed, NOW)
    assert found.text == (
        f"support revision 3 ({policy.digest[:12]}), signed with the key team, "
        "expired on 2026-11-30T00:00:00Z"
    )
    assert (found.force, found.leaves) == (Force.EXPIRED, False)
    before = standing(signed, dt.datetime(2026, 11, 29, tzinfo=dt.UTC))
    assert (before.force, before.leaves) == (Force.IN_FORCE, True)
    early = standing(signed, dt.datetime(2025, 12, 31, tzinfo=dt.UTC))
    assert early.force is Force.NOT_YET
    assert "in force from 2026-01-01T00:00:00Z on" in early.text


def test_a_policy_that_is_over_is_told_when_it_is_opened(context: Context) -> None:
    write(context)
    assert told(context) == []
    write(context, expires="2026-02-01")
    (event,) = told(context)
    assert event.code == "policy-not-in-force"
    assert "support revision 3 (" in event.message
    assert "unsigned, expired on 2026-02-01" in event.message
    assert event.context["force"] == "expired"


def test_without_a_listener_the_context_is_told(context: Context) -> None:
    write(context, expires="2026-02-01")
    steps: list[Step] = []
    open_router(Context(context.home, report=steps.append))
    assert [step.status for step in steps] == ["note"]
    assert "policy-not-in-force" in steps[0].message


def test_a_policy_that_is_not_trusted_is_told(context: Context) -> None:
    write(context, unsigned=False)
    (event,) = told(context)
    assert event.code == "policy-not-trusted"
    assert "there is no signature" in event.message


def test_what_was_over_stays_over_when_the_clock_goes_back(context: Context) -> None:
    write(context)
    ConsentLedger(context.home).expire(dt.datetime(2999, 2, 1, tzinfo=dt.UTC).timestamp())
    (event,) = told(context)
    assert event.context["force"] == "expired"


def test_run_says_it_before_anything_else(context: Context) -> None:
    write(context, expires="2026-02-01")
    done = CliRunner().invoke(root, ["run", "Hello", "--task", "draft"])
    assert "policy-not-in-force: nothing leaves under the policy support revision 3" in done.stderr


def test_the_check_ends_with_10(context: Context) -> None:
    path = str(write(context, expires="2026-02-01"))
    done = CliRunner().invoke(root, ["policy", "check", path], standalone_mode=False)
    assert done.return_value == 10
    assert "expired on 2026-02-01" in done.stdout.splitlines()[0]
    told = json.loads(CliRunner().invoke(root, ["policy", "check", path, "--json"]).stdout)
    assert (told["policy"]["force"], told["passed"]) == ("expired", False)


def test_a_chat_says_that_it_asks_no_policy(
    context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    _say_policy(context)
    assert capsys.readouterr().err == ""
    write(context, expires="2026-02-01")
    _say_policy(context)
    said = capsys.readouterr().err
    assert "a chat stays on this device" in said
    assert "expired on 2026-02-01" in said
    (context.home.root / "policy.json").write_text("{}", encoding="utf-8")
    _say_policy(context)
    assert "policy-ambiguous" in capsys.readouterr().err


def test_a_server_names_its_policy(context: Context, capsys: pytest.CaptureFixture[str]) -> None:
    write(context)
    router = open_router(context)
    ready = Ready(url="http://x", model="m", fingerprint="f", policy=router.standing())
    _show(ready, with_token=False)
    assert "policy      support revision 3 (" in capsys.readouterr().err
    _show_json(ready)
    assert json.loads(capsys.readouterr().out)["policy"]["revision"] == 3
