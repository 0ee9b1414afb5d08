"""What a session and its worker say to each other."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from edgewise.core.bundle import TextSettings
from edgewise.core.outcome import Event, FinishReason, Speculation, TokenLogprob
from edgewise.core.quantity import Quantity
from edgewise.core.recipe import RunConfig
from edgewise.core.request import ContextPolicy, Message, Sampling
from edgewise.core.signals import Signals
from edgewise.core.structure import Structure
from edgewise.core.tools import Tool, ToolCall, ToolChoice

__all__ = [
    "Chunk",
    "GenerateParams",
    "Generated",
    "LoadParams",
    "Loaded",
    "Notice",
    "Prefilled",
    "PrefixSettings",
    "RuntimeFacts",
    "Shrunk",
]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all messages."""


class PrefixSettings(_Struct, frozen=True, kw_only=True):
    """Where states of the KV cache are kept between requests, and how many bytes of them.

    Attributes:
        memory_bytes: Quota in the worker's memory; 0 keeps none.
        disk_bytes: Quota of all deployments' states on disk; 0 keeps none.
        home: The home folder they lie in.
        fingerprint: The deployment they belong to.
    """

    memory_bytes: int = 0
    disk_bytes: int = 0
    home: str = ""
    fingerprint: str = ""


class LoadParams(_Struct, frozen=True, kw_only=True):
    """Load an artifact with a runtime, and beside it the artifact of a draft model, if any."""

    runtime: str
    artifact: str
    run_config: RunConfig
    text: TextSettings | None = None
    prefixes: PrefixSettings | None = None
    draft: str | None = None


class Loaded(_Struct, frozen=True, kw_only=True):
    """The artifact is loaded. ``load_ms`` covers the native library too.

    ``vocab_size`` is ``None`` for an engine that gives text only.
    """

    vocab_size: int | None
    load_ms: float


class Shrunk(_Struct, frozen=True, kw_only=True):
    """The worker gave memory back: its resident set before and after, and the states it dropped."""

    dropped_bytes: int
    before_bytes: Quantity
    after_bytes: Quantity


class RuntimeFacts(_Struct, frozen=True, kw_only=True):
    """Which runtime a worker runs: its version, and the digest of its native libraries."""

    name: str
    version: str
    operators: str


class GenerateParams(_Struct, frozen=True, kw_only=True):
    """Generate an answer; the fields are a :class:`~edgewise.core.request.Request`'s.

    ``deadline_s`` counts from when the worker takes the call.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    max_tokens: int | None
    sampling: Sampling
    stop: tuple[str, ...]
    deadline_s: float | None
    context_policy: ContextPolicy = ContextPolicy.REJECT
    structure: Structure | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    logprobs: int | None = None
    echo: bool = False
    signals: bool = False
    speculate: bool = True


class Chunk(_Struct, frozen=True, kw_only=True, tag="chunk"):
    """Text to show, whole characters only.

    ``logprobs``, where they were asked for, are of the tokens chosen since the last chunk. Text
    that may still become a stop text is held back, so a chunk's tokens need not spell its text.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Prefilled(_Struct, frozen=True, kw_only=True, tag="prefilled"):
    """Progress of the prompt."""

    done: int
    total: int


Notice: TypeAlias = Chunk | Prefilled


class Generated(_Struct, frozen=True, kw_only=True):
    """How generation ended. The text went out in chunks.

    Token counts are ``None`` where the runtime does not tell them.
    """

    finish: FinishReason
    prompt_tokens: int | None
    reused_tokens: int
    completion_tokens: int | None
    prefill_ms: float
    decode_ms: float
    seed: int | None
    peak_resident_bytes: Quantity
    events: tuple[Event, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    speculation: Speculation | None = None
    signals: Signals | None = None
