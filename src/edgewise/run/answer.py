"""What one answer accumulates on its way out.

Text goes out as it comes: the first piece at once, later ones at most every
:data:`FLUSH_INTERVAL_S`. Each frame wakes the session's process, which on a small device takes
a core from the kernels; a person cannot see the difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from edgewise.core.outcome import Event, FinishReason, Speculation, TokenLogprob
from edgewise.core.tools import ToolCall
from edgewise.run.messages import Chunk, GenerateParams, Notice
from edgewise.run.signals import SignalMeter
from edgewise.run.stream import TextStream

if TYPE_CHECKING:
    from edgewise.run.tools import CallParser

__all__ = ["FLUSH_INTERVAL_S", "Answer"]

FLUSH_INTERVAL_S: Final = 0.025


class Answer:
    """One answer: its limits, its text, and what has to be said about it.

    Attributes:
        params: What was asked.
        limit: Most tokens.
        finish: Why it ended, once it has.
        events: What a reader should know.
        completion_tokens: Tokens taken so far, without the one that ended it.
        decode_ms: Time from the first token to the last.
        logprobs: Of all tokens, where they were asked for.
        tool_calls: Calls it holds, once it is closed.
        speculation: What guessing came to.
        meter: Takes the answer's signals, where they were asked for.
    """

    def __init__(
        self,
        params: GenerateParams,
        limit: int,
        emit: Callable[[Notice], None],
        calls: CallParser | None = None,
    ) -> None:
        """Take where text goes, and what finds tool calls in it."""
        self.params = params
        self.limit = limit
        self.emit = emit
        self.finish = FinishReason.CANCELLED
        self.completion_tokens = 0
        self.decode_ms = 0.0
        self.events: list[Event] = []
        self.logprobs: list[TokenLogprob] = []
        self.tool_calls: tuple[ToolCall, ...] = ()
        self.speculation: Speculation | None = None
        self.meter = SignalMeter() if params.signals else None
        self._stream = TextStream(params.stop)
        self._calls = calls
        self._pending: list[str] = []
        self._shown: list[str] = []
        self._noted = 0
        self._flushed = 0.0
        self._started: float | None = None

    @property
    def spelled(self) -> dict[int, bytes]:
        """Return the bytes of control tokens that mark tool calls; others have none."""
        if self._calls is None:
            return {}
        return {token: text.encode() for token, text in self._calls.token_texts.items()}

    @property
    def text(self) -> str:
        """Return all that was shown so far."""
        return "".join(self._shown)

    @property
    def left(self) -> int:
        """Return how many more tokens may be taken."""
        return self.limit - self.completion_tokens

    def take(self, data: bytes) -> bool:
        """Add a token's bytes; return whether another token is wanted."""
        self.completion_tokens += 1
        self._push(data)
        if self._started is None:
            self._started = time.perf_counter()
        if self._stream.stopped:
            self.finish = FinishReason.STOP
            return False
        if self.completion_tokens >= self.limit:
            self.finish = FinishReason.LENGTH
            return False
        return True

    def note(self, logprob: TokenLogprob) -> None:
        """Keep the log-probability of the next token."""
        self.logprobs.append(logprob)

    def stop_clock(self) -> None:
        """The last token was decoded."""
        if self._started is not None:
            self.decode_ms = (time.perf_counter() - self._started) * 1e3

    def close(self) -> None:
        """Send what is left and note what a reader should know about the text."""
        cut = self.finish is not FinishReason.STOP
        self._show(self._stream.finish(cut=cut))
        if self._calls is not None:
            text, self.tool_calls, events = self._calls.finish(cut=cut)
            self.events += events
            if text:
                self._pending.append(text)
            if self.tool_calls and not cut:
                self.finish = FinishReason.TOOL_CALLS
        self._flush(time.perf_counter())
        if self._stream.replaced:
            self.events.append(
                Event(
                    code="invalid-utf8-from-model",
                    message="the model produced bytes that are no text; they are shown as U+FFFD",
                )
            )

    def _push(self, data: bytes) -> None:
        text = self._stream.push(data)
        if text:
            self._show(text)
        if self._pending:
            now = time.perf_counter()
            if now - self._flushed >= FLUSH_INTERVAL_S:
                self._flush(now)

    def _show(self, text: str) -> None:
        shown = text if self._calls is None or not text else self._calls.push(text)
        if shown:
            self._pending.append(shown)

    def _flush(self, now: float) -> None:
        text = "".join(self._pending)
        self._pending.clear()
        self._flushed = now
        fresh, self._noted = tuple(self.logprobs[self._noted :]), len(self.logprobs)
        if text:
            self._shown.append(text)
        if text or fresh:
            self.emit(Chunk(text=text, logprobs=fresh))
