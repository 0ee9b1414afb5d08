"""Answers of a runtime that turns messages into text by itself.

Template, sampling and end tokens are the runtime's own there; what is left to do here is to cut
at stop texts, to keep to the deadline, and to say what happened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edgewise.core.outcome import Event, FinishReason
from edgewise.core.request import DEFAULT_MAX_TOKENS, ContextPolicy
from edgewise.device.process import peak_resident_bytes
from edgewise.errors import InputError, UnsupportedError
from edgewise.run.deadline import Deadline
from edgewise.run.messages import Chunk, Generated, GenerateParams, Notice
from edgewise.run.stream import TextStream
from edgewise.runtimes.protocol import CancelledError
from edgewise.runtimes.reports import TextResult

if TYPE_CHECKING:
    from edgewise.runtimes.protocol import TextEngine

__all__ = ["NativeGenerator"]


class NativeGenerator:
    """Answers messages on one text engine."""

    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine

    def generate(self, params: GenerateParams, emit: Callable[[Notice], None]) -> Generated:
        """Return how the generation ended, after its text went out through ``emit``.

        Raises:
            InputError: prompt and answer do not fit into the context.
            UnsupportedError: the request asks for what takes tokens or logits.
            AdapterError: the native runtime failed.
        """
        _refuse(params, self._engine)
        limit = self._limit(params.max_tokens)
        result: TextResult | None = None
        with Deadline(params.deadline_s, self._engine.cancel) as deadline:
            answer = _Answer(self._engine, params, emit, deadline)
            try:
                result = self._engine.generate(
                    params.messages, max_tokens=limit, sampling=params.sampling, on_text=answer.take
                )
                finish = answer.finish_after(result.finish)
            except CancelledError:
                finish = answer.finish_after(FinishReason.CANCELLED)
        answer.close(finish)
        return _generated(params, finish, result)

    def _limit(self, max_tokens: int | None) -> int:
        context = self._engine.context_length
        if max_tokens is None:
            return min(context - 1, DEFAULT_MAX_TOKENS)
        if max_tokens >= context:
            raise InputError(
                "context-too-small",
                f"{max_tokens} tokens for the answer do not fit into a context of {context}",
                context={"context": context, "max_tokens": max_tokens},
                hint=f"ask for at most {context - 1} tokens",
            )
        return max_tokens


class _Answer:
    """The text of one answer on its way out, and what may end it early."""

    def __init__(
        self,
        engine: TextEngine,
        params: GenerateParams,
        emit: Callable[[Notice], None],
        deadline: Deadline,
    ) -> None:
        self._engine = engine
        self._deadline = deadline
        self._emit = emit
        self._stream = TextStream(params.stop)

    def take(self, text: str) -> None:
        self._send(self._stream.push(text.encode()))
        if self._stream.stopped:
            self._engine.cancel()

    def finish_after(self, native: FinishReason) -> FinishReason:
        if self._stream.stopped:
            return FinishReason.STOP
        late = self._deadline.reason is FinishReason.DEADLINE
        return FinishReason.DEADLINE if late else native

    def close(self, finish: FinishReason) -> None:
        self._send(self._stream.finish(cut=finish is not FinishReason.STOP))

    def _send(self, text: str) -> None:
        if text:
            self._emit(Chunk(text=text))


def _refuse(params: GenerateParams, engine: TextEngine) -> None:
    """Refuse by name what a runtime that only turns messages into text cannot do.

    An engine may have a ``structure_refusal``: why its own way of holding answers to a structure
    is not used.
    """
    asked = {
        "prompt": params.prompt is not None,
        "structure": params.structure is not None,
        "tools": bool(params.tools) and params.tool_choice.mode != "none",
        "logprobs": params.logprobs is not None,
        "signals": params.signals,
        "context_policy": params.context_policy is not ContextPolicy.REJECT,
    }
    for name, is_asked in asked.items():
        if is_asked:
            why = f"this runtime turns messages into text by itself and cannot honour {name}"
            if name in {"structure", "tools"}:
                own: str | None = getattr(engine, "structure_refusal", None)
                why += f": {own}" if own else ""
            raise UnsupportedError(
                "engine-text-only",
                why,
                context={"field": name},
                hint="leave it out, or set the model up for a runtime that gives logits",
            )


def _generated(
    params: GenerateParams, finish: FinishReason, result: TextResult | None
) -> Generated:
    events = [
        Event(
            code="native-generation",
            message="the runtime rendered the prompt and chose the tokens by itself",
        )
    ]
    counted = result is not None and None not in {result.prompt_tokens, result.completion_tokens}
    if not counted:
        events.append(
            Event(
                code="token-counts-unknown",
                message="the runtime did not tell how many tokens it used",
            )
        )
    return Generated(
        finish=finish,
        prompt_tokens=None if result is None else result.prompt_tokens,
        reused_tokens=0,
        completion_tokens=None if result is None else result.completion_tokens,
        prefill_ms=result.ttft_ms if result else 0.0,
        decode_ms=result.decode_ms if result else 0.0,
        seed=params.sampling.seed if params.sampling.temperature > 0 else None,
        peak_resident_bytes=peak_resident_bytes(),
        events=tuple(events),
    )
