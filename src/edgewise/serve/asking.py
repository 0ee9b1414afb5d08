"""From the parameters of OpenAI's API to a :class:`~edgewise.core.request.Request`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from edgewise.core.request import Message, Request, Sampling
from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool, ToolCall, ToolChoice
from edgewise.errors import InputError
from edgewise.serve.bodies import (
    AssistantMessage,
    ChatBody,
    ChatMessage,
    CompletionBody,
    JsonObjectFormat,
    Part,
    SamplingBody,
    Stop,
    TextFormat,
    ToolMessage,
    UserMessage,
)
from edgewise.serve.bodies_responses import ResponseBody
from edgewise.serve.json_body import unsupported

__all__ = [
    "chat_request",
    "common_fields",
    "completion_requests",
    "contradiction",
    "function_tool",
    "require_partners",
    "schema_structure",
    "stops",
]


def require_partners(body: ChatBody | ResponseBody) -> None:
    """Refuse a parameter that says nothing without another one.

    Raises:
        InputError: there is one.
    """
    if body.stream_options is not None and not body.stream:
        raise contradiction("stream_options", "stream_options goes with stream")
    if body.tool_choice is not None and not body.tools:
        raise contradiction("tool_choice", "tool_choice goes with tools")


def chat_request(body: ChatBody) -> Request:
    """Return what a body for ``/v1/chat/completions`` asks.

    Raises:
        InputError: two parameters contradict each other, or one is out of its range.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise contradiction("top_logprobs", "top_logprobs needs logprobs to be true")
    require_partners(body)
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise contradiction("max_tokens", "max_tokens and max_completion_tokens differ")
    return Request(
        messages=tuple(_message(message) for message in body.messages),
        max_tokens=limits.pop() if limits else None,
        stop=stops(body.stop),
        structure=_structure(body),
        tools=tuple(
            function_tool(t.function.name, t.function.description, t.function.parameters)
            for t in body.tools or ()
        ),
        tool_choice=_tool_choice(body),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        **common_fields(body, body.seed),
    )


def completion_requests(body: CompletionBody, *, prompts_max: int) -> list[Request]:
    """Return what a body for ``/v1/completions`` asks, a request for each prompt.

    Raises:
        InputError: the prompts have no known form, or two parameters contradict each other.
        UnsupportedError: it is to be asked elsewhere after an answer of this device.
    """
    if body.stream_options is not None and not body.stream:
        raise contradiction("stream_options", "stream_options goes with stream")
    if body.max_tokens == 0 and not body.echo:
        raise contradiction("max_tokens", "max_tokens 0 without echo asks for nothing")
    if body.edgewise.after is not None:
        raise unsupported("edgewise.after", "a prompt without messages does not leave this device")
    prompts = _prompts(body.prompt, prompts_max)
    if body.stream and body.echo and (body.logprobs is not None or _ids(prompts)):
        raise contradiction("echo", "echo with logprobs or token ids cannot be streamed")
    if body.stream and body.max_tokens == 0:
        raise contradiction("max_tokens", "max_tokens 0 cannot be streamed")
    echo = bool(body.echo) and not body.stream
    logprobs = body.logprobs
    if echo and logprobs is None and (body.max_tokens == 0 or _ids(prompts)):
        logprobs = 0  # how token ids are spelled, and what nothing but a prompt is asked for with
    return [
        Request(
            prompt=prompt,
            max_tokens=body.max_tokens,
            stop=stops(body.stop),
            structure=body.edgewise.structure,
            logprobs=logprobs,
            echo=echo and logprobs is not None,
            **common_fields(body, body.seed),
        )
        for prompt in prompts
    ]


def common_fields(body: SamplingBody, seed: int | None) -> dict[str, Any]:
    """Return the fields of a request that every endpoint fills alike."""
    ours = body.edgewise
    return {
        "sampling": Sampling(
            temperature=body.temperature or 0.0,
            top_k=ours.top_k,
            top_p=1.0 if body.top_p is None else body.top_p,
            min_p=ours.min_p,
            seed=seed,
        ),
        "deadline_s": ours.deadline_s,
        "data_class": ours.data_class,
        "context_policy": ours.context_policy,
        "signals": ours.signals,
        "speculate": ours.speculate,
        "task": ours.task,
    }


def contradiction(name: str, why: str) -> InputError:
    """Return the error for a parameter that does not go with another."""
    return InputError(
        "parameter-contradiction", why, context={"param": name}, hint="leave one of them out"
    )


def stops(stop: Stop) -> tuple[str, ...]:
    """Return the texts that end an answer."""
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def schema_structure(schema: dict[str, Any]) -> Structure:
    """Return the structure of a JSON Schema."""
    return Structure(kind=StructureKind.JSON_SCHEMA, source=_json(schema))


def _tool_choice(body: ChatBody) -> ToolChoice:
    choice, parallel = body.tool_choice, body.parallel_tool_calls
    if choice is None or isinstance(choice, str):
        return ToolChoice(mode=choice or "auto", parallel=parallel)
    return ToolChoice(mode="required", name=choice.function.name, parallel=parallel)


def _text_of(content: str | Sequence[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def _message(message: ChatMessage) -> Message:
    content = _text_of(message.content)
    if isinstance(message, ToolMessage):
        return Message(
            role="tool", content=content, tool_call_id=message.tool_call_id, name=message.name
        )
    if isinstance(message, AssistantMessage):
        calls = tuple(
            ToolCall(id=use.id, name=use.function.name, arguments=use.function.arguments)
            for use in message.tool_calls or ()
        )
        return Message(role="assistant", content=content, tool_calls=calls)
    if isinstance(message, UserMessage):
        return Message(role="user", content=content)
    return Message(role="system", content=content)


def _structure(body: ChatBody) -> Structure | None:
    asked = body.response_format
    if asked is None or isinstance(asked, TextFormat):
        return body.edgewise.structure
    if body.edgewise.structure is not None:
        raise contradiction("edgewise.structure", "edgewise.structure and response_format differ")
    if isinstance(asked, JsonObjectFormat):
        return Structure(kind=StructureKind.JSON)
    return schema_structure(asked.json_schema.schema)


def function_tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> Tool:
    """Return a tool.

    Raises:
        InputError: it has no usable name, or its parameters are no schema of an object.
    """
    if parameters is None:
        return Tool(name=name, description=description or "")
    return Tool(name=name, description=description or "", parameters=_json(parameters))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _prompts(prompt: str | list[Any], prompts_max: int) -> list[str | tuple[int, ...]]:
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(isinstance(item, str) for item in prompt):
        found: list[str | tuple[int, ...]] = list(prompt)
    elif prompt and all(_is_id(item) for item in prompt):
        return [tuple(prompt)]
    elif prompt and all(isinstance(p, list) and p and all(map(_is_id, p)) for p in prompt):
        found = [tuple(ids) for ids in prompt]
    else:
        raise InputError(
            "parameter-invalid",
            "prompt: it is no text, no list of token ids, and no list of several of either",
            context={"param": "prompt"},
            hint="/openapi.json describes the parameters",
        )
    if len(found) > prompts_max:
        raise InputError(
            "parameter-invalid",
            f"prompt: there are {len(found)} prompts; at most {prompts_max} go into a request",
            context={"param": "prompt"},
            hint="send several requests",
        )
    return found


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31


def _ids(prompts: Iterable[str | tuple[int, ...]]) -> bool:
    return any(not isinstance(prompt, str) for prompt in prompts)
