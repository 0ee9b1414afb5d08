"""Conversations with tools in them, in the form a template takes.

A template that knows tools gets them as it expects them. For any other one, tools, calls and
results become text of the system's, the assistant's and the user's turns. All of it is content:
what it spells is never a control token.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from edgewise.core.request import Message
from edgewise.core.tools import Tool, ToolCall, ToolChoice
from edgewise.errors import InputError
from edgewise.run.tools.formats import ToolFormat

__all__ = [
    "called",
    "definitions",
    "explained",
    "native",
    "needs_format",
    "texts_of",
    "tool_message",
]

_SHORT_ID_CHARACTERS: Final = 9
_RESULT_TAG: Final = "tool_response"


def needs_format(messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
    """Return whether tools play a part in this conversation."""
    return bool(tools) or any(m.tool_calls or m.role == "tool" for m in messages)


def texts_of(messages: Sequence[Message], tools: Sequence[Tool]) -> list[str]:
    """Return every text of the caller's that can get into the prompt, escapes undone."""
    texts: list[str] = []
    for tool in tools:
        texts += [tool.name, tool.description, *_strings(_parameters(tool))]
    for message in messages:
        texts += [message.content, message.name or "", message.tool_call_id or ""]
        for call in message.tool_calls:
            texts += [call.id, call.name, *_strings(_arguments(call))]
    return texts


def definitions(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return the tools as templates take them.

    Raises:
        InputError: parameters are nested too deeply (``tool-invalid``).
    """
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": _parameters(tool),
            },
        }
        for tool in tools
    ]


def _parameters(tool: Tool) -> Any:
    try:
        return json.loads(tool.parameters)
    except (ValueError, RecursionError) as error:
        raise InputError(
            "tool-invalid",
            f"the parameters of the tool {tool.name!r} cannot be read: {str(error)[:100]}",
            hint="give a JSON Schema that is less deeply nested",
        ) from error


def _strings(value: Any) -> list[str]:
    """Return every text in JSON-like data, keys included."""
    found: list[str] = []
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            left += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            left += item
    return found


def called(form: ToolFormat, id_: str, name: str, arguments: Any) -> dict[str, Any]:
    """Return a call as the template takes it."""
    given = json.dumps(arguments, ensure_ascii=False) if form.takes_text else arguments
    return {
        "id": _id(form, id_),
        "type": "function",
        "function": {"name": name, "arguments": given},
    }


def tool_message(
    form: ToolFormat, id_: str | None, name: str | None, content: str
) -> dict[str, Any]:
    """Return what a tool answered as the template takes it."""
    message: dict[str, Any] = {"role": "tool", "content": content}
    if name is not None:
        message["name"] = name
    if id_ is not None:
        message["tool_call_id"] = _id(form, id_)
    return message


def native(messages: Sequence[Message], form: ToolFormat) -> list[dict[str, Any]]:
    """Return the conversation for a template that knows tools.

    Raises:
        InputError: the arguments of a call are no JSON object (``message-invalid``).
    """
    rendered: list[dict[str, Any]] = []
    names = _names(messages)
    for message in messages:
        if message.role == "tool":
            id_ = message.tool_call_id
            name = message.name or names.get(id_ or "")
            rendered.append(tool_message(form, id_, name, message.content))
            continue
        one: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            one["tool_calls"] = [
                called(form, call.id, call.name, _arguments(call)) for call in message.tool_calls
            ]
        rendered.append(one)
    return rendered


def explained(
    messages: Sequence[Message], tools: Sequence[Tool], choice: ToolChoice, form: ToolFormat
) -> list[dict[str, Any]]:
    """Return the conversation for a template that knows no tools, and the tools as text in it.

    Raises:
        InputError: the arguments of a call are no JSON object (``message-invalid``).
    """
    rendered: list[dict[str, Any]] = []
    names = _names(messages)
    joins = False  # several results, and what the user says to them, are one turn
    for message in messages:
        if message.role == "tool":
            content = _result(message.name or names.get(message.tool_call_id or ""), message)
            role = "user"
        else:
            role, content = message.role, message.content
        if message.tool_calls:
            spelled = form.spell([(call.name, _arguments(call)) for call in message.tool_calls])
            content = f"{content}\n{spelled}" if content else spelled
        if joins and role == "user":
            rendered[-1]["content"] += f"\n{content}"
        else:
            rendered.append({"role": role, "content": content})
        joins = message.role == "tool" or (joins and role == "user")
    if tools:
        _put_first(rendered, _explanation(tools, choice, form), form)
    return rendered


def _put_first(messages: list[dict[str, Any]], text: str, form: ToolFormat) -> None:
    first = messages[0] if messages else {"role": ""}
    if first["role"] == "system":
        first["content"] = f"{first['content']}\n\n{text}"
    elif first["role"] == "user" and not form.system_turn:
        first["content"] = f"{text}\n\n{first['content']}"
    else:
        messages.insert(0, {"role": "system", "content": text})


def _explanation(tools: Sequence[Tool], choice: ToolChoice, form: ToolFormat) -> str:
    lines = [json.dumps(one["function"], ensure_ascii=False) for one in definitions(tools)]
    example = form.spell([("NAME", {"ARGUMENT": "VALUE"})])
    rule = "To call one or more of them, write for each call, and nothing else:"
    if choice.parallel is False:
        rule = "To call one of them, write this, and nothing else:"
    if choice.mode == "required":
        which = f"the tool {choice.name}" if choice.name else "a tool"
        what = "Write this once" if choice.forces_one else "Write for each call"
        rule = f"You must call {which} now. {what}, and nothing else:"
    about = "You can call these tools. Each line describes one of them, with the JSON Schema of "
    return "\n".join([about + "its arguments:", *lines, "", rule, example])


def _result(name: str | None, message: Message) -> str:
    value = (
        {"content": message.content}
        if name is None
        else {
            "name": name,
            "content": message.content,
        }
    )
    text = json.dumps(value, ensure_ascii=False)
    if f"{_RESULT_TAG}>" in text:  # it must not end its own frame
        text = text.replace("<", "\\u003c")
    return f"<{_RESULT_TAG}>\n{text}\n</{_RESULT_TAG}>"


def _names(messages: Sequence[Message]) -> dict[str, str]:
    """Return the name of the tool for each call's id."""
    return {call.id: call.name for message in messages for call in message.tool_calls}


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InputError(
            "message-invalid",
            f"the arguments of the call {call.id[:80]!r} are no JSON object",
            context={"call": call.id[:80]},
            hint="give back the calls of an answer as they were",
        )
    return value


def _id(form: ToolFormat, id_: str) -> str:
    if not form.takes_short_ids:
        return id_
    if len(id_) == _SHORT_ID_CHARACTERS and id_.isascii() and id_.isalnum():
        return id_
    return hashlib.sha256(id_.encode("utf-8", "surrogatepass")).hexdigest()[:_SHORT_ID_CHARACTERS]
