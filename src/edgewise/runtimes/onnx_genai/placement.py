"""Where ONNX Runtime placed the operators, from its own record of the assignment."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from edgewise.errors import AdapterError
from edgewise.runtimes.onnx_genai import native
from edgewise.runtimes.onnx_genai.formats import activation_of
from edgewise.runtimes.onnx_genai.graph import Graph
from edgewise.runtimes.reports import PartitionReport

__all__ = ["partition_of", "report"]

_PRODUCTS: Final = ("MatMul", "MatMulNBits", "Gemm")
_TYPE_NAMES: Final = {"tensor(float)": "f32", "tensor(float16)": "f16"}
_SOURCE: Final = "graph assignment of an ONNX Runtime session with the engine's options"


def partition_of(
    model: Path, graph: Graph, *, requested: str, session_options: dict[str, str], threads: int
) -> PartitionReport:
    """Return which execution provider took which operator of the optimised graph.

    The generator's session does not give its record out, so a second session of the same file is
    made with the same options, and dropped. It holds the weights once more meanwhile.

    Raises:
        AdapterError: the session cannot be made.
    """
    runtime = native.load_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    for key, value in session_options.items():
        options.add_session_config_entry(key, value)
    native.record_assignment(options)
    order = [requested] if requested == native.CPU else [requested, native.CPU]
    try:
        session = runtime.InferenceSession(str(model), options, providers=order)
    except Exception as error:
        raise AdapterError(
            "partition-failed", f"ONNX Runtime made no session to observe: {error}"
        ) from error
    placed = (
        (node.op_type, part.ep_name)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )
    cache = {one.type for one in session.get_inputs() if one.name.startswith("past_key_values.")}
    return report(placed, graph, requested=requested, cache_types=cache)


def report(
    placed: Iterable[tuple[str, str]],
    graph: Graph,
    *,
    requested: str,
    cache_types: Iterable[str],
) -> PartitionReport:
    """Return the report for ``(operator, execution provider)`` pairs of a session.

    Args:
        placed: One pair for each node of the optimised graph.
        graph: The graph as stored, for what it says about precision.
        requested: The execution provider that was asked for.
        cache_types: Types of the KV cache's tensors as the session names them.
    """
    operators: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for operator, provider in placed:
        operators[operator][provider] += 1
    weights: collections.Counter[str] = collections.Counter()
    for operator in _PRODUCTS:
        weights.update(operators.get(operator, {}))
    return PartitionReport(
        requested=requested,
        operators={op: dict(places) for op, places in sorted(operators.items())},
        weights=dict(weights),
        fallbacks=tuple(op for op in sorted(operators) if set(operators[op]) != {requested}),
        precision=_precision(graph, cache_types),
        source=_SOURCE,
    )


def _precision(graph: Graph, cache_types: Iterable[str]) -> dict[str, str]:
    activations = ", ".join(
        f"{count} matrix products {how}" for how, count in sorted(activation_of(graph).items())
    )
    named = sorted(_TYPE_NAMES.get(one, one) for one in cache_types)
    return {"activations": activations, "kv_cache": ", ".join(named)}
