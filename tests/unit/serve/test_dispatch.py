"""The dispatcher: turns, cancels, deadlines, the failure budget, and stopping."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.unit.serve.fakes import FakeSession, completed, failed, provenance

from edgewise.core.outcome import Completed, Declined, Failed, FinishReason, Outcome, Route
from edgewise.core.request import Message, Request
from edgewise.errors import AdapterError, EdgewiseError, InputError, ResourceError
from edgewise.run.session import ANSWERS_FAULTS
from edgewise.serve.dispatch import Dispatcher
from edgewise.serve.limits import Limits
from edgewise.serve.ticket import Ticket

LONG = ("word ",) * 2000
GONE = ResourceError("client-gone", "the client went away")


def request(text: str = "hi", **fields: Any) -> Request:
    return Request(messages=(Message(role="user", content=text),), **fields)


def run(
    work: Callable[[Dispatcher], Awaitable[Any]],
    *sessions: FakeSession,
    log: Callable[[str], None] = lambda _line: None,
    **limits: Any,
) -> Any:
    """Run something on a loop with a dispatcher over the sessions."""

    async def main() -> Any:
        dispatcher = Dispatcher(sessions, Limits(**limits), log=log)
        try:
            return await work(dispatcher)
        finally:
            await asyncio.to_thread(dispatcher.close)

    return asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.001)


async def code_of(ticket: Ticket) -> str:
    with pytest.raises(EdgewiseError) as caught:
        await ticket.result()
    return caught.value.code


def test_an_answer_in_chunks_and_whole() -> None:
    async def work(dispatcher: Dispatcher) -> None:
        ticket = dispatcher.submit(request(), "a", chunks=True)
        texts = []
        while (chunks := await ticket.take()) is not None:
            texts += [chunk.text for chunk in chunks]
        outcome = await ticket.result()
        assert isinstance(outcome, Completed)
        assert "".join(texts) == outcome.text == "Hello w\u00f6rld"
        whole = dispatcher.submit(request(), "a", chunks=False)
        assert await whole.take() is None
        assert (await whole.result()).text == outcome.text

    run(work, FakeSession())


def test_clients_take_turns() -> None:
    session = FakeSession(step_s=0.002)

    async def work(dispatcher: Dispatcher) -> None:
        tickets = [dispatcher.submit(request("first"), "x", chunks=False)]
        await until(lambda: dispatcher.running == 1)
        tickets += [
            dispatcher.submit(request(name), name[0], chunks=False)
            for name in ("a1", "a2", "a3", "b1", "b2")
        ]
        for ticket in tickets:
            await ticket.result()

    run(work, session)
    asked = [r.messages[-1].content for r in session.asked]
    assert asked == ["first", "a1", "b1", "a2", "b2", "a3"]


def test_lanes_answer_side_by_side() -> None:
    one, two = (FakeSession(LONG, step_s=0.001) for _ in range(2))

    async def work(dispatcher: Dispatcher) -> None:
        tickets = [dispatcher.submit(request(max_tokens=20), "a", chunks=False) for _ in range(2)]
        await until(lambda: dispatcher.running == 2)
        for ticket in tickets:
            await ticket.result()

    run(work, one, two)
    assert len(one.asked) == len(two.asked) == 1


def test_a_queued_request_is_cancelled_without_being_asked() -> None:
    session = FakeSession(LONG, step_s=0.001)

    async def work(dispatcher: Dispatcher) -> None:
        running = dispatcher.submit(request("running", max_tokens=50), "a", chunks=False)
        await until(lambda: dispatcher.running == 1)
        queued = dispatcher.submit(request("queued"), "a", chunks=False)
        dispatcher.cancel(queued, GONE)
        assert await code_of(queued) == "client-gone"
        assert dispatcher.queued == 0
        assert (await running.result()).finish is FinishReason.LENGTH

    run(work, session)
    assert [r.messages[-1].content for r in session.asked] == ["running"]
    assert session.cancelled == 0


@pytest.mark.parametrize("phase", ["load", "decode"])
def test_a_running_request_is_cancelled_and_the_next_is_unharmed(phase: str) -> None:
    session = FakeSession(LONG, step_s=0.001, load_s=0.1)

    async def work(dispatcher: Dispatcher) -> float:
        hit = dispatcher.submit(request("hit", max_tokens=2000), "a", chunks=phase == "decode")
        spared = dispatcher.submit(request("spared", max_tokens=20), "b", chunks=False)
        if phase == "load":
            await until(lambda: dispatcher.running == 1)
        else:
            assert await hit.take()
        started = time.perf_counter()
        dispatcher.cancel(hit, GONE)
        dispatcher.cancel(hit, GONE)
        assert await code_of(hit) == "client-gone"
        took_s = time.perf_counter() - started
        assert (await spared.result()).tokens.completion == 20
        return took_s

    took_s = run(work, session)
    assert session.cancelled == 1
    assert took_s < (0.05 if phase == "decode" else 0.3)


def test_a_cancel_after_the_end_changes_nothing() -> None:
    session = FakeSession()

    async def work(dispatcher: Dispatcher) -> None:
        ticket = dispatcher.submit(request(), "a", chunks=False)
        await ticket.result()
        dispatcher.cancel(ticket, GONE)
        assert isinstance(await ticket.result(), Completed)
        assert isinstance(await dispatcher.submit(request(), "a", chunks=False).result(), Completed)

    run(work, session)
    assert session.cancelled == 0


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    async def work(dispatcher: Dispatcher) -> None:
        dispatcher.submit(request(max_tokens=2000), "a", chunks=False)
        await until(lambda: dispatcher.running == 1)
        for client in "aabb":
            dispatcher.submit(request(), client, chunks=False)
        for client, whose in (("a", "this client's line"), ("d", "the queue")):
            if client == "d":
                dispatcher.submit(request(), "c", chunks=False)
            with pytest.raises(ResourceError) as caught:
                dispatcher.submit(request(), client, chunks=False)
            assert caught.value.code == "queue-full"
            assert whose in caught.value.message
            assert 1 <= caught.value.context["retry_after_s"] <= 60
            assert caught.value.retryable

    run(work, FakeSession(LONG, step_s=0.001), queue_max=5, queue_per_client_max=2)


def test_the_time_in_the_queue_counts_for_the_deadline() -> None:
    session = FakeSession(LONG, step_s=0.002)

    async def work(dispatcher: Dispatcher) -> None:
        first = dispatcher.submit(request("first", max_tokens=30), "a", chunks=False)
        await until(lambda: dispatcher.running == 1)
        late = dispatcher.submit(request("late", deadline_s=0.02), "a", chunks=False)
        soon = dispatcher.submit(request("soon", deadline_s=30.0, max_tokens=1), "a", chunks=False)
        assert await code_of(late) == "deadline-exceeded"
        assert dispatcher.running == 1, "it was told while the first was still being answered"
        await first.result()
        await soon.result()
        assert soon.waited_s > 0.01

    run(work, session)
    assert [r.messages[-1].content for r in session.asked] == ["first", "soon"]
    assert session.asked[1].deadline_s < 30.0 - 0.01


def test_an_engine_that_keeps_failing_is_left_alone() -> None:
    session = FakeSession(script=lambda _request: failed())
    lines: list[str] = []

    async def work(dispatcher: Dispatcher) -> None:
        waiting = [dispatcher.submit(request(), str(i), chunks=False) for i in range(5)]
        results = await asyncio.gather(*(t.result() for t in waiting), return_exceptions=True)
        assert [type(r) for r in results[:3]] == [Failed] * 3
        assert [r.code for r in results[3:]] == ["engine-unavailable"] * 2
        with pytest.raises(EdgewiseError) as caught:
            dispatcher.submit(request(), "a", chunks=False)
        assert caught.value.code == "engine-unavailable"
        assert 0 < caught.value.context["retry_after_s"] <= 60
        with pytest.raises(EdgewiseError):
            dispatcher.check_open()

    run(work, session, log=lines.append)
    assert len(session.asked) == 3
    assert lines == ["the engine failed: worker-crashed"] * 3


def test_the_budget_refills() -> None:
    answers: list[Outcome] = [failed(), completed("fine", 1)]
    session = FakeSession(script=lambda _request: answers.pop(0))

    async def work(dispatcher: Dispatcher) -> None:
        await dispatcher.submit(request(), "a", chunks=False).result()
        with pytest.raises(EdgewiseError):
            dispatcher.submit(request(), "a", chunks=False)
        await asyncio.sleep(0.06)
        outcome = await dispatcher.submit(request(), "a", chunks=False).result()
        assert isinstance(outcome, Completed)

    run(work, session, failures_max=1, failure_window_s=0.05)


def test_requests_that_lose_one_engine_together_are_one_failure() -> None:
    together = threading.Barrier(3)

    def script(asked: Request) -> Outcome | None:
        if asked.messages[-1].content != "lost":
            return None
        together.wait(5)
        return failed()

    async def work(dispatcher: Dispatcher) -> None:
        lost = [dispatcher.submit(request("lost"), str(i), chunks=False) for i in range(3)]
        assert [type(await ticket.result()) for ticket in lost] == [Failed] * 3
        assert isinstance(await dispatcher.submit(request(), "a", chunks=False).result(), Completed)

    run(work, *(FakeSession(script=script) for _ in range(3)))


@pytest.mark.parametrize("code", sorted(ANSWERS_FAULTS))
def test_an_answer_that_fails_is_no_failure_of_the_engine(code: str) -> None:
    fault = Failed(
        error=AdapterError(code, "made up").to_dict(), partial_text="", provenance=provenance()
    )
    answers: list[Outcome] = [*[fault] * 4, completed("fine", 1)]
    session = FakeSession(script=lambda _request: answers.pop(0))

    async def work(dispatcher: Dispatcher) -> None:
        for _ in range(4):
            outcome = await dispatcher.submit(request(), "a", chunks=False).result()
            assert isinstance(outcome, Failed)
        assert isinstance(await dispatcher.submit(request(), "b", chunks=False).result(), Completed)

    run(work, session)


def test_errors_of_a_request_are_its_own_and_no_failure_of_the_engine() -> None:
    def script(asked: Request) -> None:
        if asked.messages[-1].content == "bad":
            raise InputError("prompt-too-long", "the prompt is too long")
        if asked.messages[-1].content == "bug":
            raise ValueError("secret words of a user")

    lines: list[str] = []

    async def work(dispatcher: Dispatcher) -> None:
        for _ in range(5):
            assert await code_of(dispatcher.submit(request("bad"), "a", chunks=False)) == (
                "prompt-too-long"
            )
        assert await code_of(dispatcher.submit(request("bug"), "a", chunks=False)) == (
            "internal-error"
        )
        assert isinstance(await dispatcher.submit(request(), "a", chunks=False).result(), Completed)

    run(work, FakeSession(script=script), log=lines.append)
    assert len(lines) == 1
    assert "ValueError at" in lines[0]
    assert "secret" not in lines[0]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (request(), "its route changed while it waited"),
        (Request(prompt="hi"), "a prompt without messages does not leave"),
    ],
)
def test_what_is_to_be_answered_elsewhere_is_declined_in_a_lane(asked: Request, why: str) -> None:
    route = provenance(Route.CLOUD)
    sent = msgspec.structs.replace(route.route, destination="far")
    elsewhere = Declined(reasons=("x",), provenance=msgspec.structs.replace(route, route=sent))

    async def work(dispatcher: Dispatcher) -> Outcome:
        return await dispatcher.submit(asked, "a", chunks=False).result()

    outcome = run(work, FakeSession(script=lambda _request: elsewhere))
    assert isinstance(outcome, Declined)
    assert why in outcome.reasons[0]
    assert "far" in outcome.reasons[0]
    assert outcome.provenance.route.route is Route.DECLINE
    assert outcome.provenance.route.destination == ""


def test_a_reader_that_stalls_loses_its_answer_and_gives_the_engine_free() -> None:
    session = FakeSession(LONG)

    async def work(dispatcher: Dispatcher) -> None:
        stalled = dispatcher.submit(request(max_tokens=2000), "a", chunks=True)
        after = dispatcher.submit(request(max_tokens=1), "b", chunks=False)
        assert isinstance(await after.result(), Completed)
        assert await code_of(stalled) == "client-too-slow"

    run(work, session, buffered_chunks_max=8, stall_s=0.05)


def test_stopping_turns_the_queue_away_and_lets_running_answers_end() -> None:
    session = FakeSession(LONG, step_s=0.001)

    async def work(dispatcher: Dispatcher) -> None:
        running = dispatcher.submit(request(max_tokens=40), "a", chunks=False)
        await until(lambda: dispatcher.running == 1)
        queued = dispatcher.submit(request(), "a", chunks=False)
        dispatcher.stop()
        assert await code_of(queued) == "server-stopping"
        with pytest.raises(ResourceError) as caught:
            dispatcher.submit(request(), "a", chunks=False)
        assert caught.value.code == "server-stopping"
        assert (await running.result()).tokens.completion == 40

    run(work, session)
    assert session.closed


def test_after_the_grace_running_answers_are_cancelled_with_the_reason() -> None:
    async def work(dispatcher: Dispatcher) -> None:
        running = dispatcher.submit(request(max_tokens=2000), "a", chunks=True)
        assert await running.take()
        dispatcher.stop()
        dispatcher.cancel_running()
        assert await code_of(running) == "server-stopping"

    run(work, FakeSession(LONG, step_s=0.001))
