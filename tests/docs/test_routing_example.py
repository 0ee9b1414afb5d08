"""The program of the page on routing asks, records what the user says, and gets its answer."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgewise.core.outcome import Completed, Declined, Outcome
from edgewise.core.state import LinkState
from edgewise.route.cloud.secrets import secret_variable
from edgewise.route.policy import DeviceLimits
from edgewise.store import Home
from tests.docs.pages import DOCS, examples
from tests.unit.route.cloud.servers import Authority, RawServer
from tests.unit.workflow.worlds import SECRET_KEY, World, echo


def run(code: str, home: Home, monkeypatch: pytest.MonkeyPatch) -> tuple[Outcome, str]:
    """Run the example under the policy of a world; return its outcome and what it printed."""
    names: dict[str, Any] = {}
    monkeypatch.setenv("EDGEWISE_HOME", str(home.root))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "routing.md", "exec"), names)
    return names["outcome"], printed.getvalue()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Yield a home whose policy has a real server behind TLS, and which has no model."""
    authority = Authority(tmp_path)
    with RawServer(echo, tls=authority.context()).running() as server:
        anywhere = DeviceLimits(links=tuple(LinkState))
        world = World(
            Home(tmp_path / "home"), server, authority, require_signature=False, device=anywhere
        )
        secret = world.policy.destinations[0].secret
        if secret is not None:
            monkeypatch.setenv(secret_variable(secret), SECRET_KEY)
        world.context.home.root.mkdir(parents=True, exist_ok=True)
        policy = world.context.home.root / "policy.json"
        policy.write_bytes(msgspec.json.encode(world.policy))
        yield world.context.home


def test_the_program_asks_the_user_and_gets_an_answer(home: Home, monkeypatch) -> None:
    code = examples(DOCS / "routing.md", with_model=True)
    outcome, printed = run(code, home, monkeypatch)
    assert isinstance(outcome, Completed)
    assert outcome.text == "You wrote: Draft an answer."
    assert "This request would leave this device." in printed
    assert "answered: cloud far stop" in printed


def test_a_no_declines(home: Home, monkeypatch) -> None:
    code = examples(DOCS / "routing.md", with_model=True)
    assert code.count("return Choice.ONCE") == 1
    outcome, printed = run(code.replace("Choice.ONCE", "Choice.NO"), home, monkeypatch)
    assert isinstance(outcome, Declined)
    assert "declined:" in printed
