"""A queued payload read back: the request that its bytes are, for rules that judge requests.

What is read back is written again and compared: bytes that do not come out the same are not
understood, and nothing is decided about them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from edgewise.core.canonical import canonical_json
from edgewise.core.request import Message, Request, Sampling
from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool, ToolCall, ToolChoice
from edgewise.errors import EdgewiseError
from edgewise.route.cloud import CloudPayload

__all__ = ["fields_of", "payload_of", "request_of"]


def payload_of(data: bytes) -> CloudPayload | None:
    """Return the payload whose body these very bytes are; ``None`` where there is none."""
    try:
        payload = _payload(msgspec.json.decode(data))
        same = payload.body == data
    except (EdgewiseError, msgspec.MsgspecError, RecursionError):
        return None
    except (AttributeError, KeyError, TypeError, ValueError):  # it has another form
        return None
    return payload if same else None


def request_of(payload: CloudPayload, *, task: str, data_class: str) -> Request:
    """Return what is asked, as the router judges it: in the form in which it would leave.

    Raises:
        InputError: no request can be like this.
    """
    return Request(
        messages=payload.messages,
        max_tokens=payload.max_tokens,
        sampling=Sampling(temperature=payload.temperature or 0.0, seed=payload.seed),
        stop=payload.stop,
        structure=payload.structure,
        tools=payload.tools,
        task=task,
        data_class=data_class,
    )


def fields_of(payload: CloudPayload) -> tuple[str, ...]:
    """Return which fields of a request it holds, by the names that policies declare."""
    held = {
        "messages": payload.messages,
        "tools": payload.tools,
        "structure": payload.structure,
        "stop": payload.stop,
    }
    return tuple(name for name, value in held.items() if value)


def _payload(told: dict[str, Any]) -> CloudPayload:
    limit = "max_tokens" if "max_tokens" in told else "max_completion_tokens"
    return CloudPayload(
        model=told["model"],
        messages=tuple(_message(one) for one in told["messages"]),
        max_tokens=told[limit],
        max_tokens_field=limit,
        temperature=told.get("temperature"),
        top_p=told.get("top_p"),
        seed=told.get("seed"),
        stop=tuple(told.get("stop", ())),
        structure=_structure(told.get("response_format")),
        tools=tuple(_tool(one["function"]) for one in told.get("tools", ())),
        tool_choice=_choice(told),
        stream=told["stream"],
    )


def _message(told: dict[str, Any]) -> Message:
    calls = tuple(ToolCall(id=one["id"], **one["function"]) for one in told.get("tool_calls", ()))
    return Message(
        role=told["role"],
        content=told["content"],
        tool_calls=calls,
        tool_call_id=told.get("tool_call_id"),
    )


def _structure(told: dict[str, Any] | None) -> Structure | None:
    if told is None:
        return None
    if told["type"] == "json_object":
        return Structure(kind=StructureKind.JSON)
    source = canonical_json(told["json_schema"]["schema"]).decode()
    return Structure(kind=StructureKind.JSON_SCHEMA, source=source)


def _tool(told: dict[str, Any]) -> Tool:
    return Tool(
        name=told["name"],
        description=told.get("description", ""),
        parameters=canonical_json(told["parameters"]).decode(),
    )


def _choice(told: dict[str, Any]) -> ToolChoice:
    choice, parallel = told.get("tool_choice", "auto"), told.get("parallel_tool_calls")
    if isinstance(choice, str):
        return ToolChoice(mode=choice, parallel=parallel)
    return ToolChoice(mode="required", name=choice["function"]["name"], parallel=parallel)
