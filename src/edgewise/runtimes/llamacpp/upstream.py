"""llama.cpp itself, through the low-level bindings of llama-cpp-python 0.3.36."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from edgewise.core.quantity import Measured, Quantity
from edgewise.core.recipe import LoadMode, RunConfig
from edgewise.runtimes.llamacpp import native
from edgewise.runtimes.llamacpp.formats import KV_TYPES, LOAD_MODES
from edgewise.runtimes.llamacpp.library import ContextSettings, Library, QuantizeOrder
from edgewise.runtimes.llamacpp.native import NativeLog

__all__ = ["SEQUENCES_MAX", "LlamaCppLibrary"]

# A bound of ours: each sequence costs a whole context of memory.
SEQUENCES_MAX = 64
_TEXT_OVERRIDE = 3  # LLAMA_KV_OVERRIDE_TYPE_STR


class _Tensor(ctypes.Structure):
    """``struct ggml_tensor`` up to its name (ggml.h of ggml 0.25, 2026-11)."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int32),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    )


class LlamaCppLibrary(Library):
    """The library that the other members descend from."""

    runtime = "llamacpp"
    title = "llama.cpp"
    sequences_max = SEQUENCES_MAX
    tensor = _Tensor

    def bindings(self) -> Any:
        """Return llama-cpp-python's low-level module."""
        return native.load()

    def log(self) -> NativeLog:
        """Return this process's log of the library."""
        return native.native_log()

    def version(self) -> str | None:
        """Return the version of llama-cpp-python."""
        return native.installed_version()

    def load_model(self, path: Path, config: RunConfig | None) -> Any:
        """Load a model."""
        n = self.bindings()
        params = n.llama_model_default_params()
        params.load_mode = LOAD_MODES[LoadMode.MMAP if config is None else config.load_mode]
        params.n_gpu_layers = 0
        return n.llama_model_load_from_file(str(path).encode(), params)

    def free_model(self, model: Any) -> None:
        """Free a model."""
        self.bindings().llama_model_free(model)

    def make_context(self, model: Any, settings: ContextSettings) -> Any:
        """Make a context."""
        n = self.bindings()
        params = n.llama_context_default_params()
        params.n_ctx = settings.tokens
        params.n_batch = params.n_ubatch = settings.batch_tokens
        params.n_seq_max = settings.sequences
        params.kv_unified = False  # each sequence a cache of its own: none sees another's cells
        params.n_outputs_max = settings.rows  # a row of logits each, instead of one a token
        params.n_threads = params.n_threads_batch = settings.threads
        params.flash_attn_type = int(settings.flash_attention)
        params.type_k = params.type_v = KV_TYPES[settings.kv_type]
        params.swa_full = False  # a sliding window needs no more than its window
        params.no_perf = True
        if settings.observer is not None:
            params.cb_eval = settings.observer
        return n.llama_init_from_model(model, params)

    def vocab_size(self, model: Any) -> int:
        """Return how many logits a step gives."""
        n = self.bindings()
        return int(n.llama_vocab_n_tokens(n.llama_model_get_vocab(model)))

    def weights_bytes(self, model: Any, log: list[str]) -> Quantity:  # noqa: ARG002 - asked instead
        """Return what the library says."""
        size = self.bindings().llama_model_size(model)
        return Measured(value=size, source="llama_model_size")

    def tokenize(
        self, model: Any, data: bytes, room: Any, *, add_special: bool, parse_special: bool
    ) -> int:
        """Tokenise through the vocabulary."""
        n = self.bindings()
        vocab = n.llama_model_get_vocab(model)
        return int(
            n.llama_tokenize(vocab, data, len(data), room, len(room), add_special, parse_special)
        )

    def piece(self, model: Any, token: int, room: Any) -> int:
        """Spell a token through the vocabulary."""
        n = self.bindings()
        vocab = n.llama_model_get_vocab(model)
        return int(n.llama_token_to_piece(vocab, token, room, len(room), 0, False))

    def batch(self, ids: Any, count: int, position: int) -> Any:  # noqa: ARG002 - it keeps count
        """Return a batch; llama.cpp continues at the position its cache ends."""
        return self.bindings().llama_batch_get_one(ids, count)

    def clear(self, context: Any) -> None:
        """Empty the KV cache."""
        n = self.bindings()
        n.llama_memory_clear(n.llama_get_memory(context), True)

    def cut(self, context: Any, position: int, sequence: int = 0) -> bool:
        """Remove a sequence's tokens from ``position`` on."""
        n = self.bindings()
        return bool(n.llama_memory_seq_rm(n.llama_get_memory(context), sequence, position, -1))

    def oldest_needed(self, model: Any, position: int) -> int:
        """Return where the sliding window begins, if the model has one."""
        window = int(self.bindings().llama_model_n_swa(model))
        return max(0, position - window) if window > 0 else 0

    def oldest_held(self, context: Any, sequence: int = 0) -> int:
        """Return the oldest position in every layer's cache."""
        n = self.bindings()
        return int(n.llama_memory_seq_pos_min(n.llama_get_memory(context), sequence))

    def state_size(self, context: Any, sequence: int = 0) -> int:
        """Return the bytes of the saved cache."""
        return int(self.bindings().llama_state_seq_get_size(context, sequence))

    def state_get(self, context: Any, room: Any, size: int, sequence: int = 0) -> int:
        """Save the cache."""
        return int(self.bindings().llama_state_seq_get_data(context, room, size, sequence))

    def state_set(self, context: Any, data: Any, size: int, sequence: int = 0) -> int:
        """Restore the cache."""
        return int(self.bindings().llama_state_seq_set_data(context, data, size, sequence))

    def quantize(self, source: Path, destination: Path, order: QuantizeOrder) -> int:
        """Quantise a file."""
        n = self.bindings()
        params = n.llama_model_quantize_default_params()
        params.nthread = order.threads
        params.ftype = order.ftype
        params.pure = order.pure
        params.allow_requantize = True  # marked in the receipt
        if order.embedding is not None:
            params.token_embedding_type = order.embedding
        if order.output is not None:
            params.output_tensor_type = order.output
        kept = [
            (field, array)
            for field, array in (
                ("tt_overrides", _overrides(n, order)),
                ("imatrix", _importances(n, order)),
                ("kv_overrides", _metadata(n, order)),
            )
            if array is not None
        ]
        for field, array in kept:
            setattr(params, field, ctypes.cast(array, type(getattr(params, field))))
        return int(
            n.llama_model_quantize(
                str(source).encode(), str(destination).encode(), ctypes.byref(params)
            )
        )


# Each array ends with an entry that stays empty: that is how the library finds its end.


def _overrides(bindings: Any, order: QuantizeOrder) -> Any:
    if not order.overrides:
        return None
    array = (bindings.llama_model_tensor_override * (len(order.overrides) + 1))()
    for entry, (pattern, number) in zip(array, order.overrides, strict=False):
        entry.pattern = pattern.encode()
        entry.type = number
    return array


def _importances(bindings: Any, order: QuantizeOrder) -> Any:
    if not order.importance:
        return None
    array = (bindings.llama_model_imatrix_data * (len(order.importance) + 1))()
    for entry, (name, values) in zip(array, order.importance.items(), strict=False):
        entry.name = name.encode()
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = values.size
    return array


def _metadata(bindings: Any, order: QuantizeOrder) -> Any:
    if not order.metadata:
        return None
    array = (bindings.llama_model_kv_override * (len(order.metadata) + 1))()
    for entry, (key, text) in zip(array, order.metadata.items(), strict=False):
        entry.tag = _TEXT_OVERRIDE
        entry.key = key.encode()
        entry.value.val_str = text.encode()
    return array
