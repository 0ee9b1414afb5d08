"""Whatever a server writes: an answer, or a fault that is typed; never an exception of a reader."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.route.cloud.servers import (
    DONE,
    FINISH,
    GOOD,
    MODEL,
    Desk,
    RawServer,
    at,
    delta,
    event,
    hello,
    raw,
    stream,
    usage,
)

from edgewise.core.tools import Tool, ToolCall
from edgewise.route.cloud import CloudAnswer, CloudFailure, CloudFault
from edgewise.route.cloud.faults import FaultError
from edgewise.route.cloud.reading import Said, read_stream, read_whole
from edgewise.route.minimise import Kind, PlaceholderMap, Restorer, restore_json

CALL = {
    "index": 0, "id": "c1", "type": "function",
    "function": {"name": "look", "arguments": '{"a": "[EMAIL_1]"}'},
}  # fmt: skip
CHUNK = {
    "model": MODEL,
    "choices": [
        {
            "index": 0,
            "delta": {"content": "Hi", "tool_calls": [CALL]},
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4},
}
REPLY = {
    **CHUNK,
    "choices": [
        {"index": 0, "message": {"content": "Hi", "tool_calls": [CALL]}, "finish_reason": "stop"}
    ],
}
LITERALS = [
    b"NaN", b"-Infinity", b"1e999", b"-0", b"1" * 400, b"9" * 19, b"1" * 5000, b"1.5", b"true",
    b"null", b'"\\ud800"', b'"\\u0000"', b'"' + b"x" * 5000 + b'"', b"{}", b"[]", b"[[]]",
    b"[" * 70 + b"]" * 70, b"[" * 5000, b'{"a":' * 2000 + b"1" + b"}" * 2000, b'{"a":1,"a":2}',
    b"\xff", b'"\xc3\x28"', b"'", b"",
]  # fmt: skip
HOLE = "\0hole\0"


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where in a JSON value something can be put."""
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    return [at, *(path for key, one in inside for path in paths(one, (*at, key)))]


def with_hole(value: Any, path: tuple[Any, ...], literal: bytes) -> bytes:
    """Return JSON with a literal in one place, whatever the literal is."""
    if not path:
        return literal
    made = json.loads(json.dumps(value))
    place = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = HOLE
    return json.dumps(made).encode().replace(json.dumps(HOLE).encode(), literal)


def read(whole: bool, pieces: list[bytes]) -> None:
    """Read as the client does; anything but a fault of the answer is a failure of the test."""
    said = Said()
    fault: CloudFault | None = None
    calls: tuple[ToolCall, ...] = ()
    try:
        (read_whole if whole else read_stream)(pieces, said, lambda _text: None)
        calls = said.calls({"look"})
    except FaultError as error:
        fault = error.fault.kind
    assert fault in {None, CloudFault.BROKEN_ANSWER, CloudFault.VALIDATION}
    for call in calls:
        assert isinstance(json.loads(call.arguments), dict)
    for count in (said.prompt_tokens, said.completion_tokens):
        assert count is None or 0 <= count < 2**40


def cut(data: bytes, at: list[int]) -> list[bytes]:
    ends = sorted({min(one, len(data)) for one in at} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(ends)]


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "stream"])
def test_a_wrong_value_in_every_place(whole: bool) -> None:
    shape = REPLY if whole else CHUNK
    for path in paths(shape):
        for literal in LITERALS:
            data = with_hole(shape, path, literal)
            read(whole, [data] if whole else [event(data), DONE])


@pytest.mark.slow
@given(
    whole=st.booleans(),
    lines=st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from(
                [DONE, FINISH, usage(), delta("a"), event(CHUNK), b"event: x\n", b":\n"]
            ),
            st.sampled_from(LITERALS).map(event),
        ),
        max_size=8,
    ),
    cuts=st.lists(st.integers(0, 400), max_size=5),
)
@settings(max_examples=150, deadline=None)
def test_any_bytes_in_any_pieces(whole: bool, lines: list[bytes], cuts: list[int]) -> None:
    read(whole, cut(b"".join(lines), cuts))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["[EMAIL_1]", "[EMAIL_1", "email_1", "[PHONE_2_3]", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(
    text=st.one_of(
        st.text(max_size=80),
        JSON.map(json.dumps),
        st.sampled_from([one.decode("utf-8", "replace") for one in LITERALS]),
    )
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_placeholders_are_put_back_into_any_text(text: str) -> None:
    kept = PlaceholderMap()
    kept.placeholder_for(Kind.EMAIL, 'a"b\\@example.org')
    kept.placeholder_for(Kind.PHONE, "5551234567", number=True)
    restored, events = restore_json(text, kept)
    assert {one.code for one in events} <= {"placeholder-unknown", "placeholder-in-link"}
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        pass
    else:
        json.loads(restored)
    whole = Restorer(kept)
    once = whole.feed(text) + whole.flush()
    bit = Restorer(kept)
    assert "".join(bit.feed(one) for one in text) + bit.flush() == once


BODIES = [
    (kind, with_hole(shape, path, literal))
    for kind, shape in (("text/event-stream", CHUNK), ("application/json", REPLY))
    for path, literal in (
        ((), b"\xff\xfe"),
        ((), b"[" * 100_000),
        (("usage", "prompt_tokens"), b"1" * 300),
        (("usage", "prompt_tokens"), b"1e300"),
        (("usage", "completion_tokens"), b"NaN"),
        (("choices", 0), b"null"),
        (("choices", 0, "index"), b"-1"),
        (("model",), b"7"),
        (("model",), b'"\\ud83d"'),
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BODIES)))
@pytest.mark.parametrize("status", [200, 400, 500])
def test_the_client_returns_a_value_for_all_of_it(desk: Desk, number: int, status: int) -> None:
    kind, body = BODIES[number]
    data = event(body) + DONE if kind == "text/event-stream" else body
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    tools = (Tool(name="look", parameters='{"type":"object"}'),)
    with RawServer(raw(head.encode(), data)).running() as server:
        found = desk.ask(at(server), hello(tools=tools, stream=kind == "text/event-stream"))
    if isinstance(found, CloudFailure):
        assert found.fault is not CloudFault.INTERNAL, found.error
    else:
        assert isinstance(found, CloudAnswer)
        assert status == 200


def test_a_bug_of_the_reader_is_a_typed_failure(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reads(*_: Any) -> None:
        raise KeyError("canary-words")

    monkeypatch.setattr("edgewise.route.cloud.attempt.read_stream", reads)
    with RawServer(stream(*GOOD)).running() as server:
        failure = desk.fails(at(server))
    assert (failure.fault, failure.code) == (CloudFault.INTERNAL, "cloud-internal")
    assert failure.may_have_acted
    assert "canary" not in str(failure.error)


def test_what_the_caller_raises_is_raised(desk: Desk) -> None:
    def hears(_text: str) -> None:
        raise KeyError("mine")

    with (
        RawServer(stream(*GOOD)).running() as server,
        pytest.raises(KeyError, match="mine"),
    ):
        desk.ask(at(server), on_text=hears)
