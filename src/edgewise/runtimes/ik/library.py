"""ik_llama.cpp: an older relative of llama.cpp with kernels of its own.

It differs in what it takes (the model instead of the vocabulary, positions in batches, flags for
states), in what it does not tell (a step that was aborted reports success), and in what it can:
repacking weights into interleaved layouts while loading, and fused operators.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from edgewise.core.quantity import Measured, Quantity
from edgewise.core.recipe import LoadMode, RunConfig
from edgewise.errors import InputError
from edgewise.runtimes.ik import bindings
from edgewise.runtimes.llamacpp.formats import KV_TYPES
from edgewise.runtimes.llamacpp.library import ContextSettings, Library, QuantizeOrder
from edgewise.runtimes.llamacpp.native import NativeLog

__all__ = ["REPACK", "IkLibrary"]

REPACK = "repack"
_WEIGHTS = re.compile(r"llm_load_tensors:\s*CPU\S* buffer size\s*=\s*([0-9.]+) MiB")
_TYPE = re.compile(r"llama_model_loader: - type\s+(\w+):")
# Steps of 32 tokens and more take other kernels, which lose what these types' minimum holds:
# mean KL 0.4 against steps of 16, with the other types 0.003 (SmolLM2 135M, 2026-12-01).
_LOSSY_TYPES = frozenset({"q4_1", "q5_1"})
_EXACT_TOKENS = 31
_WHOLE_CACHE = 0  # no flag: also what a sliding window has passed


class IkLibrary(Library):
    """The library of the runtime ``ik``."""

    runtime = "ik"
    title = "ik_llama.cpp"
    tensor = bindings.Tensor
    hints = (REPACK,)
    quantiser_extras = False  # it takes C++ containers for them

    def __init__(self) -> None:
        """Know nothing of a model yet."""
        self._step_tokens: int | None = None

    def bindings(self) -> Any:
        """Return the native functions by name."""
        return bindings.load()

    def log(self) -> NativeLog:
        """Return this process's log of the library."""
        return bindings.native_log()

    def version(self) -> str | None:
        """Return the version of the wheel."""
        return bindings.installed_version()

    def load_model(self, path: Path, config: RunConfig | None) -> Any:
        """Load a model, repacked when the hint says so.

        Raises:
            InputError: the hint is neither ``0`` nor ``1``, or weights are to be mapped and
                repacked at once.
        """
        n = self.bindings()
        mapped = config is None or config.load_mode is LoadMode.MMAP
        repack = config is not None and _repack(config)
        if repack and mapped:
            raise InputError(
                "repack-needs-malloc",
                "weights cannot be repacked in a mapped file",
                hint="load them into memory: load mode malloc",
            )
        params = n.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_mmap = mapped
        params.repack_tensors = repack
        model = n.llama_model_load_from_file(str(path).encode(), params)
        types = {found[1] for line in self.log().lines if (found := _TYPE.match(line))}
        self._step_tokens = None if types and not types & _LOSSY_TYPES else _EXACT_TOKENS
        return model

    def free_model(self, model: Any) -> None:
        """Free a model."""
        self.bindings().llama_free_model(model)

    def make_context(self, model: Any, settings: ContextSettings) -> Any:
        """Make a context."""
        n = self.bindings()
        params = n.llama_context_default_params()
        params.n_ctx = settings.tokens
        params.n_batch = settings.batch_tokens
        params.n_ubatch = min(settings.batch_tokens, self._step_tokens or settings.batch_tokens)
        params.n_threads = params.n_threads_batch = settings.threads
        params.flash_attn = settings.flash_attention
        params.type_k = params.type_v = KV_TYPES[settings.kv_type]
        if settings.observer is not None:
            params.cb_eval = settings.observer
        return n.llama_init_from_model(model, params)

    def vocab_size(self, model: Any) -> int:
        """Return how many logits a step gives."""
        n = self.bindings()
        return int(n.llama_vocab_n_tokens(n.llama_model_get_vocab(model)))

    def weights_bytes(self, model: Any, log: list[str]) -> Quantity:
        """Return the size of the buffers that were logged.

        The library's own sum counts a tied embedding twice, also where it is mapped once.
        """
        found = [float(size) for line in log for size in _WEIGHTS.findall(line)]
        if found:
            return Measured(
                value=int(sum(found) * (1 << 20)), source="ik_llama.cpp log: buffer size"
            )
        size = self.bindings().llama_model_size(model)
        return Measured(value=size, source="llama_model_size")

    def tokenize(
        self, model: Any, data: bytes, room: Any, *, add_special: bool, parse_special: bool
    ) -> int:
        """Tokenise through the model: the vocabulary in its place ends the process."""
        return int(
            self.bindings().llama_tokenize(
                model, data, len(data), room, len(room), add_special, parse_special
            )
        )

    def piece(self, model: Any, token: int, room: Any) -> int:
        """Spell a token through the model."""
        return int(self.bindings().llama_token_to_piece(model, token, room, len(room), 0, False))

    def batch(self, ids: Any, count: int, position: int) -> Any:
        """Return a batch; positions are the caller's to keep."""
        return self.bindings().llama_batch_get_one(ids, count, position, 0)

    def clear(self, context: Any) -> None:
        """Empty the KV cache."""
        self.bindings().llama_kv_cache_clear(context)

    def cut(self, context: Any, position: int, sequence: int = 0) -> bool:
        """Remove a sequence's tokens from ``position`` on."""
        return bool(self.bindings().llama_kv_cache_seq_rm(context, sequence, position, -1))

    def oldest_needed(self, model: Any, position: int) -> int:  # noqa: ARG002 - for all the same
        """Return 0: a sliding window is a mask over a cache that keeps everything."""
        return 0

    def oldest_held(self, context: Any, sequence: int = 0) -> int:
        """Return the oldest position in the cache."""
        return int(self.bindings().llama_kv_cache_seq_pos_min(context, sequence))

    def state_size(self, context: Any, sequence: int = 0) -> int:
        """Return the bytes of the saved cache."""
        return int(self.bindings().llama_state_seq_get_size(context, sequence, _WHOLE_CACHE))

    def state_get(self, context: Any, room: Any, size: int, sequence: int = 0) -> int:
        """Save the cache."""
        n = self.bindings()
        return int(n.llama_state_seq_get_data(context, room, size, sequence, _WHOLE_CACHE))

    def state_set(self, context: Any, data: Any, size: int, sequence: int = 0) -> int:
        """Restore the cache."""
        n = self.bindings()
        return int(n.llama_state_seq_set_data(context, data, size, sequence, _WHOLE_CACHE))

    def quantize(self, source: Path, destination: Path, order: QuantizeOrder) -> int:
        """Quantise a file; overrides and importances are refused before."""
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
        return int(
            n.llama_model_quantize(
                str(source).encode(), str(destination).encode(), ctypes.byref(params)
            )
        )


def _repack(config: RunConfig) -> bool:
    value = dict(config.hints).get(REPACK, "0")
    if value not in {"0", "1"}:
        raise InputError(
            "hint-invalid",
            f"the setting {REPACK!r} is {value!r}",
            hint=f"{REPACK} is 0 or 1",
        )
    return value == "1"
