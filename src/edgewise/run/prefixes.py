"""Saved states of the KV cache: of conversations and of system prompts, in memory and on disk.

A state belongs to one deployment on one engine and to exactly the tokens it was made from. Before
it is used its digest is checked here and its identity by the engine; on any doubt it is thrown
away and the prompt is evaluated, which is slower and never wrong. Memory and disk each have a
quota, and the state used longest ago goes first. With a state goes how many of its tokens were
evaluated in the steps of a clean run: the rest may round otherwise.

One thread keeps and restores; any may :meth:`~PrefixCache.shrink` meanwhile.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from edgewise.errors import EdgewiseError, UnsupportedError
from edgewise.run.prefix_files import PrefixFiles

if TYPE_CHECKING:
    from edgewise.runtimes.protocol import Engine

__all__ = ["TOKENS_MIN", "PrefixCache", "shared_length"]

Tokens = TypeVar("Tokens", list[int], tuple[int, ...])

# Below this, evaluating again costs less than looking after a state.
TOKENS_MIN: Final = 32


class PrefixCache:
    """States by their tokens, the one used last at the end."""

    def __init__(self, memory_bytes: int, files: PrefixFiles | None = None) -> None:
        """Take the memory quota in bytes, and where states go to disk."""
        self._quota = memory_bytes
        self._files = files
        self._states: OrderedDict[tuple[int, ...], tuple[bytes, int]] = OrderedDict()
        self._unsupported = False
        self._shrunk = False
        self._lock = threading.Lock()  # of what lies in memory; never held for long

    @property
    def resident_bytes(self) -> int:
        """Return what the states in memory take."""
        with self._lock:
            return self._total()

    def shrink(self) -> int:
        """Drop the states in memory and keep none there until :meth:`grow`; return their bytes."""
        with self._lock:
            self._shrunk = True
            dropped = self._total()
            self._states.clear()
        return dropped

    def grow(self) -> None:
        """Keep states in memory again, within the quota."""
        with self._lock:
            self._shrunk = False

    def on_disk(self, tokens: list[int]) -> bool:
        """Return whether the state that stands for ``tokens`` lies on disk."""
        return self._files is not None and self._files.holds(tuple(tokens))

    def keep(
        self, tokens: list[int], save: Callable[[], bytes], *, to_disk: bool, clean: int = 0
    ) -> None:
        """Save the state that stands for ``tokens``, unless it is saved or too short.

        ``clean`` is how many of the tokens were evaluated as in a clean run.
        """
        key = tuple(tokens)
        if len(key) < TOKENS_MIN or self._unsupported:
            return
        on_disk = self._files is not None and to_disk and not self._files.holds(key)
        kept = self._get(key)
        if not on_disk and (kept is not None or not self._room):
            return
        if kept is None:
            try:
                kept = (save(), clean)
            except UnsupportedError:
                self._unsupported = True  # the engine cannot; nothing is lost but time
                return
        if on_disk and self._files is not None:
            self._files.write(key, *kept)
        self._put(key, kept)

    def displace(
        self, tokens: list[int], shared: int, save: Callable[[], bytes], *, clean: int = 0
    ) -> None:
        """Save what the cache holds before all but ``shared`` tokens of it are cut away."""
        if len(tokens) - shared >= TOKENS_MIN:
            self.keep(tokens, save, to_disk=False, clean=clean)

    def restore(
        self, engine: Engine, tokens: list[int], *, better_than: int
    ) -> tuple[list[int], int] | None:
        """Restore the state that shares most with a prompt.

        Returns the tokens it stands for and how many of them are clean, or ``None`` when no
        state shares at least 32 tokens more than ``better_than``, or the one that did was thrown
        away; then the engine's cache may be empty.
        """
        wanted = tuple(tokens)
        at_least = better_than + TOKENS_MIN
        with self._lock:
            held = list(self._states)
        key, length = self._best(held, wanted)
        in_memory = length >= at_least
        if self._files is not None:
            other, longer = self._best(self._files.keys(), wanted)
            if longer >= max(at_least, length + 1):
                key, length, in_memory = other, longer, False
        if length < at_least or key is None:
            return None
        kept = self._get(key) if in_memory else self._read(key)
        if kept is None:
            return None
        try:
            engine.restore_state(kept[0])
        except EdgewiseError:
            self._forget(key)
            return None
        self._put(key, kept)
        return list(key), kept[1]

    @property
    def _room(self) -> int:
        return 0 if self._shrunk else self._quota

    def _get(self, key: tuple[int, ...]) -> tuple[bytes, int] | None:
        """Return a state in memory; it counts as used."""
        with self._lock:
            if key in self._states:
                self._states.move_to_end(key)
            return self._states.get(key)

    def _put(self, key: tuple[int, ...], kept: tuple[bytes, int]) -> None:
        """Keep a state in memory, where there is room for it."""
        with self._lock:
            if len(kept[0]) <= self._room:
                self._states[key] = kept
                self._states.move_to_end(key)
                while self._total() > self._quota:
                    self._states.popitem(last=False)

    def _total(self) -> int:
        return sum(len(state) for state, _ in self._states.values())

    @staticmethod
    def _best(
        keys: Iterable[tuple[int, ...]], wanted: tuple[int, ...]
    ) -> tuple[tuple[int, ...] | None, int]:
        best: tuple[tuple[int, ...] | None, int] = (None, 0)
        for key in keys:
            shared = shared_length(key, wanted)
            if shared > best[1]:
                best = (key, shared)
        return best

    def _read(self, key: tuple[int, ...]) -> tuple[bytes, int] | None:
        return None if self._files is None else self._files.read(key)

    def _forget(self, key: tuple[int, ...]) -> None:
        with self._lock:
            self._states.pop(key, None)
        if self._files is not None:
            self._files.remove(key)


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
