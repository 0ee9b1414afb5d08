"""Bad links on real sockets: what the queue makes of them, held against the server's ledger."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from tests.unit.route.offline.fault_server import FaultServer
from tests.unit.route.offline.world import (
    SocketSender,
    Time,
    draft,
    permit,
    queue_at,
)

from edgewise.route.offline import (
    Drainer,
    Entry,
    LinkEvidence,
    LinkState,
    OfflineQueue,
    State,
    TlsFlaw,
    link_state,
)

MAYBE = {
    "half-open": LinkState.HALF_OPEN,
    "reset-before": LinkState.HALF_OPEN,
    "portal-200": LinkState.CAPTIVE_PORTAL,
    "portal-302": LinkState.CAPTIVE_PORTAL,
    "portal-511": LinkState.CAPTIVE_PORTAL,
    "acts-then-resets": LinkState.HALF_OPEN,
    "acts-then-error-page": LinkState.CAPTIVE_PORTAL,
    "acts-then-cuts": LinkState.ONLINE,
    "slow": LinkState.HALF_OPEN,
    "500": LinkState.ONLINE,
}


def passes(queue: OfflineQueue, sender: SocketSender, time: Time, count: int) -> Entry:
    """Drain several times, with pauses that let every backoff pass; return the one operation."""
    for _ in range(count):
        Drainer(queue, sender, permit).drain()
        time.go(600.0)
    (entry,) = queue.entries()
    return entry


def scene(
    folder: Path, server: FaultServer, fault: str, *, dedupe: bool
) -> tuple[OfflineQueue, SocketSender, Time]:
    time = Time()
    queue = queue_at(folder, time)
    queue.enqueue(draft(idempotency_key="k", deduplicates=dedupe))
    server.script["k"] = [fault]
    path = "/ok/dedupe" if dedupe else "/ok/plain"
    return queue, SocketSender(server.port, lambda _name: path, timeout_s=0.3), time


@pytest.mark.parametrize(("fault", "link"), MAYBE.items())
def test_with_a_server_that_deduplicates_every_fault_ends_in_one_effect(
    tmp_path: Path, fault: str, link: LinkState
) -> None:
    with FaultServer() as server:
        queue, sender, time = scene(tmp_path, server, fault, dedupe=True)
        first = passes(queue, sender, time, 1)
        assert (first.state, first.hold) == (State.QUEUED, "link")
        assert first.may_have_happened
        assert str(link) in first.reason
        assert passes(queue, sender, time, 2).state is State.ANSWERED
        server.slow.set()
        server.settle()
        assert server.effects["k"] == 1
        assert server.requests["k"] == 2


@pytest.mark.parametrize(("fault", "link"), MAYBE.items())
def test_with_one_that_does_not_it_is_sent_once_and_the_user_is_told(
    tmp_path: Path, fault: str, link: LinkState
) -> None:
    with FaultServer() as server:
        queue, sender, time = scene(tmp_path, server, fault, dedupe=False)
        entry = passes(queue, sender, time, 3)
        assert (entry.state, entry.code) == (State.UNKNOWN, "maybe-sent")
        assert str(link) in entry.reason
        assert "may have happened" in entry.reason
        server.slow.set()
        server.settle()
        assert server.requests["k"] == 1
        assert server.effects["k"] <= 1


@pytest.mark.parametrize("status", ["429", "503"])
@pytest.mark.parametrize("dedupe", [True, False])
def test_retry_after_is_waited_for(tmp_path: Path, status: str, *, dedupe: bool) -> None:
    with FaultServer() as server:
        queue, sender, time = scene(tmp_path, server, status, dedupe=dedupe)
        Drainer(queue, sender, permit).drain()
        (entry,) = queue.entries()
        assert (entry.state, entry.hold) == (State.QUEUED, "server")
        assert not entry.may_have_happened
        time.go(119.0)
        Drainer(queue, sender, permit).drain()
        assert server.requests["k"] == 1
        time.go(2.0)
        Drainer(queue, sender, permit).drain()
        assert queue.entries()[0].state is State.ANSWERED
        assert server.effects["k"] == 1


def test_a_refusal_ends_it_and_nothing_happened(tmp_path: Path) -> None:
    with FaultServer() as server:
        queue, sender, time = scene(tmp_path, server, "400", dedupe=True)
        entry = passes(queue, sender, time, 2)
        assert (entry.state, entry.code) == (State.FAILED, "refused")
        assert server.effects["k"] == 0


def test_a_refusal_after_an_attempt_that_may_have_arrived_is_unknown(tmp_path: Path) -> None:
    with FaultServer() as server:
        queue, sender, time = scene(tmp_path, server, "acts-then-resets", dedupe=True)
        server.script["k"].append("401")
        entry = passes(queue, sender, time, 2)
        assert (entry.state, entry.code) == (State.UNKNOWN, "refused")
        assert server.effects["k"] == 1


def test_a_request_that_the_way_repeats_has_one_effect(tmp_path: Path) -> None:
    with FaultServer() as server:
        queue, sender, time = scene(tmp_path, server, "twice", dedupe=True)
        assert passes(queue, sender, time, 1).state is State.ANSWERED
        assert server.effects["k"] == 1


def test_offline_costs_no_try_and_stops_the_pass_for_that_destination(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]  # nobody listens there afterwards
    time = Time()
    queue = queue_at(tmp_path, time)
    for _ in range(3):
        queue.enqueue(draft(deduplicates=False))
    sender = SocketSender(port, lambda _name: "/ok/plain")
    for _ in range(20):  # more than tries_max
        report = Drainer(queue, sender, permit).drain()
        assert report.links == {"cloud": LinkState.OFFLINE}
        assert len(report.handled) == 1
        time.go(3600.0)
    assert {entry.state for entry in queue.entries()} == {State.QUEUED}
    assert {entry.tries for entry in queue.entries()} == {0}
    time.go(86400.0)
    Drainer(queue, sender, permit).drain()
    assert {entry.state for entry in queue.entries()} == {State.EXPIRED}


def test_an_answer_after_the_client_gave_up_is_that_of_the_second_attempt(tmp_path: Path) -> None:
    """The server acts, is slow, and the client leaves; the same key then brings the same answer."""
    with FaultServer() as server:
        queue, sender, time = scene(tmp_path, server, "slow", dedupe=True)
        threading.Timer(0.6, server.slow.set).start()
        entry = passes(queue, sender, time, 2)
        server.settle()
        assert entry.state is State.ANSWERED
        assert (server.effects["k"], server.requests["k"]) == (1, 2)
        (receipt,) = queue.receipts()
        assert (receipt.attempt, receipt.request_id) == (2, "req-1")


JSON = "application/json"


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        ({"resolved": False}, LinkState.OFFLINE),
        ({}, LinkState.OFFLINE),
        ({"connected": True, "tls": TlsFlaw.NOT_YET_VALID}, LinkState.CLOCK_SKEWED),
        ({"connected": True, "tls": TlsFlaw.EXPIRED}, LinkState.CLOCK_SKEWED),
        ({"connected": True, "tls": TlsFlaw.OTHER_HOST}, LinkState.DNS_LIES),
        ({"connected": True, "tls": TlsFlaw.UNTRUSTED}, LinkState.CAPTIVE_PORTAL),
        ({"connected": True}, LinkState.HALF_OPEN),
        ({"connected": True, "bytes_sent": 9}, LinkState.HALF_OPEN),
        ({"connected": True, "status": 511}, LinkState.CAPTIVE_PORTAL),
        ({"connected": True, "status": 302, "other_origin": True}, LinkState.CAPTIVE_PORTAL),
        ({"connected": True, "status": 200, "content_type": "text/html; charset=x"},
         LinkState.CAPTIVE_PORTAL),
        ({"connected": True, "status": 404, "content_type": "text/html"}, LinkState.ONLINE),
        ({"connected": True, "status": 200, "content_type": JSON, "clock_off_s": -301.0},
         LinkState.CLOCK_SKEWED),
        ({"connected": True, "status": 200, "content_type": JSON, "clock_off_s": 299.0},
         LinkState.ONLINE),
        ({"connected": True, "status": 200, "content_type": "Application/JSON; charset=utf-8"},
         LinkState.ONLINE),
    ],
)  # fmt: skip
def test_the_state_of_a_link_is_told_from_what_was_seen(
    seen: dict[str, object], state: LinkState
) -> None:
    assert link_state(LinkEvidence(**seen)) is state  # type: ignore[arg-type]


def test_only_sent_bytes_make_a_maybe() -> None:
    assert not LinkEvidence(connected=True).maybe_received
    assert LinkEvidence(connected=True, bytes_sent=1).maybe_received
