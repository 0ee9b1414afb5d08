"""The engine of the llama.cpp family: tokens in, logits out, and a cancel that bites.

Cancellation: the library asks an abort callback at every graph node. A Python callback would
take the interpreter lock there and cost each token; instead the callback is the C library's
``strlen`` and its argument a one-byte buffer, so setting that byte to non-zero makes the answer
non-zero. No interpreter is involved. The byte is looked at again after each step: not every
member of the family reports that a step was aborted.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.core.recipe import RunConfig
from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    IntegrityError,
    ResourceError,
    UnsupportedError,
)
from edgewise.runtimes.llamacpp.footprint import VERIFY_ROWS
from edgewise.runtimes.llamacpp.formats import KV_TYPES
from edgewise.runtimes.llamacpp.library import ContextSettings, Library
from edgewise.runtimes.llamacpp.native_tokenizer import NativeTokenizer
from edgewise.runtimes.llamacpp.report import memory_report, partition_report
from edgewise.runtimes.llamacpp.upstream import LlamaCppLibrary
from edgewise.runtimes.protocol import CancelledError
from edgewise.runtimes.reports import MemoryReport, PartitionReport
from edgewise.runtimes.stepped import SteppedEngine, refuse_hints, refuse_parallel

__all__ = ["FamilyEngine", "LlamaCppEngine"]

_Logits = np.ndarray[Any, np.dtype[np.float32]]

_RC_NO_SLOT = 1
_RC_ABORTED = 2


class FamilyEngine(SteppedEngine):
    """One model and one context. By itself it evaluates sequence 0; see ``sequences`` for more."""

    def __init__(self, library: Library, artifact: Path, run_config: RunConfig) -> None:
        """Load the model and reserve the context.

        Args:
            library: The member of the family to run it with.
            artifact: A GGUF file, or a folder that holds ``model.gguf``.
            run_config: How to run it.

        Raises:
            InputError: the configuration contradicts itself.
            UnsupportedError: the runtime is not installed, or does not know a setting.
            AdapterError: the library refuses the model or the context.
        """
        self.runtime = library.runtime
        self._library = library
        self._config = run_config
        self._check(run_config)
        self._n = library.bindings()
        self._log = library.log()
        self._n.llama_backend_init()
        self._flag = ctypes.create_string_buffer(2)
        self._context = None
        self._file = artifact / "model.gguf" if artifact.is_dir() else artifact
        self._model = self._load_model()
        try:
            self._context = self._make_context()
        except AdapterError:
            library.free_model(self._model)
            raise
        self._load_log = self._log.lines
        self._one: Any = (ctypes.c_int32 * 1)()
        super().__init__(
            context_length=run_config.context_length,
            vocab_size=library.vocab_size(self._model),
            step_tokens=run_config.batch_tokens,
            codec=NativeTokenizer(library, self._model),
            verify_tokens=self._rows,
        )

    def _check(self, config: RunConfig) -> None:
        refuse_hints(self.runtime, config, self._library.hints)
        refuse_parallel(self.runtime, config, self._library.sequences_max)
        if config.kv_type not in KV_TYPES:
            raise UnsupportedError(
                "kv-type-unsupported",
                f"{self.runtime} has no {config.kv_type} KV cache",
                hint=f"it has: {', '.join(KV_TYPES)}",
            )

    def _load_model(self) -> Any:
        self._log.clear()
        model = self._library.load_model(self._file, self._config)
        if not model:
            raise AdapterError(
                "model-load-failed",
                f"{self._library.title} cannot load {self._file.name}",
                context={"native_log": self._log.complaints},
                hint="the native log says why; an unknown architecture needs a newer runtime",
            )
        return model

    def _make_context(self) -> Any:
        rows = max(1, self._rows, self._config.parallel)
        settings = replace(ContextSettings.of(self._config), rows=rows)
        context = self._library.make_context(self._model, settings)
        if not context:
            raise AdapterError(
                "context-failed",
                f"{self._library.title} cannot make a context of {self._config.context_length} "
                f"tokens with a {self._config.kv_type} KV cache",
                context={"native_log": self._log.complaints},
            )
        c_library = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
        self._abort = ctypes.cast(c_library.strlen, self._n.ggml_abort_callback)
        self._n.llama_set_abort_callback(
            context, self._abort, ctypes.cast(self._flag, ctypes.c_void_p)
        )
        return context

    @property
    def bindings(self) -> Any:
        """Return the native functions."""
        return self._n

    def codec(self) -> NativeTokenizer:
        """Return a tokenizer of the model for one more thread."""
        return NativeTokenizer(self._library, self._model)

    def identity(self) -> tuple[object, ...]:
        """Return what makes a saved state this model's and this configuration's own."""
        return self._identity()

    def evaluate_batch(self, batch: Any) -> int:
        """Evaluate a batch of any sequences; return the library's code."""
        return int(self._n.llama_decode(self._context, batch))

    def row(self, index: int) -> _Logits:
        """Return the logits of a token of the last batch, valid until the next one.

        Raises:
            AdapterError: there are none.
        """
        return self._row(index)

    def _identity(self) -> tuple[object, ...]:
        stat = self._file.stat()
        return (
            stat.st_size,
            stat.st_mtime_ns,
            self._config.kv_type,
            self._config.flash_attention,  # decides how values are laid out in the cache
            self._library.version(),
        )

    def _evaluate(self, tokens: list[int]) -> _Logits:
        count = len(tokens)
        if count == 1:
            ids = self._one
            ids[0] = tokens[0]
        else:
            ids = (ctypes.c_int32 * count)(*tokens)
        batch = self._library.batch(ids, count, self._position)
        self._check_code(self._n.llama_decode(self._context, batch))
        return self._row(-1)

    @property
    def _rows(self) -> int:
        """Return how many tokens can be verified: none where not any of them can be cut off."""
        if self._library.oldest_needed(self._model, self._config.context_length):
            return 0
        return min(VERIFY_ROWS, self._config.batch_tokens)

    def _evaluate_all(self, tokens: list[int]) -> list[_Logits]:
        count = len(tokens)
        ids = (ctypes.c_int32 * count)(*tokens)
        every = (ctypes.c_int8 * count)(*([1] * count))
        batch = self._library.batch(ids, count, self._position)
        batch.logits = ctypes.cast(every, type(batch.logits))
        self._check_code(self._n.llama_decode(self._context, batch))
        return [self._row(index) for index in range(count)]

    def _row(self, index: int) -> _Logits:
        pointer = self._n.llama_get_logits_ith(self._context, index)
        if not pointer:
            raise AdapterError("logits-missing", f"{self._library.title} gave no logits")
        return np.ctypeslib.as_array(pointer, shape=(self._vocab_size,))

    def _check_code(self, code: int) -> None:
        if code == _RC_ABORTED or (code == 0 and self.cancelled):
            raise CancelledError
        if code:
            raise self.failure(code, self._position)

    def failure(self, code: int, position: int) -> EdgewiseError:
        """Return what a failure code means for a step at a position."""
        if code == _RC_NO_SLOT:
            return ResourceError(
                "kv-cache-full",
                f"{self._library.title} found no room in the KV cache",
                context={"position": position},
            )
        return AdapterError(
            "decode-failed",
            f"{self._library.title}'s decode failed with code {code}",
            context={"native_log": self._log.complaints},
        )

    def _truncate(self, position: int) -> None:
        if position == 0:
            self._library.clear(self._context)
            return
        self.cut_sequence(0, position)

    def cut_sequence(self, sequence: int, position: int) -> None:
        """Cut one sequence back to ``position`` tokens.

        Raises:
            UnsupportedError: its cache no longer holds what that would need.
        """
        needed = self._library.oldest_needed(self._model, position)
        if position and self._library.oldest_held(self._context, sequence) > needed:
            raise UnsupportedError(
                "rewind-past-window",
                f"a sliding window no longer holds what position {position} needs",
                hint="rewind to 0 and evaluate the prompt again",
            )
        if not self._library.cut(self._context, position, sequence):
            raise UnsupportedError(
                "rewind-unsupported", "this model's cache cannot be cut at a position"
            )

    def _save(self) -> bytes | bytearray:
        return self.save_sequence(0)

    def _load(self, body: memoryview, position: int) -> None:  # noqa: ARG002 - the state knows it
        self.load_sequence(body, 0)

    def save_sequence(self, sequence: int) -> bytearray:
        """Return the KV cache of one sequence.

        Raises:
            AdapterError: the library did not give all of it.
        """
        size = self._library.state_size(self._context, sequence)
        state = bytearray(size)
        buffer = (ctypes.c_uint8 * size).from_buffer(state)
        written = self._library.state_get(self._context, buffer, size, sequence)
        if written != size:
            raise AdapterError("state-save-failed", f"{written} of {size} state bytes were written")
        return state

    def load_sequence(self, body: memoryview, sequence: int) -> None:
        """Replace the KV cache of one sequence by what :meth:`save_sequence` gave.

        Raises:
            IntegrityError: the library does not take it; the sequence is empty afterwards.
        """
        size = len(body)
        view = np.frombuffer(body, np.uint8)
        data = ctypes.cast(view.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
        taken = self._library.state_set(self._context, data, size, sequence)
        if taken != size:
            self._library.cut(self._context, 0, sequence)
            raise IntegrityError(
                "state-refused", f"{self._library.title} took {taken} of {size} state bytes"
            )

    def cancel(self) -> None:
        """Abort the running call. Callable from any thread; no interpreter lock is needed."""
        self._flag[0] = b"\x01"

    def clear_cancel(self) -> None:
        """Arm the engine for the next call."""
        self._flag[0] = b"\x00"

    @property
    def cancelled(self) -> bool:
        """Return whether a cancel is pending."""
        return self._flag[0] != b"\0"

    def _stop_if_cancelled(self) -> None:
        if self.cancelled:
            raise CancelledError

    def set_threads(self, threads: int) -> None:
        """Use another number of compute threads from the next call on."""
        self._n.llama_set_n_threads(self._context, threads, threads)

    def memory(self) -> MemoryReport:
        """Return what the process holds and what the library says it allocated."""
        weights = self._library.weights_bytes(self._model, self._load_log)
        return memory_report(weights, self._load_log, self._library.title)

    def partition(self) -> PartitionReport:
        """Run one decode step in a context of its own and return which operators ran where."""
        return partition_report(self._library, self._model, self._config)

    def close(self) -> None:
        """Free the context and the model."""
        if self._context is not None:
            self._n.llama_free(self._context)
            self._library.free_model(self._model)
            self._context = None


class LlamaCppEngine(FamilyEngine):
    """llama.cpp's engine."""

    def __init__(self, artifact: Path, run_config: RunConfig) -> None:
        """Load the model and reserve the context; see :class:`FamilyEngine`."""
        super().__init__(LlamaCppLibrary(), artifact, run_config)
