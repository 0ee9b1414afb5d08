"""An engine whose logits are a function of the tokens before, so that a loop can be checked whole.

Its ``verify`` moves logits a little, as a pass over several tokens does; its cache is a list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgewise.errors import InputError, IntegrityError
from edgewise.runtimes.protocol import CancelledError

VOCABULARY = 40
END = 0


class ScriptedEngine:
    """Continues its own past: after the last two tokens comes what mostly came before."""

    vocab_size = VOCABULARY
    verify_tokens = 16

    def __init__(
        self,
        *,
        context_length: int = 400,
        noise: float = 0.0,
        noise_from: int = 0,
        ties: float = 0.0,
    ) -> None:
        self.context_length = context_length
        self.cache: list[int] = []
        self.noise = noise
        self.noise_from = noise_from
        self.ties = ties
        self.evaluated = 0
        self.cancel_after: int | None = None

    @property
    def position(self) -> int:
        return len(self.cache)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        del add_special, parse_special
        return [1 + ord(letter) % (VOCABULARY - 1) for letter in text]

    def token_bytes(self, token: int) -> bytes:
        return b"" if token == END else bytes([96 + token])

    def logits(self, history: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return what follows a history; a repeated one follows itself."""
        seed = hashlib.sha256(repr(tuple(history[-3:])).encode()).digest()
        random = np.random.default_rng(list(seed[:8]))
        values = random.normal(size=VOCABULARY).astype(np.float32)
        place = next((i for i in range(len(history) - 2, 1, -1) if self._same(history, i)), None)
        if place is not None:
            values[history[place]] += 6
        if random.random() < self.ties:  # the two best are as good as the same
            order = np.argsort(-values)
            values[order[1]] = values[order[0]] - 1e-4
        values[END] -= 2
        return values

    @staticmethod
    def _same(history: Sequence[int], place: int) -> bool:
        return tuple(history[place - 2 : place]) == tuple(history[-2:])

    def prefill(
        self, tokens: Sequence[int], *, progress: Callable[[int], None] | None = None
    ) -> np.ndarray[Any, Any]:
        if self.position + len(tokens) > self.context_length:
            raise InputError("context-full", "full")
        self._step()
        self.cache += tokens
        if progress is not None:
            progress(len(tokens))
        return self.logits(self.cache)

    def decode(self, token: int) -> np.ndarray[Any, Any]:
        return self.prefill([token])

    def verify(self, tokens: Sequence[int]) -> list[np.ndarray[Any, Any]]:
        if self.position + len(tokens) > self.context_length:
            raise InputError("context-full", "full")
        self._step()
        random = np.random.default_rng(self.position)
        rows = []
        for token in tokens:
            self.cache.append(token)
            noise = self.noise if self.position > self.noise_from else 0.0
            moved = random.uniform(-noise, noise, VOCABULARY).astype(np.float32)
            rows.append(self.logits(self.cache) + moved)
        return rows

    def rewind(self, position: int) -> None:
        if not 0 <= position <= self.position:
            raise InputError("rewind-invalid", "no")
        del self.cache[position:]

    def save_state(self) -> bytes:
        body = repr(self.cache).encode()
        return hashlib.sha256(body).digest() + body

    def restore_state(self, state: bytes) -> None:
        self.cache.clear()
        digest, body = state[:32], state[32:]
        if hashlib.sha256(body).digest() != digest:
            raise IntegrityError("state-damaged", "no state")
        self.cache += [int(part) for part in body[1:-1].split(b",") if part.strip()]

    def cancel(self) -> None: ...

    def clear_cancel(self) -> None: ...

    def close(self) -> None: ...

    def memory(self) -> Any: ...

    def partition(self) -> Any: ...

    def _step(self) -> None:
        self.evaluated += 1
        if self.cancel_after is not None and self.evaluated > self.cancel_after:
            raise CancelledError
