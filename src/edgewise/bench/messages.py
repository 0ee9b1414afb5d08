"""What the bench's worker is asked, and what it answers; nothing heavy is imported here."""

from __future__ import annotations

import msgspec

from edgewise.core.quantity import Quantity

__all__ = ["SERVICE", "FillParams", "LoopParams", "LoopTimes", "StepTimes", "TimeParams"]

SERVICE = "edgewise.bench.service:BenchService"


class FillParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fill the context, leaving room for ``decode_tokens``."""

    decode_tokens: int = 8


class TimeParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time one prefill and some decode steps for each number of threads."""

    threads: tuple[int, ...]
    prompt_tokens: int
    decode_tokens: int


class StepTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times for one number of threads; ``decode_ms`` has one entry per step."""

    threads: int
    prefill_ms: float
    decode_ms: tuple[float, ...]


class LoopParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Greedy generation from a rendered prompt, for exactly ``decode_tokens`` tokens."""

    prompt: str
    decode_tokens: int


class LoopTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the bare loop took. ``decode_ms`` covers the tokens after the first."""

    prompt_tokens: int
    decoded: int
    prefill_ms: float
    decode_ms: float
    text: str
    peak_resident_bytes: Quantity
