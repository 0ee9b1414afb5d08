"""Evaluating a prompt: what the cache holds already is not evaluated again.

The engine's cache holds the tokens of the last request. What the next prompt shares with it is
kept; where a saved state shares more, that is restored instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgewise.core.outcome import Event
from edgewise.errors import UnsupportedError
from edgewise.run.prefixes import shared_length

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
        self._engine = engine
        self._prefixes = prefixes

    def clear(self) -> None:
        """Empty it."""
        self._engine.rewind(0)
        self.tokens.clear()

    def settle(self) -> None:
        """Forget the tokens that a call which failed or was cancelled did not leave behind."""
        del self.tokens[self._engine.position :]

    def persist(self) -> None:
        """Write what it holds to disk, where states are kept there."""
        if self._prefixes is not None:
            self._prefixes.keep(self.tokens, self._engine.save_state, to_disk=True)

    def reuse(self, tokens: list[int]) -> tuple[int, tuple[Event, ...]]:
        """Cut or restore it to what it shares with a prompt; return that length and events."""
        shared = shared_length(self.tokens, tokens)
        if self._prefixes is not None:
            shared = self._restored(self._prefixes, tokens, shared)
        events: tuple[Event, ...] = ()
        try:
            self._engine.rewind(shared)
        except UnsupportedError as error:
            self._engine.rewind(0)
            events = (_not_reused(shared, error),)
            shared = 0
        del self.tokens[shared:]
        return shared, events

    def evaluate(self, prompt: Prompt, progress: Callable[[int], None]) -> Any:
        """Evaluate what of a prompt is not in the cache; return the logits after it.

        Args:
            prompt: What it holds already is its beginning.
            progress: Called with the number of tokens that are done.
        """
        tokens, pinned = prompt.tokens, prompt.pinned
        if self._prefixes is not None and len(self.tokens) < pinned < len(tokens):
            # The pinned part is evaluated by itself, so that what is restored later rounds as a
            # clean run does.
            self._advance(tokens[len(self.tokens) : pinned], progress)
            self._prefixes.keep(self.tokens, self._engine.save_state, to_disk=True)
        if self._prefixes is not None and len(self.tokens) < len(tokens) - 1:
            # So is the last token: it is all that is left to evaluate when a prompt comes again.
            self._advance(tokens[len(self.tokens) : -1], progress)
        return self._advance(tokens[len(self.tokens) :], progress)

    def _advance(self, rest: list[int], progress: Callable[[int], None]) -> Any:
        before = len(self.tokens)
        try:
            return self._engine.prefill(rest, progress=lambda done: progress(before + done))
        finally:
            self.tokens += rest[: max(0, self._engine.position - before)]

    def _restored(self, prefixes: PrefixCache, tokens: list[int], shared: int) -> int:
        prefixes.displace(self.tokens, shared, self._engine.save_state)
        restored = prefixes.restore(self._engine, tokens, better_than=shared)
        if restored is not None:
            self.tokens[:] = restored
            return shared_length(restored, tokens)
        if self._engine.position < shared:  # a restore that failed left the cache empty
            self.tokens.clear()
            return 0
        return shared


def _not_reused(shared: int, error: UnsupportedError) -> Event:
    return Event(
        code="kv-cache-not-reused",
        message=f"{shared} shared prompt tokens are evaluated again: {error.message}",
        context={"tokens": shared},
    )
