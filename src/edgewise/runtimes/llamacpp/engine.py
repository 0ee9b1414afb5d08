"""The llama.cpp engine: tokens in, logits out, with rewind, state and a cancel that bites.

Cancellation: llama.cpp asks an abort callback before every graph node. A Python callback would
take the interpreter lock there and cost each token; instead the callback is the C library's
``strlen`` and its argument a one-byte buffer, so setting that byte to non-zero makes the answer
non-zero. No interpreter is involved.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.core.recipe import RunConfig
from edgewise.errors import (
    AdapterError,
    InputError,
    IntegrityError,
    ResourceError,
    UnsupportedError,
)
from edgewise.runtimes.llamacpp import native
from edgewise.runtimes.llamacpp.formats import KV_TYPES, LOAD_MODES
from edgewise.runtimes.llamacpp.report import memory_report, partition_report
from edgewise.runtimes.protocol import CancelledError, MemoryReport, PartitionReport

__all__ = ["LlamaCppEngine"]

_STATE_HEADER = struct.Struct("<8sI32s32sQ")
_STATE_MAGIC = b"EWLLKV01"
_RC_NO_SLOT = 1
_RC_ABORTED = 2


class LlamaCppEngine:
    """One model and one context. One sequence, always sequence 0."""

    def __init__(self, artifact: Path, run_config: RunConfig) -> None:
        """Load the model and reserve the context.

        Raises:
            UnsupportedError: the runtime is not installed.
            AdapterError: llama.cpp refuses the model or the context.
        """
        self._n = native.load()
        self._log = native.native_log()
        self._n.llama_backend_init()
        self._config = run_config
        self._flag = ctypes.create_string_buffer(2)
        self._position = 0
        self._context = None
        self._model = self._load_model(artifact)
        try:
            self._context = self._make_context()
        except AdapterError:
            self._n.llama_model_free(self._model)
            raise
        self._load_log = self._log.lines
        self._memory = self._n.llama_get_memory(self._context)
        self._vocab = self._n.llama_model_get_vocab(self._model)
        self._vocab_size: int = self._n.llama_vocab_n_tokens(self._vocab)
        self._one = (ctypes.c_int32 * 1)()
        self._batch_one = self._n.llama_batch_get_one(self._one, 1)
        self._piece = ctypes.create_string_buffer(256)
        self._identity = self._state_identity(artifact)

    def _load_model(self, artifact: Path) -> Any:
        params = self._n.llama_model_default_params()
        params.load_mode = LOAD_MODES[self._config.load_mode]
        params.n_gpu_layers = 0
        self._log.clear()
        model = self._n.llama_model_load_from_file(str(artifact).encode(), params)
        if not model:
            raise AdapterError(
                "model-load-failed",
                f"llama.cpp cannot load {artifact.name}",
                context={"native_log": self._log.complaints},
                hint="the native log says why; an unknown architecture needs a newer runtime",
            )
        return model

    def _make_context(self) -> Any:
        config = self._config
        params = self._n.llama_context_default_params()
        params.n_ctx = config.context_length
        params.n_batch = params.n_ubatch = config.batch_tokens
        params.n_outputs_max = 1  # logits of the last token only: a fraction of the workspace
        params.n_threads = params.n_threads_batch = config.threads
        params.flash_attn_type = int(config.flash_attention)
        params.type_k = params.type_v = KV_TYPES[config.kv_type]
        params.swa_full = False  # a sliding window needs no more than its window
        params.no_perf = True
        context = self._n.llama_init_from_model(self._model, params)
        if not context:
            raise AdapterError(
                "context-failed",
                f"llama.cpp cannot make a context of {config.context_length} tokens with a "
                f"{config.kv_type} KV cache",
                context={"native_log": self._log.complaints},
            )
        c_library = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
        self._abort = ctypes.cast(c_library.strlen, self._n.ggml_abort_callback)
        self._n.llama_set_abort_callback(
            context, self._abort, ctypes.cast(self._flag, ctypes.c_void_p)
        )
        return context

    def _state_identity(self, artifact: Path) -> bytes:
        stat = artifact.stat()
        parts = (
            stat.st_size,
            stat.st_mtime_ns,
            self.vocab_size,
            self._config.kv_type,
            self._config.flash_attention,  # decides how values are laid out in the cache
            native.installed_version(),
        )
        return hashlib.sha256(repr(parts).encode()).digest()

    @property
    def position(self) -> int:
        """Return how many tokens the KV cache holds."""
        return self._position

    @property
    def context_length(self) -> int:
        """Return how many tokens the KV cache was asked to hold."""
        return self._config.context_length

    @property
    def vocab_size(self) -> int:
        """Return how many logits one step gives."""
        return self._vocab_size

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the token ids of ``text``.

        Raises:
            AdapterError: the tokenizer failed.
        """
        data = text.encode("utf-8")
        room = len(data) + 8
        for _ in range(2):
            buffer = (ctypes.c_int32 * room)()
            count: int = self._n.llama_tokenize(
                self._vocab, data, len(data), buffer, room, add_special, parse_special
            )
            if count >= 0:
                return buffer[:count]
            room = -count
        raise AdapterError("tokenize-failed", "llama.cpp's tokenizer gave no stable length")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token stands for; empty for a control token.

        Raises:
            AdapterError: the token is longer than llama.cpp can say.
        """
        size = len(self._piece)
        count = self._n.llama_token_to_piece(self._vocab, token, self._piece, size, 0, False)
        if count < 0:
            self._piece = ctypes.create_string_buffer(-count)
            count = self._n.llama_token_to_piece(self._vocab, token, self._piece, -count, 0, False)
            if count < 0:
                raise AdapterError("token-unreadable", f"llama.cpp cannot spell token {token}")
        return self._piece.raw[:count]

    def prefill(
        self, tokens: Sequence[int], *, progress: Callable[[int], None] | None = None
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Evaluate ``tokens`` and return the logits after the last one.

        See :meth:`edgewise.runtimes.protocol.Engine.prefill`.
        """
        if not tokens:
            raise InputError("prompt-empty", "there is no token to evaluate")
        if bad := next((t for t in tokens if not 0 <= t < self.vocab_size), None):
            raise InputError("token-invalid", f"token {bad} is not in the vocabulary")
        self._require_room(len(tokens))
        start = self._position
        step = self._config.batch_tokens
        with self._undo_to(start):
            for done in range(0, len(tokens), step):
                chunk = tokens[done : done + step]
                ids = (ctypes.c_int32 * len(chunk))(*chunk)
                self._check(
                    self._n.llama_decode(
                        self._context, self._n.llama_batch_get_one(ids, len(chunk))
                    )
                )
                self._position += len(chunk)
                if progress is not None:
                    progress(done + len(chunk))
        return self._logits()

    def decode(self, token: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Evaluate one token and return the logits.

        See :meth:`edgewise.runtimes.protocol.Engine.decode`.
        """
        if self._position >= self._config.context_length:
            self._require_room(1)
        self._one[0] = token
        code = self._n.llama_decode(self._context, self._batch_one)
        if code:
            with self._undo_to(self._position):
                self._check(code)
        self._position += 1
        return self._logits()

    def _require_room(self, count: int) -> None:
        if self._position + count > self._config.context_length:
            raise InputError(
                "context-full",
                f"{count} more tokens do not fit: the context holds {self._config.context_length}, "
                f"{self._position} are taken",
                context={"needed": self._position + count, "context": self._config.context_length},
            )

    @contextlib.contextmanager
    def _undo_to(self, position: int) -> Iterator[None]:
        try:
            yield
        except Exception:
            # What an aborted step left behind is of unknown extent: cut it off.
            if not self._n.llama_memory_seq_rm(self._memory, 0, position, -1):
                self._n.llama_memory_clear(self._memory, True)
                position = 0
            self._position = position
            raise

    def _check(self, code: int) -> None:
        if code == 0:
            return
        if code == _RC_ABORTED:
            raise CancelledError
        if code == _RC_NO_SLOT:
            raise ResourceError(
                "kv-cache-full",
                "llama.cpp found no room in the KV cache",
                context={"position": self._position},
            )
        raise AdapterError(
            "decode-failed",
            f"llama.cpp's decode failed with code {code}",
            context={"native_log": self._log.complaints},
        )

    def _logits(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        pointer = self._n.llama_get_logits_ith(self._context, -1)
        if not pointer:
            raise AdapterError("logits-missing", "llama.cpp gave no logits")
        return np.ctypeslib.as_array(pointer, shape=(self.vocab_size,))

    def rewind(self, position: int) -> None:
        """Cut the KV cache back to ``position`` tokens.

        Raises:
            InputError: the position lies outside what was evaluated.
            UnsupportedError: a sliding window has already dropped tokens that a correct answer
                at this position would see.
        """
        if not 0 <= position <= self._position:
            raise InputError(
                "rewind-invalid", f"cannot rewind to {position}; the cache holds {self._position}"
            )
        if position == self._position:
            return
        if position == 0:
            self._n.llama_memory_clear(self._memory, True)
            self._position = 0
            return
        window = self._n.llama_model_n_swa(self._model)
        oldest = self._n.llama_memory_seq_pos_min(self._memory, 0)
        if window > 0 and oldest > max(0, position - window):
            raise UnsupportedError(
                "rewind-past-window",
                f"the sliding window of {window} tokens no longer holds position {position}",
                hint="rewind to 0 and evaluate the prompt again",
            )
        if not self._n.llama_memory_seq_rm(self._memory, 0, position, -1):
            raise UnsupportedError(
                "rewind-unsupported", "this model's cache cannot be cut at a position"
            )
        self._position = position

    def save_state(self) -> bytes:
        """Return the KV cache with a header that :meth:`restore_state` verifies.

        Raises:
            AdapterError: llama.cpp wrote another length than it announced.
        """
        size = self._n.llama_state_seq_get_size(self._context, 0)
        buffer = (ctypes.c_uint8 * size)()
        written = self._n.llama_state_seq_get_data(self._context, buffer, size, 0)
        if written != size:
            raise AdapterError("state-save-failed", f"{written} of {size} state bytes were written")
        body = bytes(buffer)
        header = _STATE_HEADER.pack(
            _STATE_MAGIC, self._position, self._identity, hashlib.sha256(body).digest(), size
        )
        return header + body

    def restore_state(self, state: bytes) -> None:
        """Replace the KV cache by a saved one.

        Raises:
            IntegrityError: the bytes are damaged or were saved by another engine; the cache is
                empty afterwards.
        """
        self.rewind(0)
        if len(state) < _STATE_HEADER.size:
            raise IntegrityError("state-damaged", "the saved state is shorter than its header")
        magic, position, identity, digest, size = _STATE_HEADER.unpack_from(state)
        body = state[_STATE_HEADER.size :]
        if magic != _STATE_MAGIC or size != len(body) or hashlib.sha256(body).digest() != digest:
            raise IntegrityError("state-damaged", "the saved state fails its digest")
        if identity != self._identity or position > self._config.context_length:
            raise IntegrityError(
                "state-of-another-engine",
                "the saved state belongs to another model, KV format, runtime or a larger context",
            )
        buffer = (ctypes.c_uint8 * size).from_buffer_copy(body)
        taken = self._n.llama_state_seq_set_data(self._context, buffer, size, 0)
        if taken != size:
            self._n.llama_memory_clear(self._memory, True)
            raise IntegrityError("state-refused", f"llama.cpp took {taken} of {size} state bytes")
        self._position = position

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

    def set_threads(self, threads: int) -> None:
        """Use another number of compute threads from the next call on."""
        self._n.llama_set_n_threads(self._context, threads, threads)

    def memory(self) -> MemoryReport:
        """Return what the process holds and what llama.cpp says it allocated."""
        return memory_report(self._n.llama_model_size(self._model), self._load_log)

    def partition(self) -> PartitionReport:
        """Run one decode step in a context of its own and return which operators ran where."""
        return partition_report(self._n, self._model, self._config)

    def close(self) -> None:
        """Free the context and the model."""
        if self._context is not None:
            self._n.llama_free(self._context)
            self._n.llama_model_free(self._model)
            self._context = None
