"""What waits is read again before it is sent: nothing goes that today's detectors would replace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.minimise import read_cases
from tests.unit.route.cloud.servers import Authority, RawServer, hang
from tests.unit.workflow.queue_world import DETECTORS, Effects, World

from edgewise.core.request import Message
from edgewise.core.tools import ToolCall
from edgewise.errors import UnsupportedError
from edgewise.route.minimise import PlaceholderMap, default_detectors, leftovers, minimise
from edgewise.route.offline import State
from edgewise.store import Home

KNOWN = default_detectors(contacts=("Grace Hopper", "Ada Lovelace"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority) -> Iterator[RawServer]:
    with RawServer(hang, tls=authority.context()).running() as found:
        yield found


@pytest.fixture
def world(tmp_path: Path, server: RawServer, authority: Authority) -> World:
    found = World(Home(tmp_path / "home"), server, authority.file, timeout_s=2.0)
    server.answers = [Effects(dedupe=True).answer]
    return found


def test_a_contact_that_was_added_since_ends_it_and_uses_no_consent(
    world: World, server: RawServer
) -> None:
    name = world.queued("Write to Ada Lovelace about Tuesday.")
    world.agree()
    (entry,) = world.drain(detectors=KNOWN).handled
    assert (entry.state, entry.code) == (State.DECLINED, "declined")
    assert "1 of kind contact" in entry.reason
    assert "Ada" not in entry.reason
    assert (world.entry(name).attempts, server.connections) == (0, 0)
    assert [one.in_force for one in world.ledger.entries()] == [True]
    # A person's wish changes nothing about it as long as the contact stands.
    assert world.queue.retry(name).done
    assert [one.state for one in world.drain(detectors=KNOWN).handled] == [State.DECLINED]
    assert server.connections == 0


def test_what_was_replaced_then_is_no_find_now(world: World, server: RawServer) -> None:
    text = "Tell Grace Hopper (grace@example.org), password: hunter2-Xyz!, about Tuesday."
    world.queued(text, accept_placeholders=True)
    world.agree()
    (entry,) = world.drain(detectors=KNOWN).handled
    assert entry.state is State.ANSWERED
    assert server.connections == 1
    assert b"hunter2" not in server.exchanges[0].body


def test_without_detectors_of_its_own_a_drain_looks_for_all_but_contacts(
    world: World, server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Queued by detectors that knew less, as an earlier version's may have.
    monkeypatch.setattr("tests.unit.workflow.queue_world.DETECTORS", ())
    world.queued("The account is DE89 3704 0044 0532 0130 00.")
    world.agree()
    (entry,) = world.drain().handled
    assert entry.state is State.DECLINED
    assert "1 of kind iban" in entry.reason
    assert server.connections == 0


def test_without_the_detectors_nothing_is_sent(
    world: World, server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(**_: Any) -> Any:
        raise UnsupportedError("minimise-library-missing", "it is not installed")

    name = world.queued()
    world.agree()
    monkeypatch.setattr("edgewise.workflow.draining.default_detectors", missing)
    with pytest.raises(UnsupportedError):
        world.drain()
    assert (world.state(name), server.connections) == (State.QUEUED, 0)


def test_a_detector_that_fails_sends_nothing(world: World, server: RawServer) -> None:
    class Broken:
        kinds = frozenset[Any]()
        limits = ""

        def find(self, _folded: Any) -> Any:
            raise RuntimeError("Ada Lovelace")

    name = world.queued()
    world.agree()
    world.drain(detectors=(Broken(),))
    entry = world.entry(name)
    assert (entry.state, entry.hold) == (State.QUEUED, "declined")
    assert "Ada" not in entry.reason
    assert server.connections == 0


def test_nothing_is_left_in_the_labelled_cases() -> None:
    """The same detectors find nothing in what they have minimised."""
    made: dict[tuple[str, ...], Any] = {}
    count = 0
    for case in read_cases():
        detectors = made.setdefault(case.contacts, default_detectors(contacts=case.contacts))
        done = minimise({"text": case.text}, ["text"], detectors, PlaceholderMap())
        assert leftovers(done.fields, detectors) == {}, case
        count += 1
    assert count >= 400


def test_nothing_is_left_in_arguments_of_tools() -> None:
    arguments = json.dumps({"password": "Xk9-tango", "to": "a@example.org", "n": 4111111111111111})
    call = ToolCall(id="c1", name="send", arguments=arguments)
    messages = (Message(role="assistant", content="", tool_calls=(call,)),)
    done = minimise({"messages": messages}, ["messages"], DETECTORS, PlaceholderMap())
    assert "tango" not in str(done.fields)
    assert leftovers(done.fields, DETECTORS) == {}
    assert set(leftovers({"messages": messages}, DETECTORS)) == {"SECRET", "EMAIL", "CARD"}


def test_a_placeholder_hides_nothing_that_stands_beside_it() -> None:
    fields = {
        "text": "[EMAIL_1] and eve@example.org, password: [SECRET_1] or password: Tr0ub4dor&3"
    }
    assert leftovers(fields, DETECTORS) == {"EMAIL": 1, "SECRET": 1}
