"""The GPU functions between logits and a token, which WebLLM expects inside the model library.

The sort is a bitonic network whose comparators all point the same way (the first step of each
stage mirrors instead of shifting), so it needs no padding to a power of two; ties are broken by
the smaller index, so its result is unique. Every step is one dispatch: for ``v`` tokens about
``log2(v) ** 2 / 2`` of them.

Imports TVM: import this module only where it is installed.
"""
# The functions below are TVMScript: parsed by TVM, never run by Python.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: ANN202, C901, SIM102

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script import tirx as T  # noqa: N812 - TVMScript is parsed with this name

__all__ = ["GPU_FUNCTIONS", "add_sampling"]

_THREADS = 128
_WORD_BITS = 32
_LOWEST = -3.4028234663852886e38

GPU_FUNCTIONS = (
    "argsort_probs",
    "sample_with_top_p",
    "apply_bitmask_inplace",
    "apply_logit_bias_inplace",
    "apply_penalty_inplace",
)


def add_sampling(builder: relax.BlockBuilder, vocab: int) -> None:
    """Add the sampling functions for a vocabulary of ``vocab`` tokens to a module.

    ``b`` rows of logits or probabilities, ``n`` samples or tokens; all floats float32, all
    integers int32:

    - ``argsort_probs((b, v)) -> values (b, v), indices (b, v)``, falling;
    - ``sample_with_top_p(values (b, v), indices (b, v), uniform (n,), rows (n,), top_p (b,))
      -> (n,)``;
    - ``apply_bitmask_inplace(logits (b, v), rows (n,), mask (b, ceil(v / 32)))``;
    - ``apply_logit_bias_inplace(logits (b, v), rows (n,), tokens (n,), bias (n,))``;
    - ``apply_penalty_inplace(logits (b, v), rows (s,), places (n,), tokens (n,), counts (n,),
      penalties (s, 3))``: presence, frequency, repetition.
    """
    _add_argsort(builder, vocab)
    _add_sample(builder, vocab)
    batch, samples, tokens = (tirx.Var(name, "int64") for name in ("batch", "samples", "tokens"))
    logits = ("logits", (batch, vocab), "float32")
    words = -(-vocab // _WORD_BITS)
    _add_inplace(
        builder,
        "apply_bitmask_inplace",
        _bitmask(vocab),
        [logits, ("rows", (samples,), "int32"), ("mask", (batch, words), "int32")],
    )
    _add_inplace(
        builder,
        "apply_logit_bias_inplace",
        _logit_bias(vocab),
        [
            logits,
            ("rows", (tokens,), "int32"),
            ("tokens", (tokens,), "int32"),
            ("bias", (tokens,), "float32"),
        ],
    )
    _add_inplace(
        builder,
        "apply_penalty_inplace",
        _penalty(vocab),
        [
            logits,
            ("rows", (samples,), "int32"),
            ("places", (tokens,), "int32"),
            ("tokens", (tokens,), "int32"),
            ("counts", (tokens,), "int32"),
            ("penalties", (samples, 3), "float32"),
        ],
    )


def _variable(name: str, shape: tuple[Any, ...], dtype: str) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def _add_argsort(builder: relax.BlockBuilder, vocab: int) -> None:
    batch = tirx.Var("batch", "int64")
    probs = _variable("probs", (batch, vocab), "float32")
    kernel = builder.add_func(_argsort(vocab), "argsort_kernel")
    with builder.function("argsort_probs", [probs]):
        with builder.dataflow():
            results = [relax.TensorType((batch, vocab), dtype) for dtype in ("float32", "int32")]
            output = builder.emit_output(relax.call_tir(kernel, [probs], out_ty=results))
        builder.emit_func_output(output)


def _add_sample(builder: relax.BlockBuilder, vocab: int) -> None:
    batch, samples = tirx.Var("batch", "int64"), tirx.Var("samples", "int64")
    arguments = [
        _variable("values", (batch, vocab), "float32"),
        _variable("indices", (batch, vocab), "int32"),
        _variable("uniform", (samples,), "float32"),
        _variable("rows", (samples,), "int32"),
        _variable("top_p", (batch,), "float32"),
    ]
    kernel = builder.add_func(_sample(vocab), "sample_kernel")
    with builder.function("sample_with_top_p", arguments):
        with builder.dataflow():
            result = relax.TensorType((samples,), "int32")
            output = builder.emit_output(relax.call_tir(kernel, arguments, out_ty=result))
        builder.emit_func_output(output)


def _add_inplace(
    builder: relax.BlockBuilder,
    name: str,
    function: Any,
    arguments: list[tuple[str, tuple[Any, ...], str]],
) -> None:
    variables = [_variable(*argument) for argument in arguments]
    kernel = builder.add_func(function, f"{name}_kernel")
    with builder.function(name, variables):
        with builder.dataflow():
            output = builder.emit_output(
                relax.op.call_tir_inplace(
                    kernel, variables, inplace_indices=[0], out_ty=variables[0].ty
                )
            )
        builder.emit_func_output(output)


def _argsort(vocab: int) -> Any:
    stages = max(1, (vocab - 1).bit_length())
    half = 1 << (stages - 1)

    @T.prim_func(s_tir=True, private=True)
    def argsort(var_probs: T.handle, var_values: T.handle, var_indices: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        batch = T.int64()
        probs = T.match_buffer(var_probs, (batch, vocab), "float32")
        values = T.match_buffer(var_values, (batch, vocab), "float32")
        indices = T.match_buffer(var_indices, (batch, vocab), "int32")
        for row in T.thread_binding(batch, thread="blockIdx.y"):
            for block in T.thread_binding((vocab + _THREADS - 1) // _THREADS, thread="blockIdx.x"):
                for thread in T.thread_binding(_THREADS, thread="threadIdx.x"):
                    with T.sblock("start"):
                        T.reads()
                        T.writes()
                        if block * _THREADS + thread < vocab:
                            values[row, block * _THREADS + thread] = probs[
                                row, block * _THREADS + thread
                            ]
                            indices[row, block * _THREADS + thread] = block * _THREADS + thread
        for stage in T.serial(stages):
            for step in T.serial(stage + 1):
                for row in T.thread_binding(batch, thread="blockIdx.y"):
                    for block in T.thread_binding(
                        (half + _THREADS - 1) // _THREADS, thread="blockIdx.x"
                    ):
                        for thread in T.thread_binding(_THREADS, thread="threadIdx.x"):
                            with T.sblock("compare"):
                                T.reads()
                                T.writes()
                                pair: T.let = block * _THREADS + thread
                                shift: T.let = stage - step
                                inside: T.let = pair & ((1 << shift) - 1)
                                start: T.let = (pair >> shift) << (shift + 1)
                                left: T.let = start + inside
                                right: T.let = T.Select(
                                    step == 0,
                                    start + (2 << shift) - 1 - inside,
                                    left + (1 << shift),
                                )
                                if right < vocab:
                                    left_value: T.let = values[row, left]
                                    right_value: T.let = values[row, right]
                                    left_index: T.let = indices[row, left]
                                    right_index: T.let = indices[row, right]
                                    if left_value < right_value or (
                                        left_value == right_value and left_index > right_index
                                    ):
                                        values[row, left] = right_value
                                        values[row, right] = left_value
                                        indices[row, left] = right_index
                                        indices[row, right] = left_index

    return argsort


def _sample(vocab: int) -> Any:
    @T.prim_func(s_tir=True, private=True)
    def sample(
        var_values: T.handle,
        var_indices: T.handle,
        var_uniform: T.handle,
        var_rows: T.handle,
        var_top_p: T.handle,
        var_out: T.handle,
    ):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        batch = T.int64()
        samples = T.int64()
        values = T.match_buffer(var_values, (batch, vocab), "float32")
        indices = T.match_buffer(var_indices, (batch, vocab), "int32")
        uniform = T.match_buffer(var_uniform, (samples,), "float32")
        rows = T.match_buffer(var_rows, (samples,), "int32")
        top_p = T.match_buffer(var_top_p, (batch,), "float32")
        out = T.match_buffer(var_out, (samples,), "int32")
        for i in T.thread_binding(samples, thread="blockIdx.x"):
            for _ in T.thread_binding(1, thread="threadIdx.x"):
                with T.sblock("sample"):
                    T.reads()
                    T.writes()
                    mass = T.sblock_alloc_buffer((1,), "float32", scope="local")
                    sum_so_far = T.sblock_alloc_buffer((1,), "float32", scope="local")
                    kept = T.sblock_alloc_buffer((1,), "int32", scope="local")
                    chosen = T.sblock_alloc_buffer((1,), "int32", scope="local")
                    mass[0] = T.float32(0)
                    kept[0] = 0
                    while kept[0] < vocab and mass[0] < top_p[rows[i]]:
                        mass[0] = mass[0] + values[rows[i], kept[0]]
                        kept[0] = kept[0] + 1
                    chosen[0] = 0
                    sum_so_far[0] = values[rows[i], 0]
                    while chosen[0] + 1 < kept[0] and sum_so_far[0] <= uniform[i] * mass[0]:
                        chosen[0] = chosen[0] + 1
                        sum_so_far[0] = sum_so_far[0] + values[rows[i], chosen[0]]
                    out[i] = indices[rows[i], chosen[0]]

    return sample


def _bitmask(vocab: int) -> Any:
    words = -(-vocab // _WORD_BITS)

    @T.prim_func(s_tir=True, private=True)
    def bitmask(var_logits: T.handle, var_rows: T.handle, var_mask: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        batch = T.int64()
        samples = T.int64()
        logits = T.match_buffer(var_logits, (batch, vocab), "float32")
        rows = T.match_buffer(var_rows, (samples,), "int32")
        mask = T.match_buffer(var_mask, (batch, words), "int32")
        for i in T.thread_binding(samples, thread="blockIdx.y"):
            for block in T.thread_binding((vocab + _THREADS - 1) // _THREADS, thread="blockIdx.x"):
                for thread in T.thread_binding(_THREADS, thread="threadIdx.x"):
                    with T.sblock("mask"):
                        T.reads()
                        T.writes()
                        token: T.let = block * _THREADS + thread
                        if token < vocab:
                            if (
                                mask[rows[i], token // _WORD_BITS] >> (token % _WORD_BITS)
                            ) & 1 == 0:
                                logits[rows[i], token] = T.float32(_LOWEST)

    return bitmask


def _logit_bias(vocab: int) -> Any:
    @T.prim_func(s_tir=True, private=True)
    def logit_bias(
        var_logits: T.handle, var_rows: T.handle, var_tokens: T.handle, var_bias: T.handle
    ):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        batch = T.int64()
        count = T.int64()
        logits = T.match_buffer(var_logits, (batch, vocab), "float32")
        rows = T.match_buffer(var_rows, (count,), "int32")
        tokens = T.match_buffer(var_tokens, (count,), "int32")
        bias = T.match_buffer(var_bias, (count,), "float32")
        for block in T.thread_binding((count + _THREADS - 1) // _THREADS, thread="blockIdx.x"):
            for thread in T.thread_binding(_THREADS, thread="threadIdx.x"):
                with T.sblock("bias"):
                    T.reads()
                    T.writes()
                    i: T.let = block * _THREADS + thread
                    if i < count:
                        logits[rows[i], tokens[i]] = logits[rows[i], tokens[i]] + bias[i]

    return logit_bias


def _penalty(vocab: int) -> Any:
    @T.prim_func(s_tir=True, private=True)
    def penalty(
        var_logits: T.handle,
        var_rows: T.handle,
        var_places: T.handle,
        var_tokens: T.handle,
        var_counts: T.handle,
        var_penalties: T.handle,
    ):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        batch = T.int64()
        samples = T.int64()
        count = T.int64()
        logits = T.match_buffer(var_logits, (batch, vocab), "float32")
        rows = T.match_buffer(var_rows, (samples,), "int32")
        places = T.match_buffer(var_places, (count,), "int32")
        tokens = T.match_buffer(var_tokens, (count,), "int32")
        counts = T.match_buffer(var_counts, (count,), "int32")
        penalties = T.match_buffer(var_penalties, (samples, 3), "float32")
        for block in T.thread_binding((count + _THREADS - 1) // _THREADS, thread="blockIdx.x"):
            for thread in T.thread_binding(_THREADS, thread="threadIdx.x"):
                with T.sblock("penalty"):
                    T.reads()
                    T.writes()
                    i: T.let = block * _THREADS + thread
                    if i < count:
                        place: T.let = places[i]
                        lowered: T.let = (
                            logits[rows[place], tokens[i]]
                            - penalties[place, 0]
                            - T.Cast("float32", counts[i]) * penalties[place, 1]
                        )
                        logits[rows[place], tokens[i]] = T.if_then_else(
                            lowered > T.float32(0),
                            lowered / penalties[place, 2],
                            lowered * penalties[place, 2],
                        )

    return penalty
