"""Several sequences in one context of llama.cpp, each an engine of its own.

Every sequence has its own part of the KV cache (the cache is not unified), so none can see
another's cells, and each keeps the context length that was asked for. The library joins only
sequences with consecutive numbers into one pass; requests therefore take the lowest free number.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edgewise.core.recipe import RunConfig
from edgewise.errors import EdgewiseError, UnsupportedError
from edgewise.runtimes.batching import Batcher
from edgewise.runtimes.llamacpp.engine import FamilyEngine
from edgewise.runtimes.llamacpp.library import Library
from edgewise.runtimes.protocol import SharedEngine
from edgewise.runtimes.reports import MemoryReport, PartitionReport
from edgewise.runtimes.stepped import SteppedEngine
from edgewise.runtimes.steps import Step

__all__ = ["SequenceEngine", "open_sequences"]

_Logits = np.ndarray[Any, np.dtype[np.float32]]
_Ints = ctypes.POINTER(ctypes.c_int32)

T = TypeVar("T")


def open_sequences(library: Library, artifact: Path, run_config: RunConfig) -> SequenceEngine:
    """Load a model with as many sequences as the configuration says; return the first.

    Raises:
        UnsupportedError: the runtime cannot do that, or is not installed.
        AdapterError: the library refuses the model or the context.
    """
    whole = FamilyEngine(library, artifact, run_config)
    if run_config.parallel > run_config.batch_tokens:
        whole.close()
        raise UnsupportedError(
            "parallel-unsupported",
            f"{run_config.parallel} requests at once do not fit into a step of "
            f"{run_config.batch_tokens} tokens",
            context={"asked": run_config.parallel, "most": run_config.batch_tokens},
        )
    native = _Sequences(whole, run_config.parallel)
    batcher = Batcher(native, join_max=run_config.parallel)
    engines: list[SequenceEngine] = []
    for number in range(run_config.parallel):
        engines.append(SequenceEngine(whole, native, batcher, number, engines))
    return engines[0]


class SequenceEngine(SteppedEngine):
    """One sequence. To be used by one thread at a time; different sequences by different ones."""

    def __init__(
        self,
        whole: FamilyEngine,
        native: _Sequences,
        batcher: Batcher,
        number: int,
        engines: Sequence[SequenceEngine],
    ) -> None:
        """Take what all sequences share; :func:`open_sequences` makes them."""
        self.runtime = whole.runtime
        self._whole = whole
        self._native = native
        self._batcher = batcher
        self._number = number
        self._engines = engines
        self._rounded = 0
        super().__init__(
            context_length=whole.context_length,
            vocab_size=whole.vocab_size,
            step_tokens=whole.step_tokens,
            codec=whole.codec(),
            verify_tokens=whole.verify_tokens,
        )

    @property
    def sequences(self) -> Sequence[SharedEngine]:
        """Return all sequences, this one included."""
        return tuple(self._engines)

    @property
    def rounded_steps(self) -> int:
        """Return how many steps since :meth:`rest` round otherwise than alone."""
        return self._rounded

    def rest(self) -> None:
        """Say that the request has ended: nobody waits for a next step of this sequence."""
        self._rounded = 0
        self._batcher.leave(self._number)

    def _evaluate(self, tokens: list[int]) -> _Logits:
        return self._run(tokens, every=False)[0]

    def _evaluate_all(self, tokens: list[int]) -> list[_Logits]:
        return self._run(tokens, every=True)

    def _run(self, tokens: list[int], *, every: bool) -> list[_Logits]:
        step = Step(self._number, self._position, tokens, every=every)
        self._batcher.run(step)
        self._rounded += step.rounded
        return step.rows

    def _alone(self, job: Callable[[], T]) -> T:
        return self._batcher.alone(self._number, job)

    def _truncate(self, position: int) -> None:
        self._alone(lambda: self._native.cut(self._number, position))

    def _identity(self) -> tuple[object, ...]:
        return self._whole.identity()

    def _save(self) -> bytes | bytearray:
        return self._alone(lambda: self._whole.save_sequence(self._number))

    def _load(self, body: memoryview, position: int) -> None:  # noqa: ARG002 - the state knows it
        self._alone(lambda: self._whole.load_sequence(body, self._number))

    def cancel(self) -> None:
        """Abort the running call of this sequence, and of no other. Callable from any thread."""
        self._batcher.cancel(self._number)

    def clear_cancel(self) -> None:
        """Arm the engine for the next call."""
        self._batcher.clear_cancel(self._number)

    @property
    def cancelled(self) -> bool:
        """Return whether a cancel is pending."""
        return self._batcher.cancelled(self._number)

    def _stop_if_cancelled(self) -> None:
        self._batcher.check(self._number)

    def set_threads(self, threads: int) -> None:
        """Use another number of compute threads from the next call on, for all sequences."""
        self._alone(lambda: self._whole.set_threads(threads))

    def memory(self) -> MemoryReport:
        """Return what the process holds and what the library says it allocated."""
        return self._whole.memory()

    def partition(self) -> PartitionReport:
        """Run one decode step in a context of its own and return which operators ran where."""
        return self._alone(self._whole.partition)

    def close(self) -> None:
        """Free the context and the model, of all sequences."""
        self._whole.close()


class _Sequences:
    """The native side of the batcher: joined batches, in arrays that are made once."""

    def __init__(self, whole: FamilyEngine, count: int) -> None:
        room = whole.step_tokens
        self._whole = whole
        self._tokens = (ctypes.c_int32 * room)()
        self._positions = (ctypes.c_int32 * room)()
        self._wanted = (ctypes.c_int8 * room)()
        self._counts = (ctypes.c_int32 * room)(*([1] * room))
        self._numbers = (ctypes.c_int32 * count)(*range(count))
        first = ctypes.addressof(self._numbers)
        self._owners = [
            ctypes.cast(first + number * ctypes.sizeof(ctypes.c_int32), _Ints)
            for number in range(count)
        ]
        self._owner = (_Ints * (room + 1))()
        self._batch = whole.bindings.llama_batch()
        self._batch.token = ctypes.cast(self._tokens, _Ints)
        self._batch.pos = ctypes.cast(self._positions, _Ints)
        self._batch.n_seq_id = ctypes.cast(self._counts, _Ints)
        self._batch.seq_id = ctypes.cast(self._owner, ctypes.POINTER(_Ints))
        self._batch.logits = ctypes.cast(self._wanted, ctypes.POINTER(ctypes.c_int8))
        self._rows: list[list[_Logits]] = [[] for _ in range(count)]

    def evaluate(self, steps: Sequence[Step]) -> int:
        at = 0
        # In the order of their numbers: only neighbours are evaluated in one pass.
        for step in sorted(steps, key=lambda step: step.sequence):
            for offset, token in enumerate(step.tokens):
                self._tokens[at] = token
                self._positions[at] = step.position + offset
                self._owner[at] = self._owners[step.sequence]
                self._wanted[at] = step.every
                at += 1
            self._wanted[at - 1] = 1
        self._batch.n_tokens = at
        return self._whole.evaluate_batch(self._batch)

    def take(self, steps: Sequence[Step]) -> None:
        at = 0
        for step in sorted(steps, key=lambda step: step.sequence):
            count = len(step.tokens)
            wanted = range(at, at + count) if step.every else range(at + count - 1, at + count)
            kept = self._rows[step.sequence]
            while len(kept) < len(wanted):
                kept.append(np.empty(self._whole.vocab_size, np.float32))
            for row, index in zip(kept, wanted, strict=False):
                np.copyto(row, self._whole.row(index))
            step.rows = kept[: len(wanted)]
            at += count

    def cut(self, sequence: int, position: int) -> None:
        self._whole.cut_sequence(sequence, position)

    def failure(self, code: int, step: Step) -> EdgewiseError:
        return self._whole.failure(code, step.position)

    def abort(self) -> None:
        self._whole.cancel()

    def rearm(self) -> None:
        self._whole.clear_cancel()
