"""Every place where a request is routed records the decision once, where the policy says so."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.failure_lab import egress_victim as victim
from tests.unit.core.values import with_artifact
from tests.unit.route.cloud.servers import Authority, RawServer
from tests.unit.workflow.queue_world import Effects
from tests.unit.workflow.queue_world import World as QueueWorld
from tests.unit.workflow.worlds import World

from edgewise.core.outcome import Completed, Declined, Event, Route
from edgewise.core.request import Message, Request
from edgewise.core.state import LinkState
from edgewise.route.facts import PolicyTrust, RouteEvidence
from edgewise.route.policy import CloudUse, Policy, RecordRule, TaskRule
from edgewise.route.policy_diff import policy_diff
from edgewise.route.records import RecordStore, RouteRecord
from edgewise.store import Home
from edgewise.store.database import STATE_DATABASE
from edgewise.testing.egress import Canary, EgressVerdict, Wall, run_isolated
from edgewise.workflow.context import Context, Step
from edgewise.workflow.hybrid import open_hybrid
from edgewise.workflow.opening import open_session
from edgewise.workflow.serving import open_served

RULE = RecordRule(share=1.0)
ARTIFACT = b"GGUF and so on"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def world_of(home: Home, server: RawServer, authority: Authority, **fields: Any) -> World:
    fields.setdefault("records", RULE)
    return World(home, server, authority, **fields)


def asked(text: str = "hello", data_class: str = "personal", **fields: Any) -> Request:
    fields.setdefault("max_tokens", 50)
    return Request(messages=(Message(role="user", content=text),), data_class=data_class, **fields)


def kept(home: Home) -> tuple[RouteRecord, ...]:
    return RecordStore(home).read().records


def put(home: Home, **fields: Any) -> Policy:
    told: dict[str, Any] = {"name": "p", "records": RULE}
    policy = Policy(**(told | fields))
    home.root.mkdir(parents=True, exist_ok=True)
    (home.root / "policy.json").write_bytes(msgspec.json.encode(policy))
    return policy


def unqualified(home: Home) -> Context:
    """Return a home whose active bundle has no evidence: it is routed, and declined unread."""
    path = home.folder("staging", "fetch") / "m"
    path.write_bytes(ARTIFACT)
    home.adopt(path, hashlib.sha256(ARTIFACT).hexdigest())
    context = Context(home)
    bundle = with_artifact(hashlib.sha256(ARTIFACT).hexdigest(), len(ARTIFACT))
    context.bundles.add(bundle)
    context.bundles.activate(bundle.fingerprint)
    return context


def test_what_a_feature_routes_is_recorded_once(
    home: Home, server: RawServer, authority: Authority
) -> None:
    world = world_of(home, server, authority)
    hybrid = world.hybrid
    assert isinstance(hybrid.ask(asked()), Declined)  # nobody agreed yet
    world.agree(asked())  # the question decides again, and that is no request
    outcome = hybrid.ask(asked())  # so does the permit
    assert isinstance(outcome, Completed)
    hybrid.close()
    found = kept(home)
    assert sorted(str(one.route) for one in found) == ["cloud", "decline"]
    assert {(one.task, one.data_class, one.link) for one in found} == {
        ("chat", "personal", LinkState.ONLINE)
    }
    assert policy_diff(world.policy, world.policy, found).unchanged.records == 2


def test_asking_where_it_would_go_is_not_recorded(
    home: Home, server: RawServer, authority: Authority
) -> None:
    world = world_of(home, server, authority)
    world.hybrid.decide(asked())
    world.hybrid.question(asked())
    world.hybrid.close()
    assert kept(home) == ()


def test_a_server_decides_once_and_sends_without_another_record(
    home: Home, server: RawServer, authority: Authority
) -> None:
    world = world_of(home, server, authority)
    world.agree(asked())
    assert world.hybrid.decide(asked(), record=True).route is Route.CLOUD
    assert isinstance(world.hybrid.send(asked()), Completed)
    world.hybrid.close()
    assert [str(one.route) for one in kept(home)] == ["cloud"]


def test_a_local_decision_that_is_recorded_has_what_the_ledger_says(
    home: Home, server: RawServer, authority: Authority
) -> None:
    """Where the ledger changes nothing it is not read, but another policy might ask it."""
    world = world_of(home, server, authority)
    world.agree(asked())
    world.hybrid._known = lambda *, resident: RouteEvidence(  # type: ignore[assignment]
        fingerprint="f0" * 32, qualified=True, resident=True, trust=PolicyTrust.SIGNED
    )
    assert world.hybrid.decide(asked(), record=True).route is Route.LOCAL
    world.hybrid.close()
    (found,) = kept(home)
    assert [(one.destination, str(one.verdict)) for one in found.consents] == [("far", "granted")]
    task = msgspec.structs.replace(world.policy.tasks[0], cloud=CloudUse.PREFERRED)
    preferred = msgspec.structs.replace(world.policy, tasks=(task,))
    (change,) = policy_diff(world.policy, preferred, [found]).changed
    assert (str(change.before), str(change.after)) == ("local", "cloud far")


@pytest.mark.parametrize("local_only", [False, True])
def test_local_only_requests_are_left_out_unless_the_policy_names_them(
    local_only: bool, home: Home, server: RawServer, authority: Authority
) -> None:
    rule = RecordRule(share=1.0, local_only=local_only)
    world = world_of(home, server, authority, records=rule)
    world.hybrid.ask(asked(data_class="local-only"))
    world.hybrid.close()
    assert len(kept(home)) == local_only


def test_without_the_table_nothing_is_written(
    home: Home, server: RawServer, authority: Authority
) -> None:
    world = world_of(home, server, authority, records=None)
    world.hybrid.ask(asked())
    world.hybrid.close()
    assert kept(home) == ()


def test_a_session_alone_records_too(home: Home) -> None:
    context = unqualified(home)
    policy = put(home)
    session = open_session(context, policy=policy)
    assert isinstance(session.ask(asked()), Declined)
    wait_written(home, 1)
    (found,) = kept(home)
    assert (found.qualified, found.active, found.policy) == (False, True, policy.version)


def test_a_feature_and_its_session_record_a_request_once(home: Home) -> None:
    context = unqualified(home)
    put(home)
    with open_hybrid(context) as feature:
        assert isinstance(feature.ask(asked()), Declined)
    assert len(kept(home)) == 1


def test_a_servers_sessions_record_only_what_the_feature_does_not_route(home: Home) -> None:
    context = unqualified(home)
    put(home)
    sessions, feature, _ = open_served(context)
    assert feature is not None
    feature.decide(asked(), record=True)
    sessions[0].ask(asked())
    sessions[0].ask(Request(prompt="once upon", data_class="personal"))
    wait_written(home, 2)
    links = [one.link for one in kept(home)]
    assert sorted(link == "unknown" for link in links) == [False, True]


def wait_written(home: Home, count: int) -> None:
    """Wait for the writers of sessions, which end by themselves."""
    for thread in threading.enumerate():
        if thread.name == "route-records":
            thread.join(120)
    assert len(kept(home)) == count


def test_what_is_queued_is_recorded_when_it_is_tried(home: Home, authority: Authority) -> None:
    with RawServer(Effects(dedupe=True).answer, tls=authority.context()).running() as server:
        world = QueueWorld(home, server, authority.file)
        world.policy = msgspec.structs.replace(world.policy, records=RULE)
        world.queued()
        assert kept(home) == ()
        world.drain()  # nobody agreed yet
        world.agree()
        world.later()
        world.drain()
    found = kept(home)
    assert sorted(str(one.route) for one in found) == ["cloud", "decline"]
    assert {(one.task, one.only) for one in found} == {("summarise", "far")}
    assert policy_diff(world.policy, world.policy, found).unchanged.records == 2


def hold(home: Home) -> sqlite3.Connection:
    RecordStore(home).add((), RULE)
    connection = sqlite3.connect(home.root / STATE_DATABASE)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_what_cannot_be_recorded_is_said_and_the_answer_is_there(home: Home) -> None:
    put(home)
    steps: list[Step] = []
    held = hold(home)
    feature = open_hybrid(Context(home, report=steps.append))
    recorder = feature.router.recorder
    assert recorder is not None
    recorder._store._database._timeout_s = 0.01
    first = feature.ask(asked())
    assert recorder.flush(60)
    second = feature.ask(asked())
    feature.close()
    held.rollback()
    held.close()
    assert isinstance(first, Declined)
    events: list[Event] = [*first.events, *second.events]
    told = [event.message for event in events] + [step.message for step in steps]
    assert events[0].code == "record-lost"
    assert events[0].context["why"] == "database-locked"
    assert len(told) >= 2
    assert all("could not be recorded" in words for words in told)
    assert kept(home) == ()


@pytest.mark.slow
def test_records_hold_none_of_the_prompt(home: Home, tmp_path: Path) -> None:
    """Without a model; the failure lab does the same with one."""
    put(home, tasks=(TaskRule(name="chat"),), records=RecordRule(share=1.0, local_only=True))
    canary = Canary.mint()
    folder = tmp_path / "folder"
    folder.mkdir()
    report = run_isolated(
        Path(victim.__file__),
        "records_its_routes",
        canary=canary,
        home=home.root,
        folder=folder,
        stdin=canary.text.encode(),
        environment={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert report.exit_status == 0, report.text()
    assert report.failures == (), report.text()
    assert (report.sockets, report.lookups, report.hits) == ((), (), ())
    if Wall.SECCOMP in report.walls:
        assert report.check("files").verdict is EgressVerdict.PASS, report.text()
        assert any(STATE_DATABASE in path for path in report.writes)
    found = kept(home)
    assert len(found) == 3
    assert {one.task for one in found} == {"chat", None}
