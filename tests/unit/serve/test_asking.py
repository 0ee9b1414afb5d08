"""From OpenAI's parameters to a request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgewise.core.request import ContextPolicy, DataClass, Message, Request
from edgewise.core.structure import StructureKind
from edgewise.core.tools import ToolChoice
from edgewise.errors import EdgewiseError
from edgewise.serve.asking import chat_request, completion_requests
from edgewise.serve.bodies import ChatBody, CompletionBody
from edgewise.serve.bodies_responses import ResponseBody
from edgewise.serve.json_body import decode
from edgewise.serve.responses import response_request

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"\u00fc": {"type": "integer"}}}
FUNCTION = {"name": "look", "description": "Looks.", "parameters": SCHEMA}


def chat(**fields: Any) -> Request:
    body = {"model": "m", "messages": [USER], **fields}
    return chat_request(decode(json.dumps(body).encode(), ChatBody, nesting_max=64))


def completion(prompt: Any, **fields: Any) -> list[Request]:
    body = {"model": "m", "prompt": prompt, **fields}
    decoded = decode(json.dumps(body).encode(), CompletionBody, nesting_max=64)
    return completion_requests(decoded, prompts_max=3)


def response(given: Any, **fields: Any) -> Request:
    body = {"model": "m", "input": given, **fields}
    return response_request(decode(json.dumps(body).encode(), ResponseBody, nesting_max=64))


def refusal(call, *arguments: Any, **fields: Any) -> tuple[str, str | None]:
    with pytest.raises(EdgewiseError) as caught:
        call(*arguments, **fields)
    return caught.value.code, caught.value.context.get("param")


def test_the_defaults_are_greedy_local_and_unlimited() -> None:
    asked = chat()
    assert asked == Request(messages=(Message(role="user", content="hi"),))
    assert asked.sampling.temperature == 0
    assert asked.data_class is DataClass.LOCAL_ONLY


def test_every_parameter_arrives() -> None:
    asked = chat(
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        stop=["a", "b"],
        logprobs=True,
        top_logprobs=4,
        edgewise={
            "data_class": "personal",
            "context_policy": "sliding-window",
            "deadline_s": 2.5,
            "top_k": 40,
            "min_p": 0.05,
            "speculate": False,
            "task": "extract",
            "structure": {"kind": "choice", "choices": ["yes", "no"]},
        },
    )
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)
    assert (sampling.min_p, sampling.seed) == (0.05, 3)
    assert (asked.max_tokens, asked.stop, asked.logprobs) == (7, ("a", "b"), 4)
    assert asked.data_class == DataClass.PERSONAL
    assert asked.context_policy is ContextPolicy.SLIDING_WINDOW
    assert (asked.deadline_s, asked.speculate, asked.task) == (2.5, False, "extract")
    assert asked.structure is not None
    assert asked.structure.choices == ("yes", "no")


def test_messages_with_parts_tools_and_nulls() -> None:
    use = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    asked = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [use],
                "refusal": None,
                "annotations": [],
                "audio": None,
                "function_call": None,
            },
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
        ]
    )
    assert [m.role for m in asked.messages] == ["system", "user", "assistant", "tool"]
    assert asked.messages[1].content == "ab"
    assert asked.messages[2].content == ""
    assert asked.messages[2].tool_calls[0].arguments == '{"a": 1}'
    assert asked.messages[3].tool_call_id == "c1"


def test_tools_and_the_choice_among_them() -> None:
    tools = [{"type": "function", "function": FUNCTION}]
    asked = chat(tools=tools, tool_choice={"type": "function", "function": {"name": "look"}})
    assert json.loads(asked.tools[0].parameters) == SCHEMA
    assert asked.tools[0].description == "Looks."
    assert asked.tool_choice == ToolChoice(mode="required", name="look")
    assert chat(tools=tools).tool_choice == ToolChoice()
    assert chat(tools=tools, tool_choice="none").tool_choice.mode == "none"


@pytest.mark.parametrize("parallel", [True, False, None])
def test_whether_calls_may_be_several_is_handed_on(parallel: bool | None) -> None:
    tools = [{"type": "function", "function": FUNCTION}]
    asked = chat(tools=tools, tool_choice="required", parallel_tool_calls=parallel)
    assert asked.tool_choice == ToolChoice(mode="required", parallel=parallel)
    flat = [{"type": "function", "name": "look"}]
    more = response("x", tools=flat, tool_choice="required", parallel_tool_calls=parallel)
    assert more.tool_choice == asked.tool_choice


def test_formats_become_structures() -> None:
    assert chat(response_format={"type": "text"}).structure is None
    any_json = chat(response_format={"type": "json_object"}).structure
    assert any_json is not None
    assert any_json.kind is StructureKind.JSON
    schema = {"name": "x", "schema": SCHEMA, "strict": True}
    held = chat(response_format={"type": "json_schema", "json_schema": schema}).structure
    assert held is not None
    assert held.kind is StructureKind.JSON_SCHEMA
    assert json.loads(held.source) == SCHEMA


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        (
            {
                "response_format": {"type": "json_object"},
                "edgewise": {"structure": {"kind": "json"}},
            },
            "edgewise.structure",
        ),
    ],
)
def test_contradictions_are_named(fields: dict[str, Any], param: str) -> None:
    assert refusal(chat, **fields) == ("parameter-contradiction", param)


def test_a_rule_of_sampling_without_a_temperature_is_refused() -> None:
    assert refusal(chat, top_p=0.5)[0] == "sampling-contradiction"
    assert refusal(chat, messages=[{"role": "assistant", "content": "x"}])[0] == (
        "last-message-not-users"
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1], [2, 3]], [(1,), (2, 3)]),
    ],
)
def test_prompts_of_every_form(prompt: Any, expected: list[Any]) -> None:
    assert [asked.prompt for asked in completion(prompt)] == expected


@pytest.mark.parametrize(
    "prompt",
    [[], [[]], ["a", 1], [1, "a"], [[1], "a"], [True], [-1], [2**31], [1.5], [None], ["a"] * 4],
)
def test_prompts_of_no_form_are_refused(prompt: Any) -> None:
    assert refusal(completion, prompt) == ("parameter-invalid", "prompt")


def test_scoring_asks_for_no_token() -> None:
    (asked,) = completion("abc", max_tokens=0, echo=True, logprobs=1)
    assert (asked.max_tokens, asked.echo, asked.logprobs) == (0, True, 1)
    (asked,) = completion("abc", max_tokens=0, echo=True)
    assert (asked.max_tokens, asked.echo, asked.logprobs) == (0, True, 0)


def test_echo_asks_the_engine_only_where_it_has_to() -> None:
    assert not completion("abc", echo=True)[0].echo
    (ids,) = completion([1, 2], echo=True)
    assert (ids.echo, ids.logprobs) == (True, 0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"stream": True, "echo": True, "logprobs": 1}, "echo"),
        ({"stream": True, "echo": True, "prompt": [1]}, "echo"),
        ({"stream": True, "max_tokens": 0, "echo": True}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_contradictions_of_completions_are_named(fields: dict[str, Any], param: str) -> None:
    prompt = fields.pop("prompt", "abc")
    assert refusal(completion, prompt, **fields) == ("parameter-contradiction", param)


def test_a_response_from_items() -> None:
    asked = response(
        [
            {"role": "user", "content": "a"},
            {
                "type": "message",
                "role": "assistant",
                "id": "m",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "b", "annotations": [], "logprobs": []}
                ],
            },
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
            {"role": "developer", "content": [{"type": "input_text", "text": "d"}]},
            {"role": "user", "content": "e"},
        ],
        instructions="Be brief.",
        max_output_tokens=9,
        tools=[{"type": "function", "strict": True, **FUNCTION}],
        tool_choice={"type": "function", "name": "look"},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    assert [(m.role, m.content) for m in asked.messages] == [
        ("system", "Be brief."),
        ("user", "a"),
        ("assistant", "b"),
        ("tool", "42"),
        ("system", "d"),
        ("user", "e"),
    ]
    assert asked.messages[2].tool_calls[0].name == "look"
    assert (asked.max_tokens, asked.logprobs) == (9, 2)
    assert asked.tool_choice.name == "look"


def test_formats_of_responses() -> None:
    held = response("x", text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}})
    assert held.structure is not None
    assert json.loads(held.structure.source) == SCHEMA
    assert response("x", text={"format": {"type": "json_object"}}).structure is not None
    assert response("x", text={"format": {"type": "text"}}).structure is None
    assert refusal(response, "x", top_logprobs=1)[1] == "top_logprobs"
