"""Requests: each bound from both sides, contradictions, and text that is none."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from edgewise.core.request import DEFAULT_MAX_TOKENS, DataClass, Message, Request, Sampling
from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool, ToolCall, ToolChoice
from edgewise.errors import InputError

HELLO = (Message(role="user", content="Hello"),)
HOT: dict[str, Any] = {"temperature": 1.0}


def refused(make: Any, **fields: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        make(**fields)
    return caught.value


SAMPLING_OUT = [
    ("temperature", -0.001),
    ("temperature", -math.inf),
    ("temperature", 100.001),
    ("temperature", math.inf),
    ("temperature", math.nan),
    ("top_k", -1),
    ("top_k", 2**31 + 1),
    ("top_p", 0),
    ("top_p", -0.1),
    ("top_p", 1.0001),
    ("top_p", math.nan),
    ("top_p", math.inf),
    ("min_p", -0.0001),
    ("min_p", 1.0001),
    ("min_p", math.nan),
    ("seed", -1),
    ("seed", 2**63),
]

SAMPLING_IN = [
    ("temperature", 0.001),
    ("temperature", 99.999),
    ("temperature", 100),
    ("top_k", 0),
    ("top_k", 1),
    ("top_k", 2**31),
    ("top_p", 5e-324),
    ("top_p", 0.999),
    ("top_p", 1),
    ("min_p", 0),
    ("min_p", 0.001),
    ("min_p", 1),
    ("seed", 0),
    ("seed", 1),
    ("seed", 2**63 - 1),
    ("seed", None),
]


@pytest.mark.parametrize(("name", "value"), SAMPLING_OUT)
def test_sampling_out_of_range(name: str, value: Any) -> None:
    error = refused(Sampling, **{**HOT, name: value})
    assert (error.code, error.context) == ("request-invalid", {"field": name})
    assert repr(value) in error.message


@pytest.mark.parametrize(("name", "value"), SAMPLING_IN)
def test_sampling_in_range(name: str, value: Any) -> None:
    sampling = Sampling(**{**HOT, name: value})
    assert getattr(sampling, name) == value
    assert msgspec.json.decode(msgspec.json.encode(sampling), type=Sampling) == sampling


@pytest.mark.parametrize("rule", [{"top_k": 1}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_greedy_with_a_rule_that_would_be_ignored(rule: dict[str, Any]) -> None:
    error = refused(Sampling, temperature=0, **rule)
    assert error.code == "sampling-contradiction"
    assert error.hint
    assert Sampling(temperature=0.1, **rule).temperature == 0.1


def test_greedy_may_have_a_seed() -> None:
    assert Sampling(seed=3).temperature == 0


REQUEST_OUT = [
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 2**31 + 1),
    ("deadline_s", 0),
    ("deadline_s", -1.0),
    ("deadline_s", math.nan),
    ("deadline_s", math.inf),
    ("deadline_s", 1e9 + 1),
]


@pytest.mark.parametrize(("name", "value"), REQUEST_OUT)
def test_request_out_of_range(name: str, value: Any) -> None:
    error = refused(Request, messages=HELLO, **{name: value})
    assert (error.code, error.context) == ("request-invalid", {"field": name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 1),
        ("max_tokens", 2),
        ("max_tokens", 2**31 - 1),
        ("max_tokens", 2**31),
        ("max_tokens", None),
        ("deadline_s", 5e-324),
        ("deadline_s", 1e9),
        ("deadline_s", None),
    ],
)
def test_request_in_range(name: str, value: Any) -> None:
    request = Request(messages=HELLO, **{name: value})
    assert getattr(request, name) == value
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Request) == request


def test_defaults_keep_data_local() -> None:
    request = Request(messages=HELLO)
    assert request.data_class is DataClass.LOCAL_ONLY
    assert request.max_tokens is None
    assert DEFAULT_MAX_TOKENS == 512


@pytest.mark.parametrize("text", ["", " ", "\n\t\r", "\u2003\u00a0", "\x1f"])
def test_an_empty_prompt(text: str) -> None:
    error = refused(Request, messages=(Message(role="user", content=text),))
    assert error.code == "prompt-empty"
    assert error.hint


def test_no_messages() -> None:
    assert refused(Request, messages=()).code == "prompt-empty"


def test_only_the_last_message_must_say_something() -> None:
    request = Request(messages=(Message(role="system", content=""), *HELLO))
    assert len(request.messages) == 2


@pytest.mark.parametrize("role", ["", "User", "user ", "\ud800"])
def test_unknown_role(role: str) -> None:
    error = refused(Message, role=role, content="x")
    assert error.code == "role-unknown"
    error.message.encode()


@pytest.mark.parametrize(
    "text", [chr(0xD800), "a" + chr(0xDFFF), chr(0xDC80) + "b", chr(0xDE00) + chr(0xD83D)]
)
def test_lone_surrogates(text: str) -> None:
    for make in (
        lambda: Message(role="user", content=text),
        lambda: Request(messages=HELLO, stop=("ok", text)),
        lambda: Request(messages=HELLO, task=text),
    ):
        error = refused(make)
        assert error.code == "text-not-utf8"
        assert 0 <= error.context["position"] < len(text)


def test_astral_and_control_text_is_text() -> None:
    text = "\U0001f600\x00\uffff"
    assert Message(role="user", content=text).content == text


def test_an_empty_stop() -> None:
    assert refused(Request, messages=HELLO, stop=("a", "")).code == "stop-empty"
    assert Request(messages=HELLO, stop=(" ", "\n")).stop == (" ", "\n")


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"messages":[{"role":"user","content":"x"}],"top_k":3}', type=Request)


TOOL = Tool(name="weather", parameters='{"type": "object"}')


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"prompt": "Hi", "messages": HELLO}, "request-contradiction"),
        ({"prompt": "Hi", "tools": (TOOL,)}, "request-contradiction"),
        ({"prompt": ""}, "prompt-empty"),
        ({"prompt": ()}, "prompt-empty"),
        ({"prompt": (1, -1)}, "request-invalid"),
        ({"prompt": (1, True)}, "request-invalid"),
        ({"prompt": ("a",)}, "request-invalid"),
        ({"prompt": "\ud800"}, "text-not-utf8"),
        ({"messages": HELLO, "tools": (TOOL, TOOL)}, "request-contradiction"),
        ({"messages": HELLO, "tool_choice": ToolChoice(mode="required")}, "request-contradiction"),
        (
            {"messages": HELLO, "tools": (TOOL,), "structure": Structure(kind=StructureKind.JSON)},
            "request-contradiction",
        ),
        ({"messages": HELLO, "logprobs": 21}, "request-invalid"),
        ({"messages": HELLO, "logprobs": -1}, "request-invalid"),
        ({"messages": HELLO, "echo": True, "logprobs": 1}, "request-contradiction"),
        ({"prompt": "Hi", "echo": True}, "request-contradiction"),
    ],
)
def test_what_excludes_each_other_is_refused(fields: dict[str, Any], code: str) -> None:
    assert refused(Request, **fields).code == code


def test_a_tool_may_be_last_and_only_the_assistant_calls() -> None:
    call = ToolCall(id="1", name="weather", arguments="{}")
    answer = Message(role="tool", content="", tool_call_id="1")
    asked = Message(role="assistant", content="", tool_calls=(call,))
    Request(messages=(*HELLO, asked, answer))
    wrong = refused(Message, role="user", content="x", tool_calls=(call,))
    assert wrong.code == "message-invalid"


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": StructureKind.JSON_SCHEMA},
        {"kind": StructureKind.JSON, "source": "{}"},
        {"kind": StructureKind.JSON_SCHEMA, "source": {"type": "object"}},
        {"kind": StructureKind.CHOICE},
        {"kind": "choice", "choices": ("a",)},
        {"kind": StructureKind.CHOICE, "choices": ("a", "")},
        {"kind": StructureKind.REGEX, "source": "a", "choices": ("a",)},
        {"kind": StructureKind.LARK, "source": "x" * (1 << 20 | 1)},
    ],
)
def test_a_structure_that_says_nothing(fields: dict[str, Any]) -> None:
    assert refused(Structure, **fields).code == "structure-invalid"


@pytest.mark.parametrize(
    "fields", [{"name": ""}, {"name": "a b"}, {"name": "a", "parameters": "[]"}, {"name": "x" * 65}]
)
def test_a_tool_that_cannot_be_declared(fields: dict[str, Any]) -> None:
    assert refused(Tool, **fields).code == "tool-invalid"


def test_tool_choices() -> None:
    assert refused(ToolChoice, mode="maybe").code == "tool-choice-invalid"
    assert refused(ToolChoice, mode="auto", name="weather").code == "tool-choice-invalid"
