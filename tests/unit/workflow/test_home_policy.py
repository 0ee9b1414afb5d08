"""The policy of a home: which file it is, and what an unsigned one may where keys are trusted."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest
from tests.unit.workflow.leaving import LEAVING

from edgewise.core.outcome import Route
from edgewise.core.request import Message, Request
from edgewise.core.state import DeviceState, LinkState
from edgewise.errors import InputError, IntegrityError
from edgewise.route import RouteEvidence
from edgewise.route.consent import ConsentLedger
from edgewise.route.facts import PolicyTrust
from edgewise.route.policy_file import parse_policy, public_key, sign_policy
from edgewise.route.service import Router
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.policies import has_policy, load_policy

KEY = bytes(range(32))
OPEN = (
    """
name = "team"
require_signature = false
"""
    + LEAVING
)
REQUEST = Request(messages=(Message(role="user", content="x"),), data_class="sensitive")
ONLINE = DeviceState(link=LinkState.ONLINE)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "home").mkdir()
    return Context(Home(tmp_path / "home"))


def write(context: Context, name: str, text: str) -> Path:
    path = context.home.root / name
    path.write_text(text, encoding="utf-8")
    return path


def trust_key(context: Context) -> None:
    folder = context.home.folder("policy-keys")
    key = base64.b64encode(public_key(KEY)).decode()
    (folder / "team.pub").write_text(key, encoding="ascii")


def sign(path: Path) -> None:
    line = sign_policy(parse_policy(path), KEY)
    path.with_name(f"{path.name}.sig").write_text(line, encoding="ascii")


def route(context: Context, path: Path | None = None) -> Route:
    router = Router(load_policy(context, path), ConsentLedger(context.home))
    return router.decide(REQUEST, ONLINE, RouteEvidence()).route


def test_an_unsigned_policy_lets_nothing_leave_where_keys_are_trusted(context: Context) -> None:
    path = write(context, "policy.toml", OPEN)
    assert route(context) is Route.CLOUD
    trust_key(context)
    assert route(context) is Route.DECLINE
    loaded = load_policy(context)
    assert loaded.trust is PolicyTrust.UNTRUSTED
    assert "trusts keys" in loaded.reason
    assert route(context, path) is Route.CLOUD  # named by who asks
    sign(path)
    assert load_policy(context).trust is PolicyTrust.SIGNED
    assert route(context) is Route.CLOUD


def test_two_policies_are_none(context: Context) -> None:
    trust_key(context)
    sign(write(context, "policy.json", '{"name": "team"}'))
    assert load_policy(context).policy.name == "team"
    write(context, "policy.toml", OPEN)
    for look in (load_policy, has_policy):
        with pytest.raises(InputError) as caught:
            look(context)
        assert caught.value.code == "policy-ambiguous"


def test_a_link_that_leads_nowhere_is_no_absence(context: Context) -> None:
    link = context.home.root / "policy.toml"
    link.symlink_to(context.home.root / "gone")
    assert has_policy(context)
    with pytest.raises(InputError) as caught:
        load_policy(context)
    assert caught.value.code == "policy-unreadable"
    link.unlink()
    path = write(context, "policy.toml", OPEN)
    path.with_name("policy.toml.sig").symlink_to(context.home.root / "gone")
    with pytest.raises(IntegrityError):
        load_policy(context)


def test_a_home_that_cannot_be_searched_is_a_typed_error(context: Context) -> None:
    write(context, "policy.toml", OPEN)
    if os.geteuid() == 0:  # to whom no folder is closed; a file in its place is closed to anybody
        context = Context(Home(context.home.root / "policy.toml"))
    else:
        context.home.root.chmod(0o600)
    try:
        for look in (load_policy, has_policy):
            with pytest.raises(InputError) as caught:
                look(context)
            assert caught.value.code == "policy-unreadable"
    finally:
        context.home.root.chmod(0o700)
