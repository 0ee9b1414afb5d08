"""What llama.cpp will hold in memory, from a model's shape and a run configuration.

KV cache: exact, by the runtime's own allocation rule (cells padded to 256; a sliding layer keeps
its window and one batch; each of several sequences has all of it). Workspace: the larger of the
feed-forward and the attention phase of the graph; the terms follow the tensors that live at the
same time, and the factors were fitted to llama.cpp's reported compute buffers of two models
(SmolLM2 135M, Gemma 3 270M) at contexts of 512 to 8,192 on 2026-11-30, llama-cpp-python 0.3.36.
Runtime: measured on Linux x86_64 the same day; another platform differs by some MiB.
"""

from __future__ import annotations

from edgewise.core.quantity import Estimated
from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.models.architecture import ModelShape
from edgewise.runtimes.footprint import kv_element_bytes
from edgewise.runtimes.reports import Footprint

__all__ = ["VERIFY_ROWS", "footprint"]

_CELL_PAD = 256
_F32_BYTES = 4
# Rows of logits that the engine of a model without sliding windows reserves: the most tokens of one
# step whose logits can be had.
VERIFY_ROWS = 16
_KV_BYTES = {KvType.F16: 2.0, KvType.Q8_0: 34 / 32, KvType.Q4_0: 18 / 32}

# The worker with Python, numpy, the bindings and the template engine, before a model.
_PROCESS_BYTES = 53 << 20
# Allocator slack, loader leftovers and thread stacks once a model is loaded.
_LOADED_BYTES = 16 << 20
# llama.cpp's tokenizer tables, per vocabulary entry.
_VOCAB_ENTRY_BYTES = 133

# Repacked for the kernels on common processors; beside a mapped file both copies are resident.
_REPACKED_TYPES = ("Q4_0", "Q4_K", "IQ4_NL")


def footprint(shape: ModelShape, run_config: RunConfig) -> Footprint:
    """Return the memory lines of a model under a run configuration."""
    model_bytes = _LOADED_BYTES + _VOCAB_ENTRY_BYTES * shape.vocab_size
    return Footprint(
        weights_bytes=_weights(shape, run_config),
        kv_cache_bytes=Estimated(
            value=_kv_cache(shape, run_config),
            source="cells x (keys + values) per layer, as llama.cpp allocates them",
        ),
        workspace_bytes=Estimated(
            value=_workspace(shape, run_config),
            source="graph phases, fitted to reported compute buffers (2026-11-30)",
        ),
        runtime_bytes=Estimated(
            value=_PROCESS_BYTES + model_bytes,
            source="process + loader + tokenizer tables, measured on Linux x86_64 (2026-11-30)",
        ),
        model_bytes=model_bytes,
    )


def _weights(shape: ModelShape, config: RunConfig) -> Estimated:
    repacked = sum(shape.bytes_by_type.get(name, 0) for name in _REPACKED_TYPES)
    if config.load_mode is LoadMode.MMAP and repacked:
        return Estimated(
            value=shape.weights_bytes + repacked,
            source="tensor index, and a second copy of the tensors that are repacked",
        )
    return Estimated(value=shape.weights_bytes, source="tensor index")


def _cells(shape: ModelShape, config: RunConfig, *, sliding: bool) -> int:
    cells = _pad(config.context_length)
    if sliding and shape.sliding_window is not None:
        batch = min(config.batch_tokens, cells)
        cells = min(cells, _pad(min(cells, shape.sliding_window + batch)))
    return cells


def _kv_cache(shape: ModelShape, config: RunConfig) -> int:
    per_element = kv_element_bytes("llamacpp", config.kv_type, _KV_BYTES)
    total = 0.0
    for heads, sliding in zip(shape.n_kv_heads, shape.is_sliding, strict=True):
        width = heads * (shape.head_dim_k + shape.head_dim_v)
        total += _cells(shape, config, sliding=sliding) * width * per_element
    return int(total) * config.parallel


def _workspace(shape: ModelShape, config: RunConfig) -> int:
    batch = min(config.batch_tokens, config.context_length)
    cells = _cells(shape, config, sliding=False)
    heads, kv_heads = max(shape.n_heads), max(shape.n_kv_heads)
    query, key = heads * shape.head_dim_k, kv_heads * shape.head_dim_k
    mask_cells = cells
    if any(shape.is_sliding):
        mask_cells += _cells(shape, config, sliding=True)
    masks = batch * mask_cells * (2 if config.flash_attention else _F32_BYTES)
    feed_forward = batch * _F32_BYTES * (4 * max(shape.n_ff) + 1.4 * shape.n_embd)
    attention = batch * _F32_BYTES * (3 * query + 2 * key + 1.5 * shape.n_embd)
    converted = 0
    if not config.flash_attention:
        attention += heads * batch * cells * _F32_BYTES
        converted = heads * batch * cells * 2  # scores as f16 for the product with the values
    rows = max(config.parallel, 1 if any(shape.is_sliding) else min(VERIFY_ROWS, batch))
    logits = rows * shape.vocab_size * _F32_BYTES
    return int(logits + masks + max(feed_forward, attention, logits) + converted)


def _pad(tokens: int) -> int:
    return -(-tokens // _CELL_PAD) * _CELL_PAD
