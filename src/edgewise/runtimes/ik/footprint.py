"""What ik_llama.cpp will hold in memory, from a model's shape and a run configuration.

KV cache: exact, by its allocation rule (a sliding window is a mask, so every layer keeps every
cell). Workspace: it reserves logits for every token of a batch, which outweighs the rest for any
vocabulary met here; compared with the buffers it logged for two models (SmolLM2 135M, Gemma 3
270M) on 2026-11-30, ik_llama_cpp_python 0.1.5.
"""

from __future__ import annotations

from edgewise.core.quantity import Estimated
from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.models.architecture import ModelShape
from edgewise.runtimes.footprint import kv_element_bytes
from edgewise.runtimes.reports import Footprint

__all__ = ["footprint"]

_F32_BYTES = 4
_KV_BYTES = {KvType.F16: 2.0, KvType.Q8_0: 34 / 32, KvType.Q4_0: 18 / 32}
_PROCESS_BYTES = 48 << 20
_LOADED_BYTES = 16 << 20
_VOCAB_ENTRY_BYTES = 133


def footprint(shape: ModelShape, run_config: RunConfig) -> Footprint:
    """Return the memory lines of a model under a run configuration."""
    model_bytes = _LOADED_BYTES + _VOCAB_ENTRY_BYTES * shape.vocab_size
    return Footprint(
        weights_bytes=_weights(shape, run_config),
        kv_cache_bytes=Estimated(
            value=_kv_cache(shape, run_config),
            source="cells x (keys + values) per layer, as ik_llama.cpp allocates them",
        ),
        workspace_bytes=Estimated(
            value=_workspace(shape, run_config),
            source="logits of a whole batch, or its widest phase (2026-11-30)",
        ),
        runtime_bytes=Estimated(
            value=_PROCESS_BYTES + model_bytes,
            source="process + loader + tokenizer tables, measured on Linux x86_64 (2026-11-30)",
        ),
        model_bytes=model_bytes,
    )


def _weights(shape: ModelShape, config: RunConfig) -> Estimated:
    if config.load_mode is LoadMode.MALLOC and shape.tied_embeddings:
        # Read into memory, embedding and head are two tensors; mapped, they share their bytes.
        # The index knows no single tensor's size; the embedding's type is at most 8 bits wide in
        # the formats this runtime exports, and 16 in a float file.
        bits = 8.5 if shape.weights_bytes < shape.parameter_count * 1.5 else 16
        second = int(shape.vocab_size * shape.n_embd * bits / 8)
        return Estimated(
            value=shape.weights_bytes + second,
            source="tensor index, and the tied embedding a second time",
        )
    return Estimated(value=shape.weights_bytes, source="tensor index")


def _cells(config: RunConfig) -> int:
    pad = 256 if config.flash_attention else 32
    return -(-config.context_length // pad) * pad


def _kv_cache(shape: ModelShape, config: RunConfig) -> int:
    width = sum(heads * (shape.head_dim_k + shape.head_dim_v) for heads in shape.n_kv_heads)
    per_element = kv_element_bytes("ik", config.kv_type, _KV_BYTES)
    return int(_cells(config) * width * per_element)


def _workspace(shape: ModelShape, config: RunConfig) -> int:
    cells = _cells(config)
    batch = min(config.batch_tokens, cells)
    logits = batch * (shape.vocab_size + 2 * shape.n_embd)
    feed_forward = batch * (2 * max(shape.n_ff) + 2 * shape.n_embd)
    heads = max(shape.n_heads)
    attention = batch * (3 * heads * shape.head_dim_k + 2 * shape.n_embd)
    if not config.flash_attention:
        attention += heads * batch * cells
    masks = batch * cells * (2 if any(shape.is_sliding) else 1)
    one = shape.vocab_size
    return (max(logits, feed_forward, attention) + masks + one) * _F32_BYTES
