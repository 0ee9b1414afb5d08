"""Evaluating a prompt: what the cache holds already is not evaluated again.

The engine's cache holds the tokens of the last request. What the next prompt shares with it is
kept; where a saved state shares more, that is restored instead.

A logit depends a little on which tokens were evaluated in one step. A clean run evaluates the
pinned part by itself, in whole steps from its beginning. Where states are saved, what is reused
of a pinned part was evaluated so, and an answer is therefore that of a clean run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgewise.core.outcome import Event
from edgewise.errors import UnsupportedError
from edgewise.run.prefixes import TOKENS_MIN, shared_length

if TYPE_CHECKING:
    from edgewise.run.prefixes import PrefixCache
    from edgewise.run.prompting import Prompt
    from edgewise.runtimes.protocol import Engine

__all__ = ["Cache"]


class Cache:
    """An engine's KV cache, and the tokens that are in it.

    Attributes:
        tokens: What the engine's cache holds.
    """

    def __init__(self, engine: Engine, prefixes: PrefixCache | None) -> None:
        """Take an engine whose cache is empty, and where its states are saved."""
        self.tokens: list[int] = []
        self._clean = 0  # a pinned part, or whole steps, evaluated as in a clean run
        self._step = getattr(engine, "step_tokens", 0)
        self._engine = engine
        self._prefixes = prefixes

    def clear(self) -> None:
        """Empty it."""
        self._engine.rewind(0)
        self._cut(0)

    def settle(self) -> None:
        """Forget the tokens that a call which failed or was cancelled did not leave behind."""
        self._cut(self._engine.position)

    def persist(self) -> int:
        """Write what it holds to disk, where states are kept there; return how many tokens."""
        if self._prefixes is None:
            return 0
        self._keep(self._prefixes)
        return len(self.tokens) if self._prefixes.on_disk(self.tokens) else 0

    def reuse(self, prompt: Prompt) -> tuple[int, tuple[Event, ...]]:
        """Cut or restore it to what it shares with a prompt; return that length and events."""
        tokens = prompt.tokens
        shared = shared_length(self.tokens, tokens)
        if self._prefixes is not None:
            shared = self._restored(self._prefixes, tokens, shared)
            shared = self._as_a_clean_run(shared, prompt)
        events: tuple[Event, ...] = ()
        try:
            self._engine.rewind(shared)
        except UnsupportedError as error:
            self._engine.rewind(0)
            events = (_not_reused(shared, error),)
            shared = 0
        self._cut(shared)
        return shared, events

    def evaluate(self, prompt: Prompt, progress: Callable[[int], None]) -> Any:
        """Evaluate what of a prompt is not in the cache; return the logits after it.

        Args:
            prompt: What it holds already is its beginning.
            progress: Called with the number of tokens that are done.
        """
        tokens, pinned = prompt.tokens, prompt.pinned
        last = len(tokens) - 1
        if self._prefixes is not None:
            if len(self.tokens) < pinned <= last:
                self._advance_cleanly(tokens, pinned, progress)
                self._keep(self._prefixes)
            # The last token by itself too: it is all that is left when a prompt comes again.
            if not pinned:
                self._advance_cleanly(tokens, last, progress)
            elif len(self.tokens) < last:
                self._advance(tokens[len(self.tokens) : last], progress)
        return self._advance(tokens[len(self.tokens) :], progress)

    def _as_a_clean_run(self, shared: int, prompt: Prompt) -> int:
        """Return where to go on so that a prompt is evaluated in a clean run's steps.

        Of the pinned part, whole clean steps are kept; behind it a conversation that goes on is
        kept whole, and few shared tokens are not worth rounding otherwise.
        """
        pinned = prompt.pinned
        if shared < pinned or (pinned and self._clean != pinned):
            return self._whole_steps(min(shared, self._clean, pinned))
        few = shared - pinned < TOKENS_MIN and shared < len(prompt.tokens) - 1
        return pinned if few and shared < len(self.tokens) else shared

    def _whole_steps(self, tokens: int) -> int:
        return tokens // self._step * self._step if self._step else 0

    def _cut(self, length: int) -> None:
        del self.tokens[length:]
        if length < self._clean:
            self._clean = self._whole_steps(length)

    def _keep(self, prefixes: PrefixCache) -> None:
        prefixes.keep(self.tokens, self._engine.save_state, to_disk=True, clean=self._clean)

    def _advance_cleanly(
        self, tokens: list[int], end: int, progress: Callable[[int], None]
    ) -> None:
        start = len(self.tokens)
        clean = start == self._whole_steps(min(start, self._clean))
        if start < end:
            self._advance(tokens[start:end], progress)
            if clean:
                self._clean = end

    def _advance(self, rest: list[int], progress: Callable[[int], None]) -> Any:
        before = len(self.tokens)
        try:
            return self._engine.prefill(rest, progress=lambda done: progress(before + done))
        finally:
            self.tokens += rest[: max(0, self._engine.position - before)]

    def _restored(self, prefixes: PrefixCache, tokens: list[int], shared: int) -> int:
        prefixes.displace(self.tokens, shared, self._engine.save_state, clean=self._clean)
        restored = prefixes.restore(self._engine, tokens, better_than=shared)
        if restored is not None:
            self.tokens[:], self._clean = restored
            return shared_length(self.tokens, tokens)
        if self._engine.position < shared:  # a restore that failed left the cache empty
            self._cut(0)
            return 0
        return shared


def _not_reused(shared: int, error: UnsupportedError) -> Event:
    return Event(
        code="kv-cache-not-reused",
        message=f"{shared} shared prompt tokens are evaluated again: {error.message}",
        context={"tokens": shared},
    )
