"""Bodies: strict JSON, and whatever would be ignored is refused by name."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import EdgewiseError
from edgewise.serve.bodies import Body, ChatBody, CompletionBody
from edgewise.serve.bodies_responses import ResponseBody
from edgewise.serve.json_body import decode, parse

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
KINDS = (ChatBody, CompletionBody, ResponseBody)


def refusal(data: bytes | dict[str, Any], kind: type[Body] = ChatBody) -> tuple[str, str | None]:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(EdgewiseError) as caught:
        decode(raw, kind, nesting_max=16)
    return caught.value.code, caught.value.context.get("param")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "body-not-json"),
        (b"{", "body-not-json"),
        (b"null", "body-not-json"),
        (b"[1]", "body-not-json"),
        (b'{"model": NaN}', "body-not-json"),
        (b'{"model": -Infinity}', "body-not-json"),
        (b'{"temperature": 1e999}', "body-not-json"),
        (b'{"n": ' + b"9" * 5000 + b"}", "body-not-json"),
        (b'{"model": "\\ud800"}', "body-not-json"),
        (b'{"\\udfff": 1}', "body-not-json"),
        (b'{"model": "m",}', "body-not-json"),
        (b"{'model': 1}", "body-not-json"),
        (b"\xef\xbb\xbf{}", "body-not-json"),
        (b"{} {}", "body-not-json"),
        ("{}".encode("utf-16"), "body-not-utf8"),
        (b'{"model": "\xff"}', "body-not-utf8"),
        (b'{"model": "\xed\xa0\x80"}', "body-not-utf8"),
        (b'{"model": "\xc0\xaf"}', "body-not-utf8"),
        (b'{"model": "a", "model": "b"}', "body-key-twice"),
        (b'{"a": {"b": 1, "b": 1}}', "body-key-twice"),
        (b'{"a":' * 17 + b"1" + b"}" * 17, "body-too-deep"),
        (b"[" * 17 + b"]" * 17, "body-too-deep"),
        (b"[" * 200_000, "body-too-deep"),
        (b'{"a":' * 200_000, "body-too-deep"),
    ],
)
def test_what_is_no_strict_json_is_refused(data: bytes, code: str) -> None:
    assert refusal(data)[0] == code


def test_nesting_up_to_the_bound_is_taken() -> None:
    assert parse(b"[" * 16 + b"]" * 16, nesting_max=16) is not None


def test_hostile_bodies_take_no_time() -> None:
    keys = ",".join(f'"k{i}":1' for i in range(200_000))
    bodies = [
        ("{" + keys + ',"k199999":1}').encode(),  # the last key twice
        b'{"messages":[' + b"[" * 1_000_000,
        b'"' + b"\\ud83d\\ude00" * 100_000 + b'"',
    ]
    for data in bodies:
        started = time.process_time()
        with pytest.raises(EdgewiseError):
            decode(data, ChatBody, nesting_max=16)
        assert time.process_time() - started < 2.0


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"n": 2}, "n"),
        ({"frequency_penalty": 0.1}, "frequency_penalty"),
        ({"presence_penalty": -1}, "presence_penalty"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"store": True}, "store"),
        ({"metadata": {"a": "b"}}, "metadata"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"functions": []}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"verbosity": "low"}, "verbosity"),
        ({"prediction": {}}, "prediction"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {}, "description": "b"},
                }
            },
            "response_format.json_schema.description",
        ),
        ({"messages": [{"role": "user", "content": "x", "name": "bob"}]}, "messages[0].name"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "x"}, {"type": "image_url"}],
                    }
                ]
            },
            "messages[0].content[1].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "refusal": "no"}]},
            "messages[0].refusal",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(extra: dict[str, Any], param: str) -> None:
    assert refusal({**CHAT, **extra}) == ("parameter-unsupported", param)


@pytest.mark.parametrize("name", ["", "anna@example.org 4111111111111111", "a\r\nb", "a" * 65])
def test_a_function_is_called_by_the_name_of_a_tool(name: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    said = [*CHAT["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert refusal({**CHAT, "messages": said})[0] == "parameter-invalid"
    choice = {"type": "function", "function": {"name": name}}
    assert refusal({**CHAT, "tool_choice": choice})[0] == "parameter-invalid"


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 1},
        {"n": None},
        {"frequency_penalty": 0},
        {"presence_penalty": 0.0},
        {"logit_bias": {}},
        {"store": False},
        {"metadata": {}},
        {"service_tier": "auto"},
        {"parallel_tool_calls": True},
        {"parallel_tool_calls": False},
        {"modalities": ["text"]},
        {"audio": None, "functions": None},
        {"stream_options": {"include_obfuscation": False, "include_usage": True}},
    ],
)
def test_values_that_change_nothing_are_taken(extra: dict[str, Any]) -> None:
    decode(json.dumps({**CHAT, **extra}).encode(), ChatBody, nesting_max=16)


@pytest.mark.parametrize(
    ("extra", "code", "param"),
    [
        ({"temprature": 1}, "parameter-unknown", "temprature"),
        ({"edgewise": {"topk": 1}}, "parameter-unknown", "edgewise.topk"),
        ({"stream_options": {"x": 1}}, "parameter-unknown", "stream_options.x"),
        ({"temperature": "hot"}, "parameter-invalid", "temperature"),
        ({"temperature": -1}, "parameter-invalid", "temperature"),
        ({"temperature": True}, "parameter-invalid", "temperature"),
        ({"max_tokens": 0}, "parameter-invalid", "max_tokens"),
        ({"max_tokens": 1.5}, "parameter-invalid", "max_tokens"),
        ({"seed": 2**70}, "parameter-invalid", "seed"),
        ({"stop": ["a"] * 5}, "parameter-invalid", "stop"),
        ({"stop": ""}, "parameter-invalid", "stop"),
        ({"messages": []}, "parameter-invalid", "messages"),
        ({"messages": [{"role": "user"}]}, "parameter-invalid", "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            "parameter-invalid",
            "messages[0].content[0]",
        ),
        ({"tools": [{"function": {"name": "f"}}]}, "parameter-invalid", "tools[0]"),
        ({"tools": [{"type": "function"}]}, "parameter-invalid", "tools[0]"),
        ({"top_logprobs": 21}, "parameter-invalid", "top_logprobs"),
        ({"edgewise": {"data_class": "Not A Name"}}, "parameter-invalid", "edgewise.data_class"),
        ({"edgewise": None}, "parameter-invalid", "edgewise"),
    ],
)
def test_what_is_wrong_is_named(extra: dict[str, Any], code: str, param: str) -> None:
    assert refusal({**CHAT, **extra}) == (code, param)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
    ],
)
def test_responses_refuse_by_name_too(extra: dict[str, Any], param: str) -> None:
    body = {"model": "m", "input": "x", **extra}
    assert refusal(body, ResponseBody) == ("parameter-unsupported", param)


def test_completions_refuse_by_name_too() -> None:
    for extra in ({"best_of": 2}, {"suffix": "x"}, {"n": 3}):
        body = {"model": "m", "prompt": "x", **extra}
        assert refusal(body, CompletionBody) == ("parameter-unsupported", next(iter(extra)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(st.sampled_from(KINDS), st.binary(max_size=200))
def test_no_bytes_cause_anything_but_a_typed_refusal(kind: type[Body], data: bytes) -> None:
    with pytest.raises(EdgewiseError):
        decode(data, kind, nesting_max=16)


@given(st.sampled_from(KINDS), st.data())
def test_no_values_cause_anything_but_a_typed_refusal(
    kind: type[Body], data: st.DataObject
) -> None:
    names = st.sampled_from([*kind.__struct_fields__, *kind.REFUSED])
    value = data.draw(st.dictionaries(names, json_values, max_size=6))
    with contextlib.suppress(EdgewiseError):
        decode(json.dumps(value).encode(), kind, nesting_max=16)
