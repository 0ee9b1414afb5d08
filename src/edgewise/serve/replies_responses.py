"""What ``/v1/responses`` answers: the response object, and the events of its stream."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from edgewise.serve.about import About

__all__ = [
    "FunctionCallOutput",
    "Incomplete",
    "MessageOutput",
    "OutputItem",
    "OutputText",
    "ResponseReply",
    "ResponseUsage",
    "Status",
]

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is written out."""


class OutputText(_Reply, frozen=True, kw_only=True):
    """The answer's text."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []
    type: Literal["output_text"] = "output_text"


class MessageOutput(_Reply, frozen=True, kw_only=True):
    """The answer's message."""

    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"
    type: Literal["message"] = "message"


class FunctionCallOutput(_Reply, frozen=True, kw_only=True):
    """A call that the model made."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status
    type: Literal["function_call"] = "function_call"


OutputItem: TypeAlias = MessageOutput | FunctionCallOutput


class InputDetails(_Reply, frozen=True, kw_only=True):
    """Prompt tokens that were still in the cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(_Reply, frozen=True, kw_only=True):
    """There is no hidden reasoning."""

    reasoning_tokens: int = 0


class ResponseUsage(_Reply, frozen=True, kw_only=True):
    """Tokens, counted as tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    total_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()

    @classmethod
    def of(cls, prompt: int, reused: int, completion: int) -> ResponseUsage:
        """Return the usage of an answer."""
        return cls(
            input_tokens=prompt,
            input_tokens_details=InputDetails(cached_tokens=reused),
            output_tokens=completion,
            total_tokens=prompt + completion,
        )


class Incomplete(_Reply, frozen=True, kw_only=True):
    """Why an answer is cut."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseReply(_Reply, frozen=True, kw_only=True):
    """A response. It is not stored, so its id finds nothing later."""

    id: str
    created_at: int
    model: str
    status: Status
    output: Any  # list[OutputItem]; msgspec cannot decode that union, and nobody decodes it
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    tool_choice: Any
    tools: list[Any]
    text: Any
    metadata: dict[str, str]
    user: str | None
    usage: ResponseUsage | None = None
    error: dict[str, Any] | None = None
    incomplete_details: Incomplete | None = None
    edgewise: About | msgspec.UnsetType = msgspec.UNSET
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    store: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    object: Literal["response"] = "response"
