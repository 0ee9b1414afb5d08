"""What the server answers, in the shapes of OpenAI's API with an ``edgewise`` object beside."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgewise.core.outcome import Completed, TokenCounts
from edgewise.serve.about import About

__all__ = [
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatLogprob",
    "ChatLogprobs",
    "ChatReply",
    "CompletionChoice",
    "CompletionLogprobs",
    "CompletionReply",
    "Delta",
    "FunctionDelta",
    "ModelAbout",
    "ModelCard",
    "ModelList",
    "Said",
    "ToolCalled",
    "ToolDelta",
    "TopLogprob",
    "Usage",
    "finish",
    "usage",
]

Finish = Literal["stop", "length", "tool_calls"]
_FINISH: dict[str, Finish] = {"stop": "stop", "length": "length", "tool-calls": "tool_calls"}


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is written out."""


class PromptDetails(_Reply, frozen=True, kw_only=True):
    """Prompt tokens that were still in the cache."""

    cached_tokens: int


class Usage(_Reply, frozen=True, kw_only=True):
    """Tokens, counted as tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage(counts: list[TokenCounts]) -> Usage | None:
    """Return the usage of one or several answers; ``None`` where a runtime does not count."""
    prompt = completion = reused = 0
    for count in counts:
        if count.prompt is None or count.completion is None:
            return None
        prompt += count.prompt
        completion += count.completion
        reused += count.reused
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(cached_tokens=reused),
    )


# -- chat -----------------------------------------------------------------------------------------


class TopLogprob(_Reply, frozen=True, kw_only=True):
    """One of the likeliest tokens."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(_Reply, frozen=True, kw_only=True):
    """One token of the answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Reply, frozen=True, kw_only=True):
    """The answer's tokens. They may spell more than its text, such as an end token."""

    content: list[ChatLogprob]
    refusal: None = None


class FunctionDelta(_Reply, frozen=True, kw_only=True):
    """The function of a call, whole."""

    name: str
    arguments: str


class ToolCalled(_Reply, frozen=True, kw_only=True):
    """A call that the model made."""

    id: str
    function: FunctionDelta
    type: Literal["function"] = "function"


class ToolDelta(_Reply, frozen=True, kw_only=True):
    """A call that the model made, in a stream."""

    index: int
    id: str
    function: FunctionDelta
    type: Literal["function"] = "function"


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model's message."""

    role: str
    content: str | None
    refusal: None
    tool_calls: list[ToolCalled] | None = None


class ChatChoice(_Reply, frozen=True, kw_only=True):
    """The answer."""

    message: Said
    finish_reason: Finish
    logprobs: ChatLogprobs | None
    index: int = 0


class ChatReply(_Reply, frozen=True, kw_only=True):
    """A whole answer of ``/v1/chat/completions``."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None
    system_fingerprint: str
    edgewise: About
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is new."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolDelta] | None = None


class ChatChunkChoice(_Reply, frozen=True, kw_only=True):
    """The answer, as far as it is new."""

    delta: Delta
    finish_reason: Finish | None = None
    logprobs: ChatLogprobs | None = None
    index: int = 0


class ChatChunk(_Reply, frozen=True, kw_only=True):
    """One event of a streamed chat. ``usage`` and ``edgewise`` come with the last ones."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    edgewise: About | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


# -- completions ----------------------------------------------------------------------------------


class CompletionLogprobs(_Reply, frozen=True, kw_only=True):
    """Tokens, side by side; ``None`` for the first of a prompt, which nothing precedes.

    A token that is no whole text is written as ``bytes:`` and its bytes in hexadecimal.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(_Reply, frozen=True, kw_only=True):
    """The answer to one prompt."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionReply(_Reply, frozen=True, kw_only=True):
    """Answers of ``/v1/completions``, or one event of their stream.

    ``edgewise`` holds one object for each prompt.
    """

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    edgewise: list[About] | msgspec.UnsetType = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"


# -- models ---------------------------------------------------------------------------------------


class ModelAbout(_Reply, frozen=True, kw_only=True):
    """What Edgewise says about a model."""

    name: str
    fingerprint: str
    runtime: str
    context_length: int


class ModelCard(_Reply, frozen=True, kw_only=True):
    """A model; ``created`` is when this server began to serve it."""

    id: str
    created: int
    edgewise: ModelAbout
    object: Literal["model"] = "model"
    owned_by: Literal["local"] = "local"


class ModelList(_Reply, frozen=True, kw_only=True):
    """All models: the active deployment."""

    data: list[ModelCard]
    object: Literal["list"] = "list"


def finish(outcome: Completed) -> Finish:
    """Return why an answer ended, in OpenAI's words."""
    return _FINISH[str(outcome.finish)]
