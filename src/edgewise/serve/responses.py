"""``/v1/responses``: the text core of OpenAI's newer endpoint, whole or streamed."""

from __future__ import annotations

import secrets
import time
from typing import Any

import msgspec

from edgewise.core.outcome import Completed, FinishReason, TokenLogprob
from edgewise.core.request import Message, Request
from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool, ToolCall, ToolChoice
from edgewise.run.messages import Chunk
from edgewise.serve.about import About, Telling
from edgewise.serve.asking import (
    common_fields,
    contradiction,
    function_tool,
    require_partners,
    schema_structure,
)
from edgewise.serve.bodies_responses import (
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    MessageItem,
    ResponseBody,
    ResponseJsonSchema,
    ResponseText,
    ResponseTextFormat,
)
from edgewise.serve.problems import ProblemError
from edgewise.serve.replies_responses import (
    FunctionCallOutput,
    Incomplete,
    MessageOutput,
    OutputItem,
    OutputText,
    ResponseReply,
    ResponseUsage,
    Status,
)
from edgewise.serve.spelling import chat_logprobs
from edgewise.serve.streaming import event

__all__ = ["ResponseFrames", "response_reply", "response_request"]

_encode = msgspec.json.Encoder().encode


def response_request(body: ResponseBody) -> Request:
    """Return what a body for ``/v1/responses`` asks.

    Raises:
        InputError: two parameters contradict each other, or one is out of its range.
    """
    if body.top_logprobs is not None and not body.include:
        raise contradiction("top_logprobs", "top_logprobs needs message.output_text.logprobs")
    require_partners(body)
    messages = [Message(role="system", content=body.instructions)] if body.instructions else []
    return Request(
        messages=(*messages, *_messages(body.input)),
        max_tokens=body.max_output_tokens,
        structure=_structure(body),
        tools=tuple(_tools(body)),
        tool_choice=_tool_choice(body),
        logprobs=(body.top_logprobs or 0) if body.include else None,
        **common_fields(body, None),
    )


def response_reply(
    body: ResponseBody, model: str, outcome: Completed, waited_s: float, telling: Telling
) -> ResponseReply:
    """Return a whole answer."""
    begun = _begun(body, model)
    about = telling.about(begun.id, outcome, waited_s)
    return _finished(begun, _items(body, outcome), outcome, about)


class ResponseFrames:
    """Writes the events of a streamed response."""

    def __init__(self, body: ResponseBody, model: str, telling: Telling) -> None:
        self._telling = telling
        self._body = body
        self._begun = _begun(body, model)
        self._message_id = f"msg_{secrets.token_hex(12)}"
        self._number = 0

    def next_request(self, request: Request, *, last: bool) -> None:
        """There is only one."""

    def begin(self) -> bytes:
        """Return the events in front of the text."""
        empty = MessageOutput(id=self._message_id, status="in_progress", content=[])
        return b"".join(
            (
                self._event("response.created", response=self._begun),
                self._event("response.in_progress", response=self._begun),
                self._event("response.output_item.added", output_index=0, item=empty),
                self._part("response.content_part.added", part=OutputText(text="")),
            )
        )

    def chunk(self, chunk: Chunk) -> bytes:
        """Return the event of a chunk."""
        logprobs = _logprobs(self._body, chunk.logprobs)
        return self._part("response.output_text.delta", delta=chunk.text, logprobs=logprobs)

    def end(self, outcome: Completed, waited_s: float) -> bytes:
        """Return the events after the text."""
        items = _items(self._body, outcome, message_id=self._message_id, always=True)
        message = items[0]
        assert isinstance(message, MessageOutput)
        part = message.content[0]
        parts = [
            self._part("response.output_text.done", text=part.text, logprobs=part.logprobs),
            self._part("response.content_part.done", part=part),
            self._event("response.output_item.done", output_index=0, item=message),
        ]
        for index, item in enumerate(items[1:], start=1):
            assert isinstance(item, FunctionCallOutput)
            parts += self._call(index, item)
        about = self._telling.about(self._begun.id, outcome, waited_s)
        whole = _finished(self._begun, items, outcome, about)
        parts.append(self._event(f"response.{whole.status}", response=whole))
        return b"".join(parts)

    def error(self, problem: ProblemError) -> bytes:
        """Return the events of an error: as such, and as the response's end."""
        error = problem.reply.error
        failed = msgspec.structs.replace(
            self._begun, status="failed", error=msgspec.to_builtins(error)
        )
        return self._event(
            "error", code=error.code, message=error.message, param=error.param
        ) + self._event("response.failed", response=failed)

    def _call(self, index: int, item: FunctionCallOutput) -> list[bytes]:
        begun = msgspec.structs.replace(item, status="in_progress", arguments="")
        where = {"output_index": index, "item_id": item.id}
        name = "response.function_call_arguments"
        return [
            self._event("response.output_item.added", output_index=index, item=begun),
            self._event(f"{name}.delta", delta=item.arguments, **where),
            self._event(f"{name}.done", arguments=item.arguments, name=item.name, **where),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def _part(self, kind: str, **fields: Any) -> bytes:
        return self._event(
            kind, item_id=self._message_id, output_index=0, content_index=0, **fields
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = _encode({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return event(data, kind.encode())


def _begun(body: ResponseBody, model: str) -> ResponseReply:
    choice = body.tool_choice
    return ResponseReply(
        id=f"resp_{secrets.token_hex(12)}",
        created_at=int(time.time()),
        model=model,
        status="in_progress",
        output=[],
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        tool_choice=choice or "auto",
        parallel_tool_calls=_is_parallel(body),
        tools=list(body.tools or ()),
        text=body.text or ResponseText(),
        metadata=body.metadata or {},
        user=body.user,
    )


def _is_parallel(body: ResponseBody) -> bool:
    """Return whether the answer may hold several calls."""
    if body.parallel_tool_calls is None:
        return not _tool_choice(body).forces_one
    return body.parallel_tool_calls


def _finished(
    begun: ResponseReply, items: list[OutputItem], outcome: Completed, about: About
) -> ResponseReply:
    counts = outcome.tokens
    counted = counts.prompt is not None and counts.completion is not None
    cut = outcome.finish is FinishReason.LENGTH
    return msgspec.structs.replace(
        begun,
        status="incomplete" if cut else "completed",
        incomplete_details=Incomplete() if cut else None,
        output=items,
        usage=ResponseUsage.of(counts.prompt or 0, counts.reused, counts.completion or 0)
        if counted
        else None,
        edgewise=about,
    )


def _items(
    body: ResponseBody, outcome: Completed, *, message_id: str = "", always: bool = False
) -> list[OutputItem]:
    status: Status = "incomplete" if outcome.finish is FinishReason.LENGTH else "completed"
    items: list[OutputItem] = []
    if outcome.text or always or not outcome.tool_calls:
        part = OutputText(text=outcome.text, logprobs=_logprobs(body, outcome.logprobs))
        message_id = message_id or f"msg_{secrets.token_hex(12)}"
        items.append(MessageOutput(id=message_id, status=status, content=[part]))
    items += [
        FunctionCallOutput(
            id=f"fc_{secrets.token_hex(12)}",
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
            status="completed",
        )
        for call in outcome.tool_calls
    ]
    return items


def _logprobs(body: ResponseBody, tokens: tuple[TokenLogprob, ...]) -> list[Any]:
    return list(chat_logprobs(tokens).content) if body.include else []


def _messages(given: str | list[Item]) -> list[Message]:
    if isinstance(given, str):
        return [Message(role="user", content=given)]
    messages: list[Message] = []
    for item in given:
        if isinstance(item, FunctionOutputItem):
            messages.append(Message(role="tool", content=item.output, tool_call_id=item.call_id))
        elif isinstance(item, FunctionCallItem):
            call = ToolCall(id=item.call_id, name=item.name, arguments=item.arguments)
            last = messages[-1] if messages else None
            if last is not None and last.role == "assistant":  # the same turn
                calls = (*last.tool_calls, call)
                messages[-1] = msgspec.structs.replace(last, tool_calls=calls)
            else:
                messages.append(Message(role="assistant", content="", tool_calls=(call,)))
        else:
            role = "system" if item.role == "developer" else item.role
            messages.append(Message(role=role, content=_text(item)))
    return messages


def _text(item: MessageItem) -> str:
    if isinstance(item.content, str):
        return item.content
    return "".join(part.text for part in item.content)


def _structure(body: ResponseBody) -> Structure | None:
    asked = body.text.format if body.text is not None else ResponseTextFormat()
    if isinstance(asked, ResponseTextFormat):
        return body.edgewise.structure
    if body.edgewise.structure is not None:
        raise contradiction("edgewise.structure", "edgewise.structure and text.format differ")
    if isinstance(asked, ResponseJsonSchema):
        return schema_structure(asked.schema)
    return Structure(kind=StructureKind.JSON)


def _tools(body: ResponseBody) -> list[Tool]:
    return [function_tool(t.name, t.description, t.parameters) for t in body.tools or ()]


def _tool_choice(body: ResponseBody) -> ToolChoice:
    choice = body.tool_choice
    parallel = body.parallel_tool_calls
    if choice is None or isinstance(choice, str):
        return ToolChoice(mode=choice or "auto", parallel=parallel)
    return ToolChoice(mode="required", name=choice.name, parallel=parallel)
