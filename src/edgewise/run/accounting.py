"""Timings of an answer, taken on the session's side, and the outcome they go into."""

from __future__ import annotations

import time

import msgspec

from edgewise.core.outcome import Completed, Provenance, Timings, TokenCounts
from edgewise.core.quantity import Estimated, Measured, Quantity, Unknown
from edgewise.run.messages import Generated

__all__ = ["Clock", "completed"]

_SESSION_CLOCK = "session clock"
_WORKER_CLOCK = "worker clock"


class Clock:
    """Points in time of one request, from its submission on."""

    def __init__(self) -> None:
        self._submitted = time.perf_counter()
        self._ready: float | None = None
        self._first_text: float | None = None

    def ready(self) -> None:
        """The worker is loaded and takes the request."""
        self._ready = time.perf_counter()

    def first_text(self) -> None:
        """The first text arrived."""
        self._first_text = time.perf_counter()

    def left_s(self, deadline_s: float | None) -> float | None:
        """Return what is left of a deadline; at least a thousandth of a second."""
        if deadline_s is None:
            return None
        return max(0.001, deadline_s - (time.perf_counter() - self._submitted))

    def timings(self, generated: Generated) -> Timings:
        """Return all timings, now that the answer has ended."""
        after_first = (generated.completion_tokens or 0) - 1
        rate: Quantity = Unknown(reason="fewer than two tokens were decoded")
        if after_first > 0 and generated.decode_ms > 0:
            rate = Measured(
                value=round(after_first / generated.decode_ms * 1e3, 2),
                source=_WORKER_CLOCK,
                n=after_first,
            )
        return Timings(
            queue_ms=self._since(self._ready, "the worker never took the request"),
            prefill_ms=Measured(value=round(generated.prefill_ms, 3), source=_WORKER_CLOCK),
            ttft_ms=self._since(self._first_text, "no text was produced"),
            decode_ms=Measured(value=round(generated.decode_ms, 3), source=_WORKER_CLOCK),
            total_ms=self._since(time.perf_counter(), ""),
            decode_tok_s=rate,
        )

    def _since(self, point: float | None, why_not: str) -> Quantity:
        if point is None:
            return Unknown(reason=why_not)
        return Measured(value=round((point - self._submitted) * 1e3, 3), source=_SESSION_CLOCK)


def completed(
    text: str,
    generated: Generated,
    clock: Clock,
    provenance: Provenance,
    *,
    app_peak_bytes: Quantity,
) -> Completed:
    """Return the outcome of an answer that came to its end, whole or cut."""
    return Completed(
        text=text,
        finish=generated.finish,
        tokens=TokenCounts(
            prompt=generated.prompt_tokens,
            reused=generated.reused_tokens,
            completion=generated.completion_tokens,
        ),
        timings=clock.timings(generated),
        provenance=msgspec.structs.replace(provenance, seed=generated.seed),
        memory_peak_bytes={
            "worker": generated.peak_resident_bytes,
            "app": app_peak_bytes,
            "total": _sum(generated.peak_resident_bytes, app_peak_bytes),
        },
        events=generated.events,
        tool_calls=generated.tool_calls,
        logprobs=generated.logprobs,
        prompt_logprobs=generated.prompt_logprobs,
        speculation=generated.speculation,
        signals=generated.signals,
    )


def _sum(a: Quantity, b: Quantity) -> Quantity:
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        return Unknown(reason="one of the two processes could not be read")
    return Estimated(
        value=int(a.number + b.number),
        source="sum of both processes' peaks, which need not coincide",
    )
