"""Draining: authorised each time, in order, bounded, and no operation in another's way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.route.offline.world import (
    DAY_S,
    Scripted,
    Time,
    answered,
    draft,
    permit,
    queue_at,
)

from edgewise.errors import ResourceError
from edgewise.route.offline import (
    Answered,
    Attempt,
    Compatible,
    DeclinedSending,
    Drainer,
    DrainSettings,
    LinkState,
    MaybeSent,
    NeedsConsent,
    NotSent,
    OfflineQueue,
    Outgoing,
    Permitted,
    RetryLater,
    SendResult,
    State,
)

MAYBE = MaybeSent(link=LinkState.ONLINE, reason="silence")


def states(queue: OfflineQueue) -> list[State]:
    return [entry.state for entry in queue.entries()]


def test_the_intent_is_on_disk_before_the_first_byte(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft())

    def look() -> SendResult:
        (entry,) = queue_at(tmp_path, Time()).entries()
        assert (entry.state, entry.attempts) == (State.SENDING, 1)
        assert entry.may_have_happened
        return answered()

    report = Drainer(queue, Scripted(look), permit).drain()
    assert [entry.state for entry in report.handled] == [State.ANSWERED]
    assert not queue.entries()[0].may_have_happened


def test_every_attempt_is_authorised_anew_with_the_same_key(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft(idempotency_key="k"))
    licences = iter(["one", "two", "three"])
    seen: list[tuple[str, Any]] = []

    class Sender:
        def send(self, outgoing: Outgoing, *, attempt: Attempt) -> SendResult:
            seen.append((attempt.idempotency_key, attempt.licence))
            assert outgoing.payload == draft().payload
            return MAYBE

    def authorise(_outgoing: Outgoing) -> Permitted:
        return Permitted(licence=next(licences))

    for _ in range(3):
        Drainer(queue, Sender(), authorise).drain()
        time.go(3600.0)
    assert seen == [("k", "one"), ("k", "two"), ("k", "three")]


@pytest.mark.parametrize(
    ("given", "hold"),
    [
        (DeclinedSending(reason="the policy says no"), "declined"),
        (NeedsConsent(), "consent"),
        (None, "declined"),
        ("yes", "declined"),
        (Permitted(deduplicates=None), "declined"),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_permitted_waits_visibly_and_is_not_sent(
    tmp_path: Path, given: Any, hold: str
) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft())
    sender = Scripted()
    asked: list[int] = []

    def authorise(_outgoing: Outgoing) -> Any:
        asked.append(1)
        return given

    for _ in range(2):
        Drainer(queue, sender, authorise).drain()
    assert len(asked) == 1  # it is not asked again at once
    (entry,) = queue.entries()
    assert (entry.state, entry.hold, entry.attempts) == (State.QUEUED, hold, 0)
    assert entry.reason
    time.go(301.0)
    Drainer(queue, sender, permit).drain()
    assert states(queue) == [State.ANSWERED]
    assert len(sender.sent) == 1


@pytest.mark.parametrize("error", [ResourceError("database-locked", "the ledger"), KeyError("x")])
def test_an_authorisation_that_fails_allows_nothing(tmp_path: Path, error: Exception) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft())
    sender = Scripted()

    def authorise(_outgoing: Outgoing) -> Permitted:
        raise error

    Drainer(queue, sender, authorise).drain()
    (entry,) = queue.entries()
    assert (entry.state, entry.hold, sender.sent) == (State.QUEUED, "declined", [])


@pytest.mark.parametrize(("final", "ends"), [(True, False), (False, True)])
def test_a_decline_ends_it_where_it_is_final_or_configured(
    tmp_path: Path, *, final: bool, ends: bool
) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft())
    settings = DrainSettings(declined_ends=ends)
    no = DeclinedSending(reason="no", final=final)
    Drainer(queue, Scripted(), lambda _o: no, settings=settings).drain()
    (entry,) = queue.entries()
    assert (entry.state, entry.code, entry.reason) == (State.DECLINED, "declined", "no")


@pytest.mark.parametrize(
    ("versions", "state"),
    [
        ({"prompt_version": "p1", "schema_version": "s1"}, State.ANSWERED),
        ({"prompt_version": "p0"}, State.INCOMPATIBLE),
        ({"prompt_version": "p1", "schema_version": "s0"}, State.INCOMPATIBLE),
        ({}, State.ANSWERED),
    ],
)
def test_an_operation_of_another_version_is_never_sent(
    tmp_path: Path, versions: dict[str, str], state: State
) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft(**versions))
    sender = Scripted()
    compatible = Compatible(prompts=frozenset({"p1"}), schemas=frozenset({"s1"}))
    Drainer(queue, sender, permit, compatible=compatible).drain()
    assert states(queue) == [state]
    assert len(sender.sent) == (state is State.ANSWERED)


def test_one_that_may_have_happened_and_is_incompatible_now_is_unknown(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft(prompt_version="p1"))
    old = Compatible(prompts=frozenset({"p1"}))
    Drainer(queue, Scripted(MAYBE), permit, compatible=old).drain()
    time.go(60.0)
    Drainer(queue, Scripted(), permit).drain()
    (entry,) = queue.entries()
    assert (entry.state, entry.code) == (State.UNKNOWN, "incompatible")


def test_a_server_that_stopped_deduplicating_is_not_asked_twice(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft())
    Drainer(queue, Scripted(MAYBE), permit).drain()
    time.go(60.0)
    sender = Scripted()
    Drainer(queue, sender, lambda _o: Permitted(deduplicates=False)).drain()
    (entry,) = queue.entries()
    assert (entry.state, sender.sent) == (State.UNKNOWN, [])


def test_expiry_is_looked_at_before_every_send(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft(lifetime_s=50.0))

    def slow(_outgoing: Outgoing) -> Permitted:
        time.go(51.0)  # the user thinks about it; the lease still lives
        return Permitted()

    sender = Scripted()
    Drainer(queue, sender, slow).drain()
    assert (states(queue), sender.sent) == ([State.EXPIRED], [])


def test_one_that_expires_after_an_attempt_may_have_happened(tmp_path: Path) -> None:
    time = Time()
    queue = queue_at(tmp_path, time)
    queue.enqueue(draft())
    Drainer(queue, Scripted(MAYBE), permit).drain()
    time.go(DAY_S)
    Drainer(queue, Scripted(), permit).drain()
    (entry,) = queue.entries()
    assert (entry.state, entry.code) == (State.UNKNOWN, "expired")


@pytest.mark.parametrize(
    ("result", "state"),
    [(RetryLater(), State.FAILED), (MAYBE, State.UNKNOWN)],
)
def test_tries_are_bounded_and_the_pauses_grow(
    tmp_path: Path, result: SendResult, state: State
) -> None:
    time = Time()
    queue = queue_at(tmp_path, time, tries_max=6, backoff_s=10.0, backoff_max_s=100.0)
    queue.enqueue(draft())
    pauses = []
    sender = Scripted(*[result] * 9)
    for _ in range(9):
        report = Drainer(queue, sender, permit).drain()
        if report.next_due_s is not None:
            pauses.append(report.next_due_s)
            time.go(report.next_due_s)
    (entry,) = queue.entries()
    assert (entry.state, entry.code) == (state, "tries-exhausted")
    assert len(sender.sent) == 6
    for pause, full in zip(pauses, (10, 20, 40, 80, 100), strict=True):
        assert full / 2 <= pause <= full
    assert (
        len(
            {
                round(pause / full, 6)
                for pause, full in zip(pauses, (10, 20, 40, 80, 100), strict=True)
            }
        )
        > 1
    )


@pytest.mark.parametrize("after_s", [float("nan"), float("inf"), -5.0, 1e12])
def test_a_retry_after_that_is_none_does_no_harm(tmp_path: Path, after_s: float) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft())
    report = Drainer(queue, Scripted(RetryLater(after_s=after_s)), permit).drain()
    assert report.next_due_s is not None
    assert 0 < report.next_due_s <= 2.0


def boom() -> SendResult:
    raise RuntimeError("Tuesday, ten o'clock")


@pytest.mark.parametrize(
    "bad",
    [boom, lambda: None, lambda: "sent", lambda: Answered(status="200", answer="text")],  # type: ignore[arg-type]
)
def test_a_poisoned_operation_blocks_no_other(
    tmp_path: Path, bad: Callable[[], SendResult]
) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft(priority=9, deduplicates=False))
    for _ in range(3):
        queue.enqueue(draft())
    report = Drainer(queue, Scripted(bad), permit).drain()
    assert states(queue) == [State.UNKNOWN, *[State.ANSWERED] * 3]
    (told,) = report.unknown
    assert "Tuesday" not in told.reason


def test_a_payload_that_was_changed_on_disk_is_not_sent(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft(priority=9))
    queue.enqueue(draft())
    with queue.database.writing() as connection:
        connection.execute("UPDATE queue_operations SET payload = '{\"a\":1}' WHERE priority = 9")
    sender = Scripted()
    Drainer(queue, sender, permit).drain()
    first, second = queue.entries()
    assert (first.state, first.code) == (State.FAILED, "payload-damaged")
    assert second.state is State.ANSWERED
    assert len(sender.sent) == 1


def test_an_interrupt_leaves_the_truth_on_disk(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft(deduplicates=False))

    def interrupted() -> SendResult:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Drainer(queue, Scripted(interrupted), permit).drain()
    assert states(queue) == [State.UNKNOWN]


def test_priority_goes_first_then_age(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    for number, priority in enumerate([1, 9, 1, 5, 9]):
        queue.enqueue(draft(idempotency_key=f"{number}", priority=priority))
    sender = Scripted()
    Drainer(queue, sender, permit).drain()
    assert [key for key, _ in sender.sent] == ["1", "4", "3", "0", "2"]


def test_the_lowest_priority_does_not_starve(tmp_path: Path) -> None:
    """Urgent work comes in for ever, faster than it is done; the old one has its turn in time."""
    time = Time()
    queue = queue_at(tmp_path, time, ageing_s=60.0)
    queue.enqueue(draft(idempotency_key="low", priority=0))
    sender = Scripted()
    for minute in range(30):
        for number in range(2):
            queue.enqueue(draft(idempotency_key=f"{minute}-{number}", priority=9))
        Drainer(queue, sender, permit).drain(limit=1)
        time.go(60.0)
    keys = [key for key, _ in sender.sent]
    assert "low" in keys
    assert keys.index("low") <= 19  # 9 minutes to rise, then only what is older goes first


def test_a_destination_that_is_away_does_not_hold_up_another(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    for name in ("away", "away", "here"):
        queue.enqueue(draft(destination=name))
    sender = Scripted(NotSent(link=LinkState.DNS_LIES))
    report = Drainer(queue, sender, permit).drain()
    assert report.links == {"away": LinkState.DNS_LIES}
    assert states(queue) == [State.QUEUED, State.QUEUED, State.ANSWERED]
    assert len(sender.sent) == 2


def test_limit_and_stop(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    for _ in range(4):
        queue.enqueue(draft())
    drainer = Drainer(queue, Scripted(), permit)
    assert drainer.drain(stop=lambda: True).handled == ()
    assert len(drainer.drain(limit=3).handled) == 3
    report = drainer.drain()
    assert (len(report.handled), report.next_due_s) == (1, None)
