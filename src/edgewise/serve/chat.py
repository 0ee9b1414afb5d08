"""``/v1/chat/completions``: an outcome in the shape of OpenAI's chat, whole or streamed."""

from __future__ import annotations

import secrets
import time

import msgspec

from edgewise.core.outcome import Completed
from edgewise.core.request import Request
from edgewise.run.messages import Chunk
from edgewise.serve.about import Telling
from edgewise.serve.bodies import ChatBody
from edgewise.serve.problems import ProblemError
from edgewise.serve.replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatReply,
    Delta,
    FunctionDelta,
    Said,
    ToolCalled,
    ToolDelta,
    finish,
    usage,
)
from edgewise.serve.spelling import chat_logprobs
from edgewise.serve.streaming import event

__all__ = ["ChatFrames", "chat_reply"]

_encode = msgspec.json.Encoder().encode


def chat_reply(
    body: ChatBody, model: str, outcome: Completed, waited_s: float, telling: Telling
) -> ChatReply:
    """Return a whole answer."""
    calls = [
        ToolCalled(id=call.id, function=FunctionDelta(name=call.name, arguments=call.arguments))
        for call in outcome.tool_calls
    ]
    said = Said(
        role="assistant",
        content=None if calls and not outcome.text else outcome.text,
        refusal=None,
        tool_calls=calls or None,
    )
    choice = ChatChoice(
        message=said,
        finish_reason=finish(outcome),
        logprobs=chat_logprobs(outcome.logprobs) if body.logprobs else None,
    )
    answer_id = _id()
    return ChatReply(
        id=answer_id,
        created=int(time.time()),
        model=model,
        choices=[choice],
        usage=usage([outcome.tokens]),
        system_fingerprint=outcome.provenance.fingerprint,
        edgewise=telling.about(answer_id, outcome, waited_s),
    )


class ChatFrames:
    """Writes the events of a streamed chat."""

    def __init__(self, body: ChatBody, model: str, fingerprint: str, telling: Telling) -> None:
        self._telling = telling
        self._logprobs = bool(body.logprobs)
        options = body.stream_options
        self._with_usage = options is not None and bool(options.include_usage)
        self._base = ChatChunk(
            id=_id(),
            created=int(time.time()),
            model=model,
            system_fingerprint=fingerprint,
            choices=[],
            usage=None if self._with_usage else msgspec.UNSET,
        )

    def next_request(self, request: Request, *, last: bool) -> None:
        """There is only one."""

    def begin(self) -> bytes:
        """Return the event that names the role."""
        return self._event(ChatChunkChoice(delta=Delta(role="assistant", content="")))

    def chunk(self, chunk: Chunk) -> bytes:
        """Return the event of a chunk."""
        logprobs = chat_logprobs(chunk.logprobs) if self._logprobs else None
        return self._event(ChatChunkChoice(delta=Delta(content=chunk.text), logprobs=logprobs))

    def end(self, outcome: Completed, waited_s: float) -> bytes:
        """Return the tool calls, the end with its reason, and the usage where it was asked for."""
        parts = []
        for i, call in enumerate(outcome.tool_calls):
            function = FunctionDelta(name=call.name, arguments=call.arguments)
            delta = Delta(tool_calls=[ToolDelta(index=i, id=call.id, function=function)])
            parts.append(self._event(ChatChunkChoice(delta=delta)))
        last = ChatChunkChoice(delta=Delta(), finish_reason=finish(outcome))
        about = self._telling.about(self._base.id, outcome, waited_s)
        parts.append(self._event(last, edgewise=about))
        if self._with_usage:
            counted = msgspec.structs.replace(self._base, usage=usage([outcome.tokens]))
            parts.append(event(_encode(counted)))
        parts.append(event(b"[DONE]"))
        return b"".join(parts)

    def error(self, problem: ProblemError) -> bytes:
        """Return the event of an error."""
        return event(_encode(problem.reply))

    def _event(self, choice: ChatChunkChoice, **fields: object) -> bytes:
        return event(_encode(msgspec.structs.replace(self._base, choices=[choice], **fields)))


def _id() -> str:
    return f"chatcmpl-{secrets.token_hex(12)}"
