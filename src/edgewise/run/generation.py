"""The decode loop, beside the engine in the worker.

Text goes out as it comes: the first piece at once, later ones at most every
:data:`FLUSH_INTERVAL_S`. Each frame wakes the session's process, which on a small device takes
a core from the kernels; a person cannot see the difference.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgewise.core.outcome import Event, FinishReason
from edgewise.core.request import DEFAULT_MAX_TOKENS
from edgewise.device.process import peak_resident_bytes
from edgewise.errors import InputError, UnsupportedError
from edgewise.run.messages import Chunk, Generated, GenerateParams, Notice, Prefilled
from edgewise.run.sampler import Sampler
from edgewise.run.stream import TextStream
from edgewise.runtimes.protocol import CancelledError

if TYPE_CHECKING:
    from edgewise.runtimes.protocol import Engine

__all__ = ["FLUSH_INTERVAL_S", "Generator"]

FLUSH_INTERVAL_S = 0.025


class Generator:
    """Answers prompts on one engine and keeps track of what its KV cache holds."""

    def __init__(self, engine: Engine, end_token_ids: tuple[int, ...]) -> None:
        self._engine = engine
        self._end = frozenset(end_token_ids)
        self._cached: list[int] = []

    def generate(
        self, prompt: list[int], params: GenerateParams, emit: Callable[[Notice], None]
    ) -> Generated:
        """Return how the generation ended, after its text went out through ``emit``.

        Raises:
            InputError: prompt and answer do not fit into the context.
            AdapterError: the native runtime failed.
        """
        limit = self._reserve(len(prompt), params.max_tokens)
        run = _Run(params, limit, emit)
        deadline = self._arm(params.deadline_s, run)
        try:
            logits = self._prefill(prompt, run)
            self._decode(logits, run)
        except CancelledError:
            run.finish = FinishReason.DEADLINE if run.deadline_passed else FinishReason.CANCELLED
        finally:
            if deadline is not None:
                deadline.cancel()
            del self._cached[self._engine.position :]
        run.close()
        return Generated(
            finish=run.finish,
            prompt_tokens=len(prompt),
            reused_tokens=run.reused,
            completion_tokens=run.completion_tokens,
            prefill_ms=run.prefill_ms,
            decode_ms=run.decode_ms,
            seed=params.sampling.seed if params.sampling.temperature > 0 else None,
            peak_resident_bytes=peak_resident_bytes(),
            events=tuple(run.events),
        )

    def _reserve(self, prompt_tokens: int, max_tokens: int | None) -> int:
        context = self._engine.context_length
        room = context - prompt_tokens
        facts = {"prompt_tokens": prompt_tokens, "context": context, "max_tokens": max_tokens}
        if room < 1:
            raise InputError(
                "prompt-too-long",
                f"the prompt has {prompt_tokens} tokens and the context holds {context}, of which "
                "at least 1 is for the answer",
                context=facts,
                hint="shorten the prompt, or use a larger context: --context N",
            )
        if max_tokens is None:
            return min(room, DEFAULT_MAX_TOKENS)
        if max_tokens > room:
            raise InputError(
                "context-too-small",
                f"{prompt_tokens} prompt tokens and {max_tokens} for the answer do not fit into a "
                f"context of {context}",
                context=facts,
                hint=f"ask for at most {room} tokens, or use a larger context: --context N",
            )
        return max_tokens

    def _arm(self, deadline_s: float | None, run: _Run) -> threading.Timer | None:
        if deadline_s is None:
            return None

        def passed() -> None:
            run.deadline_passed = True
            self._engine.cancel()

        timer = threading.Timer(deadline_s, passed)
        timer.daemon = True
        timer.start()
        return timer

    def _prefill(self, prompt: list[int], run: _Run) -> Any:
        run.reused = self._reuse(prompt, run)
        rest = prompt[run.reused :]
        started = time.perf_counter()

        def progress(done: int) -> None:
            if done < len(rest):
                run.emit(Prefilled(done=run.reused + done, total=len(prompt)))

        try:
            logits = self._engine.prefill(rest, progress=progress)
        finally:
            run.prefill_ms = (time.perf_counter() - started) * 1e3
            self._cached += rest[: max(0, self._engine.position - len(self._cached))]
        return logits

    def _reuse(self, prompt: list[int], run: _Run) -> int:
        """Cut the cache to the part it shares with the prompt; return that part's length."""
        # The last prompt token is always evaluated: its logits are what comes next.
        most = min(len(self._cached), len(prompt) - 1)
        shared = next((i for i in range(most) if self._cached[i] != prompt[i]), most)
        try:
            self._engine.rewind(shared)
        except UnsupportedError as error:
            self._engine.rewind(0)
            run.events.append(
                Event(
                    code="kv-cache-not-reused",
                    message=f"{shared} shared prompt tokens are evaluated again: {error.message}",
                    context={"tokens": shared},
                )
            )
            shared = 0
        del self._cached[shared:]
        return shared

    def _decode(self, logits: Any, run: _Run) -> None:
        sample, push, token_bytes = Sampler(run.params.sampling), run.push, self._engine.token_bytes
        decode, cached, end = self._engine.decode, self._cached, self._end
        started: float | None = None
        try:
            while True:
                token = sample(logits)
                if token in end:
                    run.finish = FinishReason.STOP
                    return
                run.completion_tokens += 1
                push(token_bytes(token))
                if started is None:
                    started = time.perf_counter()
                if run.stream.stopped:
                    run.finish = FinishReason.STOP
                    return
                if run.completion_tokens >= run.limit:
                    run.finish = FinishReason.LENGTH
                    return
                logits = decode(token)
                cached.append(token)
        finally:
            if started is not None:
                run.decode_ms = (time.perf_counter() - started) * 1e3


class _Run:
    """What one generation accumulates."""

    def __init__(self, params: GenerateParams, limit: int, emit: Callable[[Notice], None]) -> None:
        self.params = params
        self.limit = limit
        self.emit = emit
        self.stream = TextStream(params.stop)
        self.finish = FinishReason.CANCELLED
        self.deadline_passed = False
        self.reused = 0
        self.completion_tokens = 0
        self.prefill_ms = 0.0
        self.decode_ms = 0.0
        self.events: list[Event] = []
        self._pending: list[str] = []
        self._flushed = 0.0

    def push(self, data: bytes) -> None:
        text = self.stream.push(data)
        if text:
            self._pending.append(text)
        if self._pending:
            now = time.perf_counter()
            if now - self._flushed >= FLUSH_INTERVAL_S:
                self._flush(now)

    def close(self) -> None:
        """Send what is left and note what a reader should know about the text."""
        self._pending.append(self.stream.finish(cut=self.finish is not FinishReason.STOP))
        self._flush(time.perf_counter())
        if self.stream.replaced:
            self.events.append(
                Event(
                    code="invalid-utf8-from-model",
                    message="the model produced bytes that are no text; they are shown as U+FFFD",
                )
            )

    def _flush(self, now: float) -> None:
        text = "".join(self._pending)
        self._pending.clear()
        self._flushed = now
        if text:
            self.emit(Chunk(text=text))
