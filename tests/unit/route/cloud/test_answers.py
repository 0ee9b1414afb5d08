"""What a destination answers: whole, by piece or at once, and exactly what was permitted is sent."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.unit.route.cloud.servers import (
    DONE,
    FINISH,
    GOOD,
    KEY,
    MODEL,
    PROMPT,
    Authority,
    Desk,
    RawServer,
    at,
    chunked,
    delta,
    event,
    hello,
    raw,
    status,
    stream,
    usage,
)

from edgewise.core.outcome import FinishReason
from edgewise.core.quantity import Declared, Measured, Unknown
from edgewise.core.tools import Tool, ToolChoice
from edgewise.errors import IntegrityError
from edgewise.route.permits import PermitOffice

TOOL = Tool(name="look", description="Looks")


def whole(**fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "Hello"} | fields.pop("message", {})
    choice = {"index": 0, "message": message, "finish_reason": "stop"} | fields.pop("choice", {})
    return {
        "model": MODEL,
        "choices": [choice],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    } | fields


@pytest.mark.parametrize("make", [stream, chunked])
def test_a_streamed_answer_over_tls(desk: Desk, authority: Authority, make: Any) -> None:
    with RawServer(make(*GOOD), tls=authority.context()).running() as server:
        answer = desk.answers(at(server, authority.file))
    assert (answer.text, answer.finish, desk.heard) == ("Hello", FinishReason.STOP, ["Hel", "lo"])
    assert (answer.model, answer.request_id, answer.attempts) == (MODEL, "req-1", 1)
    assert answer.events == ()
    assert answer.usage.prompt_tokens == Declared(value=7, source="usage in the server's answer")
    assert isinstance(answer.usage.cost, Unknown)
    for time in (answer.timings.connect_ms, answer.timings.ttft_ms, answer.timings.total_ms):
        assert isinstance(time, Measured)
        assert time.number > 0


def test_an_answer_in_one_piece(desk: Desk) -> None:
    with RawServer(status(200, whole())).running() as server:
        answer = desk.answers(at(server), hello(stream=False))
    assert (answer.text, desk.heard) == ("Hello", ["Hello"])


def test_what_is_sent_is_what_was_permitted_and_nothing_else(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ORG_ID", "PROJECT_ID", "API_KEY", "ADMIN_KEY"):
        monkeypatch.setenv(f"OPENAI_{name}", "from-the-environment")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Device: from-the-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/elsewhere")
    payload = hello(stop=("é",), temperature=0.0, seed=2**53 - 1, tools=(TOOL,))
    with RawServer(stream(*GOOD)).running() as server:
        destination = at(server, idempotent=True)
        permit = desk.office.mint(destination, payload.body)
        desk.client.ask(permit, destination, payload, idempotency_key="once-1")
        (sent,) = server.exchanges
    assert sent.sha256 == permit.payload_sha256 == payload.digest
    assert sent.body == payload.body
    assert sent.head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert sent.headers == {
        "host": f"127.0.0.1:{server.port}",
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "connection": "close",
        "content-type": "application/json",
        "content-length": str(len(payload.body)),
        "user-agent": "edgewise",
        "authorization": f"Bearer {KEY}",
        "idempotency-key": "once-1",
    }
    assert desk.keys_read == ["edgewise/far-key"]


def test_without_a_key_and_an_honoured_idempotency_key_neither_is_sent(desk: Desk) -> None:
    with RawServer(stream(*GOOD)).running() as server:
        desk.answers(at(server, secret=None), idempotency_key="unused")
        headers = server.exchanges[0].headers
    assert not {"authorization", "idempotency-key"} & set(headers)
    assert desk.keys_read == []


def test_every_attempt_of_its_own_has_a_new_idempotency_key(desk: Desk) -> None:
    with RawServer(stream(*GOOD)).running() as server:
        desk.answers(at(server, idempotent=True))
        desk.answers(at(server, idempotent=True))
        keys = {exchange.headers["idempotency-key"] for exchange in server.exchanges}
    assert len(keys) == 2


def test_tool_calls_are_put_together(desk: Desk) -> None:
    parts = (
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "look", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"at'}}]),
        delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "look"}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '": 1}'}}]),
    )
    with RawServer(stream(*parts, delta(finish="tool_calls"), DONE)).running() as server:
        answer = desk.answers(at(server), hello(tools=(TOOL,)))
    assert answer.finish is FinishReason.TOOL_CALLS
    assert [(c.id, c.name, c.arguments) for c in answer.tool_calls] == [
        ("a", "look", '{"at": 1}'),
        ("b", "look", "{}"),
    ]


def test_a_forced_call_ends_with_stop_on_some_servers(desk: Desk) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = whole(message={"content": None, "tool_calls": [call]})
    forced = ToolChoice(mode="required", name="look")
    with RawServer(status(200, said)).running() as server:
        answer = desk.answers(at(server), hello(tools=(TOOL,), tool_choice=forced, stream=False))
    assert answer.finish is FinishReason.TOOL_CALLS
    assert len(answer.tool_calls) == 1


def test_an_answer_cut_at_its_limit_says_so_and_holds_no_calls(desk: Desk) -> None:
    call = {"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"at'}}
    parts = (delta("So"), delta(tool_calls=[call]), delta(finish="length"), DONE)
    with RawServer(stream(*parts)).running() as server:
        answer = desk.answers(at(server), hello(tools=(TOOL,)))
    assert (answer.text, answer.finish, answer.tool_calls) == ("So", FinishReason.LENGTH, ())


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        (
            (event({"model": "other", "choices": []}), delta("Hi"), FINISH, usage(), DONE),
            "cloud-model-differs",
        ),
        ((delta(refusal="No"), FINISH, usage(), DONE), "cloud-refusal"),
        ((delta("Hi"), FINISH, usage()), "cloud-stream-unmarked"),
    ],
)
def test_what_nobody_asked_for_is_an_event(desk: Desk, parts: tuple[bytes, ...], code: str) -> None:
    with RawServer(stream(*parts)).running() as server:
        answer = desk.answers(at(server))
    assert [one.code for one in answer.events] == [code]


def test_a_model_with_an_odd_name_is_not_repeated(desk: Desk) -> None:
    odd = event({"model": f"{PROMPT}\n\x1b[31m", "choices": []})
    with RawServer(stream(odd, *GOOD)).running() as server:
        answer = desk.answers(at(server))
    assert answer.model == ""
    assert PROMPT not in str([one.message for one in answer.events])


def test_comments_crlf_and_split_bytes_are_fine(desk: Desk) -> None:
    text = (
        b": ping\r\n\r\nevent: message\r\nid: 1\r\n"
        + delta("h\u00e9llo").replace(b"\n", b"\r\n")
        + b"".join((FINISH, DONE))
    )
    pieces = [text[i : i + 1] for i in range(len(text))]
    with RawServer(stream(*pieces)).running() as server:
        assert desk.answers(at(server)).text == "h\u00e9llo"


def test_unicode_split_across_tls_records(desk: Desk, authority: Authority) -> None:
    data = event(
        json.dumps(
            {"model": MODEL, "choices": [{"index": 0, "delta": {"content": "\u20ac" * 30}}]},
            ensure_ascii=False,
        ).encode()
    )
    pieces = [data[i : i + 7] for i in range(0, len(data), 7)]
    with RawServer(stream(*pieces, FINISH, DONE), tls=authority.context()).running() as server:
        assert desk.answers(at(server, authority.file)).text == "\u20ac" * 30


def test_interim_answers_are_passed_over(desk: Desk) -> None:
    def early(exchange: Any) -> None:
        exchange.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        stream(*GOOD)(exchange)

    with RawServer(early).running() as server:
        assert desk.answers(at(server)).text == "Hello"


def test_what_on_text_raises_is_raised_and_the_connection_is_closed(desk: Desk) -> None:
    def full(_text: str) -> None:
        raise RuntimeError("the disk is full")

    answer = stream(delta("Hel"), then=lambda exchange: exchange.until_closed())
    with RawServer(answer).running() as server:
        with pytest.raises(RuntimeError, match="disk is full"):
            desk.ask(at(server), on_text=full)
        assert server.hung_up.wait(5)


def test_one_client_asks_from_several_threads(desk: Desk) -> None:
    with (
        RawServer(stream(*GOOD)).running() as server,
        ThreadPoolExecutor(8) as pool,
    ):
        found = list(pool.map(lambda _: desk.answers(at(server)).text, range(16)))
    assert found == ["Hello"] * 16


def test_one_permit_is_good_for_one_ask(desk: Desk) -> None:
    payload = hello()
    with RawServer(stream(*GOOD)).running() as server:
        destination = at(server)
        permit = desk.office.mint(destination, payload.body)
        desk.client.ask(permit, destination, payload)
        with pytest.raises(IntegrityError) as caught:
            desk.client.ask(permit, destination, payload)
    assert caught.value.context == {"why": "replayed"}
    assert server.connections == 1


def test_another_office_opens_nothing(desk: Desk) -> None:
    payload = hello()
    with RawServer(raw(b"")).running() as server:
        destination = at(server)
        permit = PermitOffice().mint(destination, payload.body)
        with pytest.raises(IntegrityError):
            desk.client.ask(permit, destination, payload)
    assert (server.connections, desk.keys_read) == (0, [])
