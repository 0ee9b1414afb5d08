"""Saved states of the KV cache: of conversations and of system prompts, in memory and on disk.

A state belongs to one deployment on one engine and to exactly the tokens it was made from. Before
it is used its digest is checked here and its identity by the engine; on any doubt it is thrown
away and the prompt is evaluated, which is slower and never wrong. Memory and disk each have a
quota, and the state used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from edgewise.errors import EdgewiseError, UnsupportedError
from edgewise.run.prefix_files import PrefixFiles

if TYPE_CHECKING:
    from edgewise.runtimes.protocol import Engine

__all__ = ["PrefixCache", "shared_length"]

Tokens = TypeVar("Tokens", list[int], tuple[int, ...])

# Below this, evaluating again costs less than looking after a state.
_TOKENS_MIN: Final = 32


class PrefixCache:
    """States by their tokens, the one used last at the end."""

    def __init__(self, memory_bytes: int, files: PrefixFiles | None = None) -> None:
        """Take the memory quota in bytes, and where states go to disk."""
        self._quota = memory_bytes
        self._files = files
        self._states: OrderedDict[tuple[int, ...], bytes] = OrderedDict()
        self._unsupported = False

    @property
    def resident_bytes(self) -> int:
        """Return what the states in memory take."""
        return sum(map(len, self._states.values()))

    def keep(self, tokens: list[int], save: Callable[[], bytes], *, to_disk: bool) -> None:
        """Save the state that stands for ``tokens``, unless it is saved or too short."""
        key = tuple(tokens)
        if len(key) < _TOKENS_MIN or self._unsupported:
            return
        if key in self._states:
            self._states.move_to_end(key)
            return
        on_disk = self._files is not None and to_disk and not self._files.holds(key)
        if not self._quota and not on_disk:
            return
        try:
            state = save()
        except UnsupportedError:
            self._unsupported = True  # the engine cannot; nothing is lost but time
            return
        if on_disk and self._files is not None:
            self._files.write(key, state)
        if len(state) <= self._quota:
            self._states[key] = state
            self._evict()

    def displace(self, tokens: list[int], shared: int, save: Callable[[], bytes]) -> None:
        """Save what the cache holds before all but ``shared`` tokens of it are cut away."""
        if len(tokens) - shared >= _TOKENS_MIN:
            self.keep(tokens, save, to_disk=False)

    def restore(self, engine: Engine, tokens: list[int], *, better_than: int) -> list[int] | None:
        """Restore the state that shares most with a prompt; return the tokens it stands for.

        Returns ``None`` when no state shares at least 32 tokens more than ``better_than``, or
        the one that did was thrown away; then the engine's cache may be empty.
        """
        wanted = tuple(tokens)
        at_least = better_than + _TOKENS_MIN
        key, length = self._best(self._states, wanted)
        in_memory = length >= at_least
        if self._files is not None:
            other, longer = self._best(self._files.keys(), wanted)
            if longer >= max(at_least, length + 1):
                key, length, in_memory = other, longer, False
        if length < at_least or key is None:
            return None
        state = self._states.get(key) if in_memory else self._read(key)
        if state is None:
            return None
        try:
            engine.restore_state(state)
        except EdgewiseError:
            self._forget(key)
            return None
        if in_memory:
            self._states.move_to_end(key)
        elif len(state) <= self._quota:
            self._states[key] = state
            self._evict()
        return list(key)

    @staticmethod
    def _best(keys: object, wanted: tuple[int, ...]) -> tuple[tuple[int, ...] | None, int]:
        best: tuple[tuple[int, ...] | None, int] = (None, 0)
        for key in keys:  # type: ignore[attr-defined]
            shared = shared_length(key, wanted)
            if shared > best[1]:
                best = (key, shared)
        return best

    def _read(self, key: tuple[int, ...]) -> bytes | None:
        return None if self._files is None else self._files.read(key)

    def _forget(self, key: tuple[int, ...]) -> None:
        self._states.pop(key, None)
        if self._files is not None:
            self._files.remove(key)

    def _evict(self) -> None:
        while self.resident_bytes > self._quota:
            self._states.popitem(last=False)


def shared_length(held: Tokens, wanted: Tokens) -> int:
    """Return how many tokens of a prompt need not be evaluated when ``held`` is in the cache.

    The prompt's last token is always evaluated: its logits are what comes next.
    """
    most = min(len(held), len(wanted) - 1)
    if held[:most] == wanted[:most]:
        return most
    low, high = 0, most  # the first difference, by halves: comparing slices needs no interpreter
    while high - low > 1:
        middle = (low + high) // 2
        if held[low:middle] == wanted[low:middle]:
            low = middle
        else:
            high = middle
    return low
