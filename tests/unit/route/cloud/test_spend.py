"""Spending: the worst case is reserved first, and no two processes pass the limit together."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.route.cloud.servers import (
    FINISH,
    GOOD,
    MODEL,
    Answer,
    Desk,
    RawServer,
    at,
    delta,
    hello,
    raw,
    status,
    stream,
    usage,
)

from edgewise.core.quantity import Declared, Estimated
from edgewise.errors import EdgewiseError, IntegrityError
from edgewise.route.cloud import CloudFault
from edgewise.route.cloud.client import TEMPLATE_TOKENS
from edgewise.route.cloud.spend import Reservation, SpendLedger, SpendRefused, _cost
from edgewise.route.destinations import Destination, Price
from edgewise.store import Home

UNIT = Price(currency="EUR", input_per_million=1e6, output_per_million=1e6, daily_limit=100.0)
FAR = Destination(name="far", url="https://far.example/v1", model=MODEL)
TODAY = dt.date(2026, 11, 30)


def ledger(root: Path, day: dt.date = TODAY) -> SpendLedger:
    return SpendLedger(Home(root), today=lambda: day)


def reserve(book: SpendLedger, tokens: int, price: Price = UNIT) -> Reservation:
    made = book.reserve(FAR, price, prompt_tokens=tokens, completion_tokens=0)
    assert isinstance(made, Reservation), made
    return made


def refused(book: SpendLedger, tokens: int, price: Price = UNIT) -> SpendRefused:
    made = book.reserve(FAR, price, prompt_tokens=tokens, completion_tokens=0)
    assert isinstance(made, SpendRefused), made
    return made


def test_the_worst_case_counts_until_it_is_settled(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    first = reserve(book, 60)
    assert first.amount == Estimated(value=60.0, source="most tokens at the declared price")
    assert refused(book, 41).left.number == 40
    cost = book.settle(first, prompt_tokens=4, completion_tokens=6)
    assert cost == Declared(value=10.0, source="the server's usage at the declared price")
    second = reserve(book, 90)
    assert refused(book, 1).left.number == 0
    book.release(second)
    spent = book.spent(FAR, UNIT)
    assert (spent.stated.number, spent.reserved.number, spent.limit.number) == (10, 0, 100)
    assert (spent.day, spent.currency) == ("2026-11-30", "EUR")


def test_stated_and_reserved_amounts_are_kept_apart(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.settle(reserve(book, 5), prompt_tokens=1, completion_tokens=2)
    reserve(book, 7)
    spent = ledger(tmp_path).spent(FAR, UNIT)
    assert isinstance(spent.stated, Declared)
    assert isinstance(spent.reserved, Estimated)
    assert (spent.stated.number, spent.reserved.number) == (3, 7)


def test_a_reservation_is_closed_once(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    made = reserve(book, 5)
    book.settle(made, prompt_tokens=1, completion_tokens=0)
    for again in (
        lambda: book.release(made),
        lambda: book.settle(made, prompt_tokens=0, completion_tokens=0),
    ):
        with pytest.raises(IntegrityError) as caught:
            again()
        assert caught.value.code == "spend-settled"
    assert book.spent(FAR, UNIT).stated.number == 1


def test_each_day_and_each_destination_and_currency_has_a_limit_of_its_own(tmp_path: Path) -> None:
    reserve(ledger(tmp_path), 100)
    refused(ledger(tmp_path), 1)
    reserve(ledger(tmp_path, TODAY + dt.timedelta(days=1)), 100)
    dollars = Price(currency="USD", input_per_million=1e6, output_per_million=0, daily_limit=100)
    reserve(ledger(tmp_path), 100, dollars)


def test_a_clock_that_goes_back_opens_no_second_limit(tmp_path: Path) -> None:
    reserve(ledger(tmp_path), 100)
    refused(ledger(tmp_path, TODAY - dt.timedelta(days=1)), 1)
    refused(ledger(tmp_path, dt.date(1970, 1, 1)), 1)


@settings(deadline=None)
@given(st.integers(0, 10**7), st.integers(0, 10**7), st.floats(0, 1e5), st.floats(0, 1e5))
def test_a_cost_is_never_rounded_down(
    prompt: int, completion: int, per_input: float, per_output: float
) -> None:
    price = Price(
        currency="EUR", input_per_million=per_input, output_per_million=per_output, daily_limit=1
    )
    from fractions import Fraction

    exact = prompt * Fraction(str(per_input)) + completion * Fraction(str(per_output))
    assert exact <= _cost(price, prompt, completion) < exact + 1


def test_decimal_prices_are_exact() -> None:
    price = Price(currency="EUR", input_per_million=0.1, output_per_million=0.2, daily_limit=1)
    assert _cost(price, 10, 5) == 2  # 10 · 0.1 + 5 · 0.2 millionths, and not 3


def test_absurd_amounts_are_refused_or_counted_as_the_most(tmp_path: Path) -> None:
    price = Price(currency="EUR", input_per_million=9e11, output_per_million=9e11, daily_limit=9e11)
    book = ledger(tmp_path)
    refused(book, 10**9, price)
    made = reserve(book, 1, price)
    assert book.settle(made, prompt_tokens=2**39, completion_tokens=2**39).number == 1e9


def test_a_ledger_that_is_locked_or_damaged_lets_nothing_be_sent(
    desk: Desk, tmp_path: Path
) -> None:
    root = tmp_path / "home"
    with RawServer(stream(*GOOD)).running() as server:
        destination = at(server, price=UNIT)
        desk.ledger._database._timeout_s = 0.05
        reserve(desk.ledger, 1)
        other = sqlite3.connect(root / "state.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(EdgewiseError) as caught:
            desk.ask(destination)
        assert caught.value.code == "database-locked"
        other.close()
        for extra in root.glob("state.sqlite*"):
            extra.unlink()
        (root / "state.sqlite").write_bytes(b"this is no database" * 999)
        with pytest.raises(EdgewiseError) as caught:
            desk.ask(destination)
        assert caught.value.code == "database-damaged"
        assert (server.connections, desk.keys_read) == (0, [])


# What an ask makes of it.


def priced(server: RawServer, limit: float = 1e6) -> Destination:
    price = Price(currency="EUR", input_per_million=1e6, output_per_million=2e6, daily_limit=limit)
    return at(server, price=price)


def counted(desk: Desk, destination: Destination) -> tuple[float, float]:
    assert destination.price is not None
    spent = desk.ledger.spent(destination, destination.price)
    return spent.stated.number, spent.reserved.number


def test_a_request_beyond_the_limit_is_not_sent(desk: Desk) -> None:
    with RawServer(stream(*GOOD)).running() as server:
        failure = desk.fails(priced(server, limit=1.0))
        assert (server.connections, desk.keys_read) == (0, [])
    assert (failure.fault, failure.code) == (CloudFault.SPEND_LIMIT, "cloud-spend-limit")
    assert (failure.attempts, failure.may_have_acted, failure.usage) == (0, False, None)


def test_the_servers_usage_takes_the_worst_cases_place(desk: Desk) -> None:
    with RawServer(stream(*GOOD)).running() as server:
        destination = priced(server)
        answer = desk.answers(destination)
    assert answer.usage.cost == Declared(
        value=13.0, source="the server's usage at the declared price"
    )
    assert counted(desk, destination) == (13, 0)


@pytest.mark.parametrize("told", [(), (usage(prompt=-1),), (usage(completion=None),)])
def test_without_usage_the_worst_case_stands(desk: Desk, told: tuple[bytes, ...]) -> None:
    payload = hello(max_tokens=10)
    with RawServer(stream(delta("Hi"), FINISH, *told, delta(finish=None))).running() as server:
        destination = priced(server)
        answer = desk.answers(destination, payload)
    worst = len(payload.body) + TEMPLATE_TOKENS + 2 * 10
    assert answer.usage.cost == Estimated(value=worst, source="most tokens at the declared price")
    assert "cloud-usage-unknown" in [one.code for one in answer.events]
    assert counted(desk, destination) == (0, worst)


def test_a_server_that_states_more_than_can_be_is_counted_and_told(desk: Desk) -> None:
    with RawServer(stream(delta("Hi"), FINISH, usage(10**6, 0))).running() as server:
        destination = priced(server)
        answer = desk.answers(destination)
    assert "cloud-cost-above-worst-case" in [one.code for one in answer.events]
    assert counted(desk, destination) == (10**6, 0)


@pytest.mark.parametrize(
    ("answer", "kept"),
    [(status(400), False), (status(429), False), (status(500), True), (raw(b""), True),
     (stream(delta("Hel")), True)],
)  # fmt: skip
def test_a_failure_counts_unless_the_server_did_nothing(
    desk: Desk, answer: Answer, kept: bool
) -> None:
    payload = hello(max_tokens=10)
    with RawServer(answer).running() as server:
        destination = priced(server)
        failure = desk.fails(destination, payload)
    worst = len(payload.body) + TEMPLATE_TOKENS + 2 * 10
    assert counted(desk, destination) == (0, worst if kept else 0)
    assert (failure.usage is not None) == kept


def test_attempts_under_one_key_are_one_cost(desk: Desk) -> None:
    with RawServer(status(500), stream(*GOOD)).running() as server:
        small = hello(max_tokens=1)
        roomy = Price(currency="EUR", input_per_million=1, output_per_million=1, daily_limit=9)
        destination = at(server, price=roomy, idempotent=True)
        assert desk.answers(destination, small).attempts == 2
    stated, reserved = counted(desk, destination)
    assert (round(stated * 1e6), reserved) == (10, 0)


# Across processes.


def _spend(root: str, each: int, times: int, results: Any) -> None:
    book = ledger(Path(root))
    made = [book.reserve(FAR, UNIT, prompt_tokens=each, completion_tokens=0) for _ in range(times)]
    results.put(sum(isinstance(one, Reservation) for one in made))


def test_eight_processes_do_not_overspend(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [
        context.Process(target=_spend, args=(str(tmp_path), 3, 10, results)) for _ in range(8)
    ]
    for worker in workers:
        worker.start()
    granted = sum(results.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join(60)
    assert granted == 33  # 33 times 3 of 100; the 34th would pass it
    assert ledger(tmp_path).spent(FAR, UNIT).reserved.number == 99


def _reserve_and_die(root: str) -> None:
    reserve(ledger(Path(root)), 70)
    os._exit(9)


def test_a_reservation_outlives_the_process_that_made_it(tmp_path: Path) -> None:
    worker = multiprocessing.get_context("spawn").Process(
        target=_reserve_and_die, args=(str(tmp_path),)
    )
    worker.start()
    worker.join(60)
    assert worker.exitcode == 9
    assert refused(ledger(tmp_path), 31).left.number == 30
