"""The queue with router, consent, permits and client, against a server that counts its effects."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.route.cloud.servers import (
    DONE,
    FINISH,
    Authority,
    RawServer,
    chunked,
    delta,
    hang,
    raw,
    status,
    unread,
)
from tests.unit.workflow.queue_world import DETECTORS, Effects, World, reset

from edgewise.core.outcome import FinishReason
from edgewise.core.request import DataClass, Message, Request
from edgewise.core.state import LinkState
from edgewise.errors import InputError, IntegrityError
from edgewise.route.consent import ConsentLedger, ConsentScope, Origin
from edgewise.route.destinations import Price, Terms
from edgewise.route.facts import PolicyTrust
from edgewise.route.offline import (
    DocumentVersion,
    DrainSettings,
    Refused,
    State,
)
from edgewise.route.offline import LinkState as Met
from edgewise.route.policy import CloudUse, DataClassRule, MinimiseRule, Policy, TaskRule
from edgewise.store import Home
from edgewise.workflow.late_answers import read_late_answer

MAIL = "ada.lovelace@example.org"
PAGE = status(200, b"<html>Welcome to the hotel</html>", kind="text/html")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=[True, False], ids=["dedupes", "plain"])
def effects(request: pytest.FixtureRequest) -> Effects:
    return Effects(dedupe=request.param)


@pytest.fixture
def good() -> Effects:
    return Effects(dedupe=True)


@pytest.fixture
def server(authority: Authority) -> Iterator[RawServer]:
    with RawServer(hang, tls=authority.context()).running() as found:
        yield found


@pytest.fixture
def world(tmp_path: Path, server: RawServer, authority: Authority) -> World:
    return World(Home(tmp_path / "home"), server, authority.file, timeout_s=2.0)


def codes(found: object) -> list[str]:
    assert isinstance(found, Refused), found
    return [reason.code for reason in found.reasons]


# -- what may wait


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"task": "chat"}, "not-delay-safe"),
        ({"task": "unheard"}, "not-delay-safe"),
        ({"data_class": "local-only"}, "local-only"),
        ({"data_class": "diary"}, "local-only"),
        ({"data_class": "unheard"}, "data-class-unknown"),
        ({"data_class": "sensitive"}, "data-class-not-stored"),
        ({"destination": "elsewhere"}, "destination-not-permitted"),
        ({"stop": ("x",)}, "cloud-request-unsupported"),
    ],
)
def test_what_may_not_wait_is_refused_and_not_written(
    world: World, options: dict[str, Any], code: str
) -> None:
    world.policy = msgspec.structs.replace(
        world.policy, data_classes=(DataClassRule(name="diary"),)
    )
    assert codes(world.add("canary-text-4711", **options)) == [code]
    assert world.queue.entries() == ()
    for path in world.context.home.root.rglob("*"):
        assert not path.is_file() or b"canary-text-4711" not in path.read_bytes(), path


def test_a_class_that_is_treated_as_personal_may_wait(world: World) -> None:
    like = DataClassRule(name="ticket", like=DataClass.PERSONAL)
    world.policy = msgspec.structs.replace(world.policy, data_classes=(like,))
    assert world.state(world.queued(data_class="ticket")) is State.QUEUED


def test_a_denied_consent_and_an_expired_policy_are_told_when_it_is_queued(world: World) -> None:
    world.ledger.deny(world.scope(), origin=Origin.API)
    assert codes(world.add()) == ["route-declined"]
    world.policy = msgspec.structs.replace(world.policy, expires_at="2020-01-01T00:00:00Z")
    assert "route-declined" in codes(world.add())


def test_files_are_named_by_absolute_paths(world: World, tmp_path: Path) -> None:
    note = DocumentVersion(document_id="note-7", version="v1")
    for options in ({"apply_to": Path("x.txt")}, {"apply_to": tmp_path / "x", "document": note}):
        with pytest.raises(InputError):
            world.add(**options)
    assert world.queue.entries() == ()


def test_a_key_that_no_server_would_be_sent_is_refused_at_once(world: World) -> None:
    with pytest.raises(InputError) as found:
        world.add(idempotency_key="a.b")
    assert found.value.context == {"field": "idempotency_key"}


# -- the ordinary way


def test_offline_nothing_is_tried_and_then_it_is_sent_once(
    world: World, server: RawServer, effects: Effects
) -> None:
    server.answers = [effects.answer]
    world.change(idempotent=effects.dedupe)
    world.link = LinkState.OFFLINE
    name = world.queued(idempotency_key="k1")
    world.agree()
    report = world.drain()
    assert (report.handled, report.links) == ((), {"far": Met.OFFLINE})
    assert world.entry(name).attempts == 0
    assert server.connections == 0
    assert [one.in_force for one in world.ledger.entries()] == [True]
    world.link = LinkState.ONLINE
    (handled,) = world.drain().handled
    assert handled.state is State.ANSWERED
    assert sum(effects.done.values()) == 1
    (receipt,) = world.queue.receipts()
    assert (receipt.destination, receipt.request_id) == ("far", "req-1")
    assert [one.in_force for one in world.ledger.entries()] == [False]
    assert world.drain().handled == ()
    if effects.dedupe:
        assert list(effects.done) == ["k1"]
    late = read_late_answer(handled.operation, world.queue.answer(name) or b"")
    assert late.text == "Short: A long text."
    assert late.finish is FinishReason.STOP


def test_the_bytes_that_leave_are_those_that_were_queued(
    world: World, server: RawServer, good: Effects
) -> None:
    server.answers = [good.answer]
    operation = world.entry(world.queued("Grüße, 日本 \u2028 done")).operation
    world.agree()
    world.drain()
    (exchange,) = server.exchanges
    assert exchange.sha256 == operation.payload_sha256
    assert exchange.headers["idempotency-key"] == operation.idempotency_key


def test_a_network_that_goes_away_ends_the_pass(
    world: World, server: RawServer, good: Effects
) -> None:
    server.answers = [good.answer]
    names = [world.queued(f"Text {number}") for number in range(3)]
    world.agree(uses=9)
    states = iter([LinkState.ONLINE] * 4 + [LinkState.OFFLINE] * 9)
    report = world.drain(link=lambda: next(states))
    assert [entry.state for entry in report.handled] == [State.ANSWERED]
    assert [world.entry(name).attempts for name in names] == [1, 0, 0]
    assert len(world.drain(limit=1).handled) == 1
    assert world.drain(stop=lambda: True).handled == ()


# -- consent and policy


def test_without_consent_it_waits_visibly_and_one_consent_is_one_attempt(
    world: World, server: RawServer, good: Effects
) -> None:
    server.answers = [good.answer]
    first, second = world.queued("One"), world.queued("Two")
    world.drain()
    for name in (first, second):
        assert (world.state(name), world.entry(name).hold) == (State.QUEUED, "consent")
    assert server.connections == 0
    world.agree()
    world.later(400)
    world.drain()
    assert [world.state(name) for name in (first, second)] == [State.ANSWERED, State.QUEUED]
    assert world.entry(second).hold == "consent"
    assert server.connections == 1


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": (TaskRule(name="summarise", cloud=CloudUse.NEVER, delay_safe=True),)},
        {"tasks": (TaskRule(name="summarise", cloud=CloudUse.PREFERRED, destinations=("far",)),)},
        {"tasks": (TaskRule(name="chat"),)},
        {"feature": "another"},
        {"minimise": (MinimiseRule(fields=("stop",)),)},
    ],
    ids=["never", "no-delay", "no-task", "feature", "fields"],
)
def test_what_the_policy_does_not_allow_any_more_ends_and_is_not_sent(
    world: World, server: RawServer, change: dict[str, Any]
) -> None:
    name = world.queued()
    world.agree(uses=9)
    world.policy = msgspec.structs.replace(world.policy, **change)
    (entry,) = world.drain().handled
    assert (entry.state, entry.code) == (State.DECLINED, "declined")
    assert entry.reason
    assert world.entry(name).attempts == 0
    assert server.connections == 0


@pytest.mark.parametrize(
    "change",
    [
        {"url": "https://127.0.0.1:9/v1"},
        {"model": "far-2b"},
        {"purpose": "training"},
        {"region": "US"},
        {"retention_days": 30},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_operation_is_bound_to_the_destination_as_it_was_declared(
    world: World, server: RawServer, good: Effects, change: dict[str, Any]
) -> None:
    server.answers = [good.answer]
    name = world.queued()
    world.agree(uses=9)
    before = {key: getattr(world.place, key) for key in change}
    world.change(**change)
    (entry,) = world.drain().handled
    assert entry.state is State.DECLINED
    assert "declared otherwise" in entry.reason
    assert server.connections == 0
    # Declared as it was, and asked for by a person, it goes.
    world.change(**before, timeout_s=1.5)
    assert world.queue.retry(name).done
    assert [one.state for one in world.drain().handled] == [State.ANSWERED]


def test_a_policy_that_nobody_signed_ends_nothing(
    world: World, server: RawServer, good: Effects
) -> None:
    server.answers = [good.answer]
    name = world.queued()
    world.agree(uses=9)
    before, world.policy = world.policy, Policy(name="other")
    world.trust = PolicyTrust.UNSIGNED
    world.drain()
    assert (world.state(name), world.entry(name).hold) == (State.QUEUED, "declined")
    assert "does not let" in world.entry(name).reason
    world.later(400)
    world.policy, world.trust = before, PolicyTrust.SIGNED
    world.drain()
    assert world.state(name) is State.ANSWERED


def test_a_consent_that_another_process_uses_in_this_moment_is_asked_for_again(
    world: World, server: RawServer
) -> None:
    class Late(ConsentLedger):
        def consume(self, scope: ConsentScope, terms: Terms) -> str:
            super().consume(scope, terms)  # somebody else's turn comes first
            return super().consume(scope, terms)

    name = world.queued()
    world.agree()
    world.ledger = Late(world.context.home)
    world.drain()
    assert (world.state(name), world.entry(name).hold) == (State.QUEUED, "consent")
    assert server.connections == 0


def test_a_destination_that_deduplicates_no_more_is_not_asked_twice(
    world: World, server: RawServer
) -> None:
    effects = Effects(dedupe=True)
    server.answers = [effects.reset, effects.answer]
    name = world.queued()
    world.agree(uses=9)
    world.drain()
    world.change(idempotent=False)
    world.later()
    world.drain()
    assert world.state(name) is State.UNKNOWN
    assert server.connections == 1


def test_another_destination_is_neither_used_nor_its_consent(
    world: World, server: RawServer, good: Effects
) -> None:
    server.answers = [good.answer]
    near = msgspec.structs.replace(world.place, name="near")
    name = world.queued()
    task = msgspec.structs.replace(world.policy.tasks[0], destinations=("near", "far"))
    world.policy = msgspec.structs.replace(
        world.policy, tasks=(task,), destinations=(near, world.place)
    )
    other = world.scope(destination="near")
    world.ledger.grant(other, world.policy.terms("near"), origin=Origin.API)
    world.drain()
    assert (world.state(name), world.entry(name).hold) == (State.QUEUED, "consent")
    assert world.ledger.state(other, world.policy.terms("near")).verdict == "granted"
    world.agree()
    world.later(400)
    world.drain()
    assert world.state(name) is State.ANSWERED
    assert world.ledger.state(other, world.policy.terms("near")).verdict == "granted"


def test_a_decline_waits_or_ends_as_the_settings_say(world: World, server: RawServer) -> None:
    name = world.queued()
    world.agree(uses=9)
    world.policy = msgspec.structs.replace(world.policy, expires_at="2020-01-01T00:00:00Z")
    world.drain()
    assert (world.state(name), world.entry(name).hold) == (State.QUEUED, "declined")
    assert "expired" in world.entry(name).reason
    world.later(400)
    world.drain(settings=DrainSettings(declined_ends=True))
    assert world.state(name) is State.DECLINED
    assert server.connections == 0


def test_a_payload_that_was_swapped_in_the_file_is_not_sent(
    world: World, server: RawServer
) -> None:
    name = world.queued()
    world.agree()
    other = b'{"messages":[],"model":"far-1b"}'
    with world.queue.database.writing() as connection:
        connection.execute(
            "UPDATE queue_operations SET payload = ?, payload_sha256 = ?",
            (other, hashlib.sha256(other).hexdigest()),
        )
    world.drain()
    assert (world.state(name), server.connections) == (State.DECLINED, 0)


def test_the_days_limit_is_seen_before_consent_is_used_up(
    world: World, server: RawServer, good: Effects
) -> None:
    server.answers = [good.answer]
    price = Price(currency="EUR", input_per_million=1, output_per_million=1, daily_limit=0)
    world.change(price=price)
    name = world.queued()
    world.agree()
    world.drain()
    assert (world.state(name), world.entry(name).hold) == (State.QUEUED, "declined")
    assert "limit of spending" in world.entry(name).reason
    # There is something left, and not enough: the client says so, and nothing is sent.
    world.change(price=msgspec.structs.replace(price, daily_limit=0.000001))
    world.later(400)
    world.drain()
    assert (world.state(name), world.entry(name).hold) == (State.QUEUED, "spending")
    assert world.entry(name).reason.startswith("nothing was sent: ")
    assert "cloud-spend-limit" in world.entry(name).reason
    assert not world.entry(name).may_have_happened
    assert server.connections == 0


# -- bad links


def test_an_answer_that_never_comes(world: World, server: RawServer, effects: Effects) -> None:
    world.change(idempotent=effects.dedupe, timeout_s=0.3)
    server.answers = [effects.then(hang), effects.answer]
    name = world.queued()
    world.agree(uses=9)
    report = world.drain()
    assert report.links == {"far": Met.HALF_OPEN}
    expect_no_second_effect(world, effects, name)


def test_a_reset_after_the_request_was_read(
    world: World, server: RawServer, effects: Effects
) -> None:
    world.change(idempotent=effects.dedupe)
    server.answers = [effects.reset, effects.answer]
    name = world.queued()
    world.agree(uses=9)
    assert world.drain().links == {"far": Met.HALF_OPEN}
    expect_no_second_effect(world, effects, name)


def test_a_page_in_place_of_the_answer(world: World, server: RawServer, effects: Effects) -> None:
    world.change(idempotent=effects.dedupe)
    server.answers = [effects.then(PAGE), effects.answer]
    name = world.queued()
    world.agree(uses=9)
    assert world.drain().links == {"far": Met.CAPTIVE_PORTAL}
    expect_no_second_effect(world, effects, name)


def test_an_answer_that_is_cut(world: World, server: RawServer, effects: Effects) -> None:
    world.change(idempotent=effects.dedupe)
    server.answers = [effects.then(chunked(delta("Sho"), whole=False)), effects.answer]
    name = world.queued()
    world.agree(uses=9)
    world.drain()
    expect_no_second_effect(world, effects, name)


def expect_no_second_effect(world: World, effects: Effects, name: str) -> None:
    """After an attempt that may have acted: sent again under the same key, or told as unknown."""
    first = world.entry(name)
    assert first.may_have_happened
    assert first.state is (State.QUEUED if effects.dedupe else State.UNKNOWN)
    world.later()
    world.drain()
    assert world.state(name) is (State.ANSWERED if effects.dedupe else State.UNKNOWN)
    assert list(effects.done.values()) == [1]
    assert sum(effects.asked.values()) == (2 if effects.dedupe else 1)


def test_the_client_repeats_nothing_by_itself(world: World, server: RawServer) -> None:
    server.answers = [status(500)]
    world.change(retries=5)
    name = world.queued()
    world.agree(uses=9)
    world.drain()
    assert server.connections == world.entry(name).attempts == 1


@pytest.mark.parametrize("number", [503, 429])
def test_a_server_that_asks_to_come_again_is_left_alone_until_then(
    world: World, server: RawServer, effects: Effects, number: int
) -> None:
    world.change(idempotent=effects.dedupe)
    server.answers = [status(number, Retry_After="900"), effects.answer]
    first, second = world.queued("One"), world.queued("Two")
    world.agree(uses=9)
    world.drain()
    assert (world.state(first), world.entry(first).hold) == (State.QUEUED, "server")
    assert not world.entry(first).may_have_happened
    # The second is not tried at a server that has just said so, and keeps its consent.
    assert (world.entry(second).hold, world.entry(second).attempts) == ("declined", 0)
    world.later(600)
    world.drain()
    assert [world.state(one) for one in (first, second)] == [State.QUEUED, State.ANSWERED]
    world.later(600)
    world.drain()
    assert world.state(first) is State.ANSWERED
    assert sum(effects.done.values()) == 2


def test_a_503_that_says_nothing_may_be_a_gateways(
    world: World, server: RawServer, effects: Effects
) -> None:
    world.change(idempotent=effects.dedupe)
    server.answers = [effects.then(status(503)), effects.answer]
    name = world.queued()
    world.agree(uses=9)
    world.drain()
    expect_no_second_effect(world, effects, name)


@pytest.mark.parametrize("number", [400, 401, 404, 422])
def test_a_refusal_ends_it(world: World, server: RawServer, number: int) -> None:
    server.answers = [status(number)]
    name = world.queued()
    world.agree(uses=9)
    world.drain()
    entry = world.entry(name)
    assert (entry.state, entry.code) == (State.FAILED, "refused")
    assert str(number) in entry.reason
    assert not entry.may_have_happened


def test_a_content_filter_is_a_final_no(world: World, server: RawServer) -> None:
    server.answers = [chunked(delta("Sho"), delta(finish="content_filter"))]
    name = world.queued()
    world.agree(uses=9)
    world.drain()
    assert world.state(name) is State.FAILED
    assert "cloud-content-filtered" in world.entry(name).reason
    assert server.connections == 1


def test_whoever_cannot_show_who_it_is_is_sent_nothing(
    world: World, server: RawServer, authority: Authority, good: Effects, tmp_path: Path
) -> None:
    (tmp_path / "portal").mkdir()
    past = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    for tls, met in [
        (Authority(tmp_path / "portal").context(), Met.CAPTIVE_PORTAL),
        (authority.context("elsewhere.example"), Met.DNS_LIES),
        (authority.context(not_after=past), Met.CLOCK_SKEWED),
    ]:
        server._tls = tls
        name = world.queued()
        world.agree()
        assert world.drain().links == {"far": met}
        entry = world.entry(name)
        assert (entry.state, entry.hold, entry.tries) == (State.QUEUED, "link", 0)
        assert not entry.may_have_happened
        world.queue.cancel(name)
    assert server.exchanges == []
    server._tls, server.answers = authority.context(), [good.answer]
    name = world.queued()
    world.agree()
    world.drain()
    assert world.state(name) is State.ANSWERED


def test_nobody_there_costs_no_try(
    world: World, server: RawServer, authority: Authority, tmp_path: Path
) -> None:
    with RawServer(hang, tls=authority.context()).running() as gone:
        other = World(Home(tmp_path / "other"), gone, authority.file)
    name = other.queued()
    other.agree()
    assert other.drain().links == {"far": Met.OFFLINE}
    entry = other.entry(name)
    assert (entry.state, entry.hold, entry.tries, entry.attempts) == (State.QUEUED, "link", 0, 1)
    assert server.connections == 0


def test_a_missing_key_is_no_verdict_of_the_server(world: World, server: RawServer) -> None:
    world.change(secret="far-key")
    name, second = world.queued("One"), world.queued("Two")
    world.agree(uses=9)
    world.drain()
    entry = world.entry(name)
    assert (entry.state, entry.hold, entry.attempts) == (State.QUEUED, "declined", 0)
    assert "secret-missing" in entry.reason
    assert "secret-missing" in entry.reason
    assert "secret-missing" in world.entry(second).reason
    assert world.entry(second).attempts == 0
    assert server.connections == 0


def test_garbage_is_no_answer(world: World, server: RawServer) -> None:
    server.answers = [raw(b"\x00\xff" * 100), chunked(FINISH[:20], DONE)]
    name = world.queued()
    world.agree(uses=9)
    world.drain()
    assert world.entry(name).may_have_happened
    world.later()
    world.drain()
    assert world.state(name) is State.QUEUED
    assert world.queue.receipts() == ()


def test_before_the_request_was_read_it_may_have_happened_too(
    world: World, server: RawServer
) -> None:
    server.answers = [unread(reset)]
    world.change(idempotent=False)
    name = world.queued()
    world.agree()
    world.drain()
    assert world.state(name) is State.UNKNOWN


# -- placeholders


LETTER = Request(
    messages=(Message(role="user", content=f"Write to {MAIL} and Grace Hopper."),),
    max_tokens=50,
    task="summarise",
    data_class="personal",
)


def test_what_placeholders_stand_for_lies_nowhere_and_comes_back_by_the_same_request(
    world: World, server: RawServer, good: Effects
) -> None:
    server.answers = [good.answer]
    text = LETTER.messages[0].content
    assert codes(world.add(text)) == ["placeholders"]
    name = world.queued(text, accept_placeholders=True)
    world.agree()
    (entry,) = world.drain().handled
    answer = world.queue.answer(name) or b""
    for path in world.context.home.root.rglob("*"):
        held = path.read_bytes() if path.is_file() else b""
        assert MAIL.encode() not in held
        assert b"Hopper" not in held
    assert all(MAIL.encode() not in body for body in good.bodies)
    late = read_late_answer(entry.operation, answer)
    assert not late.restored
    assert "placeholders-kept" in [event.code for event in late.events]
    same = read_late_answer(
        entry.operation, answer, policy=world.policy, request=LETTER, detectors=DETECTORS
    )
    assert (same.restored, same.text) == (True, f"Short: {text}")
    assert "placeholders-kept" not in [event.code for event in same.events]
    # Another letter of the same form would give other people's names: it gives none.
    message = Message(role="user", content="Write to eve@example.org and Grace Hopper!")
    other = msgspec.structs.replace(LETTER, messages=(message,))
    wrong = read_late_answer(
        entry.operation, answer, policy=world.policy, request=other, detectors=DETECTORS
    )
    assert not wrong.restored
    assert "eve@" not in wrong.text


def test_another_letter_of_the_same_form_is_told_by_its_document(world: World) -> None:
    """Two requests can be the same once minimised; that is the limit of the proof."""
    first = world.entry(world.queued(LETTER.messages[0].content, accept_placeholders=True))
    message = Message(role="user", content="Write to eve@example.org and Grace Hopper.")
    second = world.entry(world.queued(message.content, accept_placeholders=True))
    assert first.operation.payload_sha256 == second.operation.payload_sha256


def test_an_answer_that_is_none_of_the_clients(world: World) -> None:
    operation = world.entry(world.queued(document=DocumentVersion(document_id="d", version="v")))
    with pytest.raises(IntegrityError) as found:
        read_late_answer(operation.operation, json.dumps({"text": "x"}).encode())
    assert found.value.code == "answer-unreadable"
