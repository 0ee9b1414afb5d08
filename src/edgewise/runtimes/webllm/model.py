"""The llama architecture as a relax module, for any of TVM's targets.

The functions and their arguments are what WebLLM calls; the CPU engine calls the same ones. All
tensors are row-major. ``n`` is the number of tokens of a step, ``v`` the vocabulary.

| function | in | out |
|---|---|---|
| ``embed`` | ids ``(n,)`` int32 | ``(n, hidden)`` |
| ``prefill`` | ``(1, n, hidden)``, cache | logits of the last token ``(1, 1, v)`` float32, cache |
| ``decode`` | ``(1, 1, hidden)``, cache | the same |
| ``create_tir_paged_kv_cache`` | five 1-element shapes | cache |
| ``softmax_with_temperature`` | ``(b, 1, v)``, ``(b,)`` float32 | ``(b, 1, v)`` float32 |

Imports TVM: import this module only where it is installed.
"""
# mypy: disable-error-code="misc"
# TVM has no types: its classes are Any, and may be subclassed all the same.

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache, RopeMode, TIRPagedKVCache

from edgewise.runtimes.webllm.config import LlamaConfig
from edgewise.runtimes.webllm.formats import GROUP_SIZE, VALUES_PER_WORD, Numbers

__all__ = ["CACHE_ARGUMENTS", "PRODUCT", "UNPACKED", "build_module"]

CACHE_ARGUMENTS = (
    "max_batch_size",
    "max_total_seq_len",
    "prefill_chunk_size",
    "page_size",
    "support_sliding_window",
)
# Names of the blocks that schedules look for.
PRODUCT = "product"
UNPACKED = "unpacked"
_BITS = 32 // VALUES_PER_WORD
_MASK = (1 << _BITS) - 1
_ZERO = _MASK // 2  # the integer that stands for 0: 7 of 0..14


class _Matrix(nn.Module):
    """A weight ``(rows, columns)``, as floats or as packed integers with a scale per group."""

    def __init__(self, rows: int, columns: int, numbers: Numbers) -> None:
        self.rows, self.columns = rows, columns
        self.dtype = numbers.dtype
        self.quantised = numbers.quantised
        if self.quantised:
            self.q_weight = nn.Parameter((rows, columns // VALUES_PER_WORD), "uint32")
            self.q_scale = nn.Parameter((rows, columns // GROUP_SIZE), numbers.dtype)
        else:
            self.weight = nn.Parameter((rows, columns), numbers.dtype)

    def times(self, x: Any, out_dtype: str | None = None) -> Any:
        """Return ``x @ weight.T``, ``(1, n, rows)``, with no transposed copy of the weight."""
        out = out_dtype or self.dtype

        def product(x: te.Tensor, *stored: te.Tensor) -> te.Tensor:
            weight = self._plain(stored)
            k = te.reduce_axis((0, self.columns), name="k")
            return te.compute(
                (x.shape[0], x.shape[1], self.rows),
                lambda b, n, row: te.sum(
                    x[b, n, k].astype(out) * weight[row, k].astype(out), axis=k
                ),
                name=PRODUCT,
            )

        return op.tensor_expr_op(product, PRODUCT, [x, *self._stored()])

    def rows_of(self, ids: Any) -> Any:
        """Return the rows that ``ids`` name, ``(n, columns)``; the ids must be in range."""

        def take(ids: te.Tensor, *stored: te.Tensor) -> te.Tensor:
            return te.compute(
                (ids.shape[0], self.columns),
                lambda i, column: self._value(stored, ids[i], column),
                name="rows",
            )

        return op.tensor_expr_op(take, "rows", [ids, *self._stored()])

    def _stored(self) -> list[Any]:
        return [self.q_weight, self.q_scale] if self.quantised else [self.weight]

    def _plain(self, stored: tuple[te.Tensor, ...]) -> te.Tensor:
        if not self.quantised:
            return stored[0]
        return te.compute(
            (self.rows, self.columns),
            lambda row, column: self._value(stored, row, column),
            name=UNPACKED,
        )

    def _value(self, stored: tuple[te.Tensor, ...], row: Any, column: Any) -> Any:
        if not self.quantised:
            return stored[0][row, column]
        packed, scale = stored
        word = packed[row, column // VALUES_PER_WORD]
        shift = (column % VALUES_PER_WORD).astype("uint32") * tirx.const(_BITS, "uint32")
        integer = (word >> shift) & tirx.const(_MASK, "uint32")
        value = integer.astype(self.dtype) - tirx.const(_ZERO, self.dtype)
        return value * scale[row, column // GROUP_SIZE]


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig, numbers: Numbers) -> None:
        self.config = config
        self.qkv_proj = _Matrix(config.qkv_rows, config.hidden, numbers)
        self.o_proj = _Matrix(config.hidden, config.heads * config.head_dim, numbers)

    def forward(self, x: Any, cache: PagedKVCache, layer: int) -> Any:
        shape = self.config
        batch, length, _ = x.shape
        joined = op.reshape(
            self.qkv_proj.times(x),
            (batch, length, shape.heads + 2 * shape.kv_heads, shape.head_dim),
        )
        mixed = cache.attention_with_fused_qkv(
            layer, joined, shape.heads, sm_scale=shape.head_dim**-0.5
        )
        return self.o_proj.times(op.reshape(mixed, (batch, length, shape.heads * shape.head_dim)))


class _FeedForward(nn.Module):
    def __init__(self, config: LlamaConfig, numbers: Numbers) -> None:
        self.gate_up_proj = _Matrix(2 * config.intermediate, config.hidden, numbers)
        self.down_proj = _Matrix(config.hidden, config.intermediate, numbers)

    def forward(self, x: Any) -> Any:
        gate, up = op.split(self.gate_up_proj.times(x), 2, axis=-1)
        return self.down_proj.times(op.silu(gate) * up)


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig, numbers: Numbers) -> None:
        self.self_attn = _Attention(config, numbers)
        self.mlp = _FeedForward(config, numbers)
        self.input_layernorm = _norm(config, numbers)
        self.post_attention_layernorm = _norm(config, numbers)

    def forward(self, x: Any, cache: PagedKVCache, layer: int) -> Any:
        x = x + self.self_attn(self.input_layernorm(x), cache, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Llama(nn.Module):
    def __init__(self, config: LlamaConfig, numbers: Numbers, target: Any) -> None:
        self.config, self.target = config, target
        self.dtype = numbers.dtype
        self.embed_tokens = _Matrix(config.vocab, config.hidden, numbers)
        self.layers = nn.ModuleList([_Layer(config, numbers) for _ in range(config.layers)])
        self.norm = _norm(config, numbers)
        self.lm_head = None if config.tied else _Matrix(config.vocab, config.hidden, numbers)

    def embed(self, input_ids: Any) -> Any:
        return self.embed_tokens.rows_of(input_ids)

    def prefill(self, input_embed: Any, paged_kv_cache: PagedKVCache) -> Any:
        def last(rows: te.Tensor) -> te.Tensor:
            batch, length, width = rows.shape
            return te.compute(
                (batch, 1, width), lambda b, _, column: rows[b, length - 1, column], name="last"
            )

        hidden = self._hidden(input_embed, paged_kv_cache)
        return self._logits(op.tensor_expr_op(last, "last", [hidden])), paged_kv_cache

    def decode(self, input_embed: Any, paged_kv_cache: PagedKVCache) -> Any:
        return self._logits(self._hidden(input_embed, paged_kv_cache)), paged_kv_cache

    def softmax_with_temperature(self, logits: Any, temperature: Any) -> Any:
        per_row = op.reshape(temperature, (temperature.shape[0], 1, 1))
        return op.softmax(logits / per_row, axis=-1)

    def create_tir_paged_kv_cache(
        self,
        max_batch_size: Any,
        max_total_seq_len: Any,
        prefill_chunk_size: Any,
        page_size: Any,
        support_sliding_window: Any,
    ) -> PagedKVCache:
        shape = self.config
        return TIRPagedKVCache(
            attn_kind="mha",
            max_batch_size=max_batch_size,
            max_total_seq_len=max_total_seq_len,
            prefill_chunk_size=prefill_chunk_size,
            page_size=page_size,
            support_sliding_window=support_sliding_window,
            layer_partition=relax.ShapeExpr([0, shape.layers]),
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            qk_head_dim=shape.head_dim,
            v_head_dim=shape.head_dim,
            mla_original_qk_head_dim=0,
            mla_original_v_head_dim=0,
            rope_mode=RopeMode.NORMAL,
            rope_scale=1,
            rope_theta=shape.rope_theta,
            rope_scaling={},
            rope_ext_factors=relax.prim_value(0),
            rotary_dim=shape.head_dim,
            enable_disaggregation=False,
            dtype=self.dtype,
            target=self.target,
        )

    def _hidden(self, x: Any, cache: PagedKVCache) -> Any:
        for index, layer in enumerate(self.layers):
            x = layer(x, cache, index)
        return self.norm(x)

    def _logits(self, hidden: Any) -> Any:
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return head.times(hidden, out_dtype="float32")


def build_module(
    config: LlamaConfig, numbers: Numbers, target: Any
) -> tuple[Any, list[tuple[str, Any]]]:
    """Return the model's IR module for ``target`` and its parameters, in the order of calls.

    Args:
        config: Shape of the model.
        numbers: Format of its weights and arithmetic.
        target: A ``tvm.target.Target``, current while this is called.
    """
    weights = {"param_mode": "packed", "effect_mode": "none"}
    none = {"param_mode": "none", "effect_mode": "none"}
    cache = nn.spec.Object(object_type=PagedKVCache)
    width = config.hidden
    return _Llama(config, numbers, target).export_tvm(  # type: ignore[no-any-return]
        spec={
            "embed": {"input_ids": nn.spec.Tensor(["seq_len"], "int32"), "$": weights},
            "prefill": {
                "input_embed": nn.spec.Tensor([1, "seq_len", width], numbers.dtype),
                "paged_kv_cache": cache,
                "$": weights,
            },
            "decode": {
                "input_embed": nn.spec.Tensor([1, 1, width], numbers.dtype),
                "paged_kv_cache": cache,
                "$": weights,
            },
            "softmax_with_temperature": {
                "logits": nn.spec.Tensor(["batch_size", 1, "vocab_size"], "float32"),
                "temperature": nn.spec.Tensor(["batch_size"], "float32"),
                "$": none,
            },
            "create_tir_paged_kv_cache": {**dict.fromkeys(CACHE_ARGUMENTS, int), "$": none},
        }
    )


def _norm(config: LlamaConfig, numbers: Numbers) -> Any:
    return nn.RMSNorm(config.hidden, -1, config.norm_eps, bias=False, dtype=numbers.dtype)
