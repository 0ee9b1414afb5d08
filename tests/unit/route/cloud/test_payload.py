"""The payload: canonical bytes, and nothing dropped silently."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.route.cloud.servers import MODEL, PROMPT, hello

from edgewise.core.request import Message, Request, Sampling
from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool, ToolCall, ToolChoice
from edgewise.errors import EdgewiseError, InputError, UnsupportedError
from edgewise.route.cloud import CloudPayload
from edgewise.route.destinations import Destination

FAR = Destination(name="far", url="https://far.example/v1", model=MODEL)
USER = Message(role="user", content=PROMPT)


def test_the_bytes_are_canonical() -> None:
    payload = hello(temperature=0.5, stop=("\u20ac",), max_tokens=5)
    assert payload.body == (
        b'{"max_tokens":5,"messages":[{"content":"canary-prompt-7f3a","role":"user"}],'
        b'"model":"far-1b","stop":["\xe2\x82\xac"],"stream":true,'
        b'"stream_options":{"include_usage":true},"temperature":0.5}'
    )
    assert payload.digest == hashlib.sha256(payload.body).hexdigest()


def test_the_whole_of_a_request() -> None:
    tool = Tool(name="look", description="Looks", parameters='{"type":"object"}')
    messages = (
        Message(role="system", content="Be short"),
        USER,
        Message(
            role="assistant",
            content="",
            tool_calls=(ToolCall(id="a", name="look", arguments="{}"),),
        ),
        Message(role="tool", content="seen", tool_call_id="a", name="look"),
    )
    request = Request(
        messages=messages,
        max_tokens=5,
        sampling=Sampling(temperature=0.7, top_p=0.9, seed=3),
        stop=("END",),
        tools=(tool,),
        tool_choice=ToolChoice(mode="required", name="look", parallel=False),
    )
    destination = msgspec.structs.replace(FAR, max_tokens_field="max_completion_tokens")
    assert json.loads(CloudPayload.of(request, destination, stream=False).body) == {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "Be short"},
            {"role": "user", "content": PROMPT},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {"name": "look", "arguments": "{}"},
                    }
                ],
            },
            {"role": "tool", "content": "seen", "tool_call_id": "a"},
        ],
        "max_completion_tokens": 5,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["END"],
        "stream": False,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Looks",
                    "parameters": {"type": "object"},
                },
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "parallel_tool_calls": False,
    }


@pytest.mark.parametrize(
    ("structure", "wanted"),
    [
        (Structure(kind=StructureKind.JSON), {"type": "json_object"}),
        (
            Structure(kind=StructureKind.JSON_SCHEMA, source='{"type": "object"}'),
            {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": {"type": "object"}},
            },
        ),
    ],
)
def test_structures(structure: Structure, wanted: Any) -> None:
    assert json.loads(hello(structure=structure).body)["response_format"] == wanted


@pytest.mark.parametrize(
    "request_",
    [
        Request(prompt="go on"),
        Request(messages=(USER,), logprobs=1),
        Request(messages=(USER,), sampling=Sampling(temperature=1, top_k=3)),
        Request(messages=(USER,), sampling=Sampling(temperature=1, min_p=0.1)),
        Request(messages=(USER,), structure=Structure(kind=StructureKind.REGEX, source="[a-z]+")),
    ],
)
def test_what_the_api_has_no_field_for_is_refused(request_: Request) -> None:
    with pytest.raises(UnsupportedError) as caught:
        CloudPayload.of(request_, FAR)
    assert caught.value.code == "cloud-request-unsupported"


@pytest.mark.parametrize(
    "fields",
    [
        {"model": ""}, {"model": "a b"}, {"messages": ()}, {"max_tokens": 0}, {"max_tokens": True},
        {"max_tokens_field": "n"}, {"temperature": -1.0}, {"temperature": float("nan")},
        {"top_p": 0.0}, {"seed": 2**53}, {"seed": -1}, {"stop": ("",)}, {"stop": ("a",) * 5},
        {"messages": (Message(role="tool", content="x"),)},
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        hello(**fields)
    assert caught.value.code == "cloud-payload-invalid"
    assert PROMPT not in str(caught.value.to_dict())


def test_a_payload_that_is_too_large_is_not_made() -> None:
    with pytest.raises(InputError, match="bytes"):
        _ = hello(messages=(Message(role="user", content="x" * (9 << 20)),)).body


def test_a_schema_that_is_no_json_or_not_canonical() -> None:
    for source in ("{", '{"maximum": 1e400}', '{"maximum": 99999999999999999999}'):
        structure = Structure(kind=StructureKind.JSON_SCHEMA, source=source)
        with pytest.raises(EdgewiseError):
            _ = hello(structure=structure).body


def test_a_payload_shows_no_text() -> None:
    assert PROMPT not in repr(hello()) + str(hello()) + str(list(hello().__rich_repr__()))


@settings(deadline=None)
@given(st.text(min_size=1).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
def test_the_bytes_hold_the_text_as_it_is(text: str) -> None:
    payload = hello(messages=(Message(role="user", content=text),))
    assert json.loads(payload.body)["messages"][0]["content"] == text
    assert payload.body == hello(messages=(Message(role="user", content=text),)).body
