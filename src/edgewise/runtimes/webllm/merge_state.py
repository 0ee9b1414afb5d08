"""Joining two attention results over the same queries, without a race.

TVM 0.27's own GPU kernel lets several threads of a head read its score and each write the joined
one, with nothing in between. Where a head's threads do not run in lockstep (a software adapter,
or a GPU whose subgroups are smaller than a quarter of the head's width) a thread reads what
another has already written, and every prefill after the first one of a sequence goes wrong.
Here one thread does one head of one token.

Imports TVM: import this module only where it is installed.
"""
# The function below is TVMScript: parsed by TVM, never run by Python.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: ANN202

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T  # noqa: N812 - TVMScript is parsed with this name

__all__ = ["replace_merge_state"]

_NAME = "tir_attention_merge_state"
_THREADS = 64


def replace_merge_state(module: Any, heads: int, head_dim: int, dtype: str) -> None:
    """Put the kernel in the place of TVM's own, in a module built for a GPU target.

    Args:
        module: Holds a function called ``tir_attention_merge_state``.
        heads: Query heads.
        head_dim: Elements of one head.
        dtype: Element type of the attention results; the scores are float32.
    """
    for variable in module.functions:
        if variable.name_hint == _NAME:
            module.update_func(variable, _merge_state(heads, head_dim, dtype))
            return
    message = f"the module holds no {_NAME}: TVM's KV cache has changed"
    raise RuntimeError(message)


def _merge_state(heads: int, head_dim: int, dtype: str) -> Any:
    @T.prim_func(s_tir=True)
    def merge_state(
        var_value: T.handle,
        var_score: T.handle,
        var_value_other: T.handle,
        var_score_other: T.handle,
    ):
        T.func_attr({"tirx.is_scheduled": True, "global_symbol": _NAME})
        tokens = T.int32()
        value = T.match_buffer(var_value, (tokens, heads, head_dim), dtype)
        score = T.match_buffer(var_score, (tokens, heads), "float32")
        value_other = T.match_buffer(var_value_other, (tokens, heads, head_dim), dtype)
        score_other = T.match_buffer(var_score_other, (tokens, heads), "float32")
        for block in T.thread_binding(
            (tokens * heads + _THREADS - 1) // _THREADS, thread="blockIdx.x"
        ):
            for thread in T.thread_binding(_THREADS, thread="threadIdx.x"):
                with T.sblock("merge"):
                    T.reads()
                    T.writes()
                    place: T.let = block * _THREADS + thread
                    if place < tokens * heads:
                        token: T.let = place // heads
                        head: T.let = place % heads
                        mine: T.let = score[token, head]
                        other: T.let = score_other[token, head]
                        most: T.let = T.max(mine, other)
                        weight: T.let = T.exp2(mine - most)
                        weight_other: T.let = T.exp2(other - most)
                        total: T.let = weight + weight_other
                        for i in T.serial(head_dim):
                            value[token, head, i] = T.Cast(
                                dtype,
                                (
                                    T.Cast("float32", value[token, head, i]) * weight
                                    + T.Cast("float32", value_other[token, head, i]) * weight_other
                                )
                                / total,
                            )
                        score[token, head] = T.log2(total) + most

    return merge_state
