"""What a session and its worker say to each other."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from edgewise.core.bundle import TextSettings
from edgewise.core.outcome import Event, FinishReason
from edgewise.core.quantity import Quantity
from edgewise.core.recipe import RunConfig
from edgewise.core.request import Message, Sampling

__all__ = [
    "Chunk",
    "GenerateParams",
    "Generated",
    "LoadParams",
    "Loaded",
    "Notice",
    "Prefilled",
    "RuntimeFacts",
]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all messages."""


class LoadParams(_Struct, frozen=True, kw_only=True):
    """Load an artifact with a runtime."""

    runtime: str
    artifact: str
    run_config: RunConfig
    text: TextSettings | None = None


class Loaded(_Struct, frozen=True, kw_only=True):
    """The artifact is loaded. ``load_ms`` covers the native library too.

    ``vocab_size`` is ``None`` for an engine that gives text only.
    """

    vocab_size: int | None
    load_ms: float


class RuntimeFacts(_Struct, frozen=True, kw_only=True):
    """Which runtime a worker runs: its version, and the digest of its native libraries."""

    name: str
    version: str
    operators: str


class GenerateParams(_Struct, frozen=True, kw_only=True):
    """Generate an answer. ``deadline_s`` counts from when the worker takes the call."""

    messages: tuple[Message, ...]
    max_tokens: int | None
    sampling: Sampling
    stop: tuple[str, ...]
    deadline_s: float | None


class Chunk(_Struct, frozen=True, kw_only=True, tag="chunk"):
    """Text to show, whole characters only."""

    text: str


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
