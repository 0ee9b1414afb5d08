"""The part of an engine that every token-by-token runtime shares.

A subclass evaluates tokens and cuts its cache; bounds, positions, prefill in steps, cancelling
between steps, undo after a failure and the header of a saved state are kept here, so that all
runtimes refuse and recover alike.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.runtimes.protocol import CancelledError
from edgewise.runtimes.reports import MemoryReport, PartitionReport

if TYPE_CHECKING:
    import numpy as np

    from edgewise.core.recipe import RunConfig

__all__ = ["SteppedEngine", "TextCodec", "refuse_hints", "refuse_parallel"]

_STATE_HEADER = struct.Struct("<8sI32s32sQ")
_STATE_MAGIC = b"EWSTATE1"


class TextCodec(Protocol):
    """Text to token ids and back."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the token ids of ``text``."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token stands for; empty for a control token."""
        ...


class SteppedEngine(abc.ABC):
    """An engine that evaluates tokens in steps. Not thread-safe, except ``cancel``."""

    runtime: str = "runtime"

    def __init__(
        self,
        *,
        context_length: int,
        vocab_size: int,
        step_tokens: int,
        codec: TextCodec,
        verify_tokens: int = 0,
    ) -> None:
        """Take what the artifact says.

        Args:
            context_length: Tokens the cache holds.
            vocab_size: Logits of one step.
            step_tokens: Most tokens one prefill step takes; a cancel waits for one step.
            codec: The model's tokenizer.
            verify_tokens: Most tokens :meth:`verify` takes; 0 for an engine that gives the
                logits of a step's last token only.
        """
        self._verify_tokens = verify_tokens
        self._context_length = context_length
        self._vocab_size = vocab_size
        self._step_tokens = max(1, step_tokens)
        self._codec = codec
        self._position = 0
        self._cancel = threading.Event()

    @property
    def position(self) -> int:
        """Return how many tokens the KV cache holds."""
        return self._position

    @property
    def context_length(self) -> int:
        """Return how many tokens the KV cache can hold."""
        return self._context_length

    @property
    def vocab_size(self) -> int:
        """Return how many logits one step gives."""
        return self._vocab_size

    @property
    def step_tokens(self) -> int:
        """Return how many tokens one prefill step takes at most."""
        return self._step_tokens

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the token ids of ``text``."""
        return self._codec.tokenize(text, add_special=add_special, parse_special=parse_special)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token stands for; empty for a control token."""
        return self._codec.token_bytes(token)

    def prefill(
        self, tokens: Sequence[int], *, progress: Callable[[int], None] | None = None
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Evaluate ``tokens`` and return the logits after the last one.

        See :meth:`edgewise.runtimes.protocol.Engine.prefill`.
        """
        if not tokens:
            raise InputError("prompt-empty", "there is no token to evaluate")
        self._require_tokens(tokens)
        self._require_room(len(tokens))
        logits = None
        with self._undo_to(self._position):
            for done in range(0, len(tokens), self._step_tokens):
                self._stop_if_cancelled()
                chunk = list(tokens[done : done + self._step_tokens])
                logits = self._evaluate(chunk)
                self._position += len(chunk)
                if progress is not None:
                    progress(done + len(chunk))
            self._stop_if_cancelled()
        assert logits is not None
        return logits

    def verify(self, tokens: Sequence[int]) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
        """Evaluate ``tokens`` in one step and return the logits after each.

        See :meth:`edgewise.runtimes.protocol.VerifyingEngine.verify`.
        """
        if not self._verify_tokens:
            raise UnsupportedError(
                "verify-unsupported",
                f"{self.runtime} gives the logits of a step's last token only",
            )
        if not 1 <= len(tokens) <= self._verify_tokens:
            raise InputError(
                "step-too-long",
                f"{len(tokens)} tokens cannot be verified at once; 1 to {self._verify_tokens} can",
                context={"tokens": len(tokens), "verify_tokens": self._verify_tokens},
            )
        self._require_tokens(tokens)
        self._require_room(len(tokens))
        with self._undo_to(self._position):
            self._stop_if_cancelled()
            rows = self._evaluate_all(list(tokens))
        self._position += len(tokens)
        return rows

    @property
    def verify_tokens(self) -> int:
        """Return how many tokens :meth:`verify` takes at most; 0 when it takes none."""
        return self._verify_tokens

    def _evaluate_all(self, tokens: list[int]) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
        raise NotImplementedError(f"{self.runtime} says it verifies {len(tokens)} tokens")

    def decode(self, token: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Evaluate one token and return the logits after it.

        See :meth:`edgewise.runtimes.protocol.Engine.decode`.
        """
        if self._position >= self._context_length:
            self._require_room(1)
        with self._undo_to(self._position):
            self._stop_if_cancelled()
            logits = self._evaluate([token])
        self._position += 1
        return logits

    def rewind(self, position: int) -> None:
        """Cut the KV cache back to ``position`` tokens.

        Raises:
            InputError: the position lies outside what was evaluated.
            UnsupportedError: the runtime cannot cut its cache there.
        """
        if not 0 <= position <= self._position:
            raise InputError(
                "rewind-invalid", f"cannot rewind to {position}; the cache holds {self._position}"
            )
        if position != self._position:
            self._truncate(position)
            self._position = position

    def save_state(self) -> bytes:
        """Return the KV cache with a header that :meth:`restore_state` verifies.

        Raises:
            UnsupportedError: the runtime cannot give its cache out.
        """
        body = self._save()
        digest = hashlib.sha256(body).digest()
        return (
            _STATE_HEADER.pack(
                _STATE_MAGIC, self._position, self._identity_digest(), digest, len(body)
            )
            + body
        )

    def restore_state(self, state: bytes) -> None:
        """Replace the KV cache by a saved one.

        Raises:
            UnsupportedError: the runtime cannot take a cache in.
            IntegrityError: the bytes are damaged or were saved by another engine; the cache is
                empty afterwards.
        """
        self._truncate(0)
        self._position = 0
        if len(state) < _STATE_HEADER.size:
            raise IntegrityError("state-damaged", "the saved state is shorter than its header")
        magic, position, identity, digest, size = _STATE_HEADER.unpack_from(state)
        body = memoryview(state)[_STATE_HEADER.size :]  # a state has megabytes: no copy
        if magic != _STATE_MAGIC or size != len(body) or hashlib.sha256(body).digest() != digest:
            raise IntegrityError("state-damaged", "the saved state fails its digest")
        if identity != self._identity_digest() or position > self._context_length:
            raise IntegrityError(
                "state-of-another-engine",
                "the saved state belongs to another model, KV format, runtime or a larger context",
            )
        self._load(body, position)
        self._position = position

    def cancel(self) -> None:
        """Abort the running call at its next step. Callable from any thread."""
        self._cancel.set()

    def clear_cancel(self) -> None:
        """Arm the engine for the next call."""
        self._cancel.clear()

    @property
    def cancelled(self) -> bool:
        """Return whether a cancel is pending."""
        return self._cancel.is_set()

    @abc.abstractmethod
    def _evaluate(self, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Append ``tokens`` to the cache; return the logits after the last, ``(vocab_size,)``."""

    @abc.abstractmethod
    def _truncate(self, position: int) -> None:
        """Cut the cache to ``position`` tokens; ``self.position`` is still the old one.

        Called with 0 as well, also after a step failed half-way. Raise
        :class:`UnsupportedError` for any other position that cannot be reached exactly.
        """

    def _identity(self) -> tuple[object, ...]:
        """Return what makes a saved state this engine's own; needed with ``_save``."""
        return ()

    def _save(self) -> bytes | bytearray:
        raise _no_state(self.runtime)

    def _load(self, body: memoryview, position: int) -> None:  # noqa: ARG002 - for the subclass
        raise _no_state(self.runtime)

    @abc.abstractmethod
    def memory(self) -> MemoryReport:
        """Return what the process and the runtime hold."""

    @abc.abstractmethod
    def partition(self) -> PartitionReport:
        """Return which operators run where."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free the model. The engine is unusable afterwards."""

    def _identity_digest(self) -> bytes:
        facts = (self.runtime, self._vocab_size, *self._identity())
        return hashlib.sha256(repr(facts).encode()).digest()

    def _require_tokens(self, tokens: Sequence[int]) -> None:
        bad = next((token for token in tokens if not 0 <= token < self._vocab_size), None)
        if bad is not None:
            raise InputError(
                "token-invalid",
                f"token {bad} is not in the vocabulary",
                hint=f"token ids of this model go from 0 to {self._vocab_size - 1}",
            )

    def _require_room(self, count: int) -> None:
        if self._position + count > self._context_length:
            raise InputError(
                "context-full",
                f"{count} more tokens do not fit: the context holds {self._context_length}, "
                f"{self._position} are taken",
                context={"needed": self._position + count, "context": self._context_length},
            )

    def _stop_if_cancelled(self) -> None:
        if self._cancel.is_set():
            raise CancelledError

    @contextlib.contextmanager
    def _undo_to(self, position: int) -> Iterator[None]:
        try:
            yield
        except Exception:
            # What a failed step left behind is of unknown extent: cut it off.
            try:
                self._truncate(position)
            except UnsupportedError:
                self._truncate(0)
                position = 0
            self._position = position
            raise


def refuse_hints(runtime: str, run_config: RunConfig, known: Sequence[str]) -> None:
    """Refuse a run configuration with a hint that the runtime does not know.

    Raises:
        UnsupportedError: there is such a hint; names it and the known ones.
    """
    for name, _ in run_config.hints:
        if name not in known:
            raise UnsupportedError(
                "hint-unknown",
                f"{runtime} has no setting called {name!r}",
                hint=f"it has: {', '.join(known) or 'none'}",
            )


def refuse_parallel(runtime: str, run_config: RunConfig, most: int) -> None:
    """Refuse a run configuration that answers more requests at once than a runtime can.

    Raises:
        UnsupportedError: it does; names how many there can be.
    """
    if run_config.parallel > most:
        raise UnsupportedError(
            "parallel-unsupported",
            f"{runtime} answers {most} request{'s' if most > 1 else ''} at once, and "
            f"{run_config.parallel} are asked for",
            context={"asked": run_config.parallel, "most": most},
            hint=f"use --parallel {most}" if most > 1 else "leave --parallel out",
        )


def _no_state(runtime: str) -> UnsupportedError:
    return UnsupportedError(
        "state-save-unsupported",
        f"{runtime} cannot save or restore its KV cache",
        hint="evaluate the prompt again",
    )
