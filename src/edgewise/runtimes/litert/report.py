"""Where a model's operators run, and what memory it holds.

The partition is observed: the runtime's interpreter loads the same file, hands it to XNNPACK, and
its node list then holds the original operators and one ``DELEGATE`` node per partition. Which
operators a partition took follows from the tensors between its inputs and outputs.
"""

from __future__ import annotations

import collections
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgewise.core.quantity import Measured, Unknown
from edgewise.device.process import peak_resident_bytes, resident_bytes
from edgewise.errors import AdapterError
from edgewise.runtimes.litert import native
from edgewise.runtimes.litert.artifact import StoredModel
from edgewise.runtimes.litert.flatbuffer import DECODE, damage_named, open_model
from edgewise.runtimes.reports import MemoryReport, PartitionReport

__all__ = ["DELEGATE", "assign", "memory_report", "partition_report", "report_from"]

DELEGATE = "XNNPACK"
_ELSEWHERE = "CPU kernels"
_MARK = "DELEGATE"
_PRODUCTS = ("FULLY_CONNECTED", "EMBEDDING_LOOKUP")


def memory_report(weights_bytes: int, kv_cache_bytes: int | None) -> MemoryReport:
    """Return the memory of this process and what is known of its parts.

    Args:
        weights_bytes: Bytes of the model as stored.
        kv_cache_bytes: Bytes of the buffers that hold the KV cache, where they are ours.
    """
    kv_cache = (
        Unknown(reason="the engine does not say how large its KV cache is")
        if kv_cache_bytes is None
        else Measured(value=kv_cache_bytes, source="buffers of the decode signature")
    )
    return MemoryReport(
        resident_bytes=resident_bytes(),
        peak_resident_bytes=peak_resident_bytes(),
        weights_bytes=Measured(value=weights_bytes, source="size of the stored model"),
        kv_cache_bytes=kv_cache,
        workspace_bytes=Unknown(reason="LiteRT does not say what its arenas take"),
    )


def partition_report(stored: StoredModel, *, threads: int) -> PartitionReport:
    """Return which operators of one decode step run where.

    Args:
        stored: The model.
        threads: Threads of the delegate.

    Raises:
        UnsupportedError: ai-edge-litert is not installed.
        IntegrityError: the model cannot be read.
        AdapterError: the interpreter refuses the model.
        ResourceError: there is no room for a copy of the model.
    """
    (interpreter,) = native.load(native.RUNTIME_PACKAGE, "interpreter")
    model = open_model(stored)
    with damage_named(stored):
        subgraph = model.subgraph_of(DECODE)
        names = model.operator_names(subgraph)
        edits = model.with_first(subgraph) if subgraph else []
    with tempfile.TemporaryDirectory(prefix="edgewise-litert-") as folder:
        copy = Path(folder) / "decode.tflite"
        stored.copy_to(copy, edits)
        try:
            loaded = interpreter.Interpreter(model_path=str(copy), num_threads=threads)
            loaded.allocate_tensors()
            nodes = loaded._get_ops_details()  # noqa: SLF001 - nothing public lists nodes
        except (RuntimeError, ValueError) as error:
            raise AdapterError(
                "partition-failed", f"LiteRT's interpreter refuses the model: {error}"
            ) from error
    return report_from(nodes, names, threads=threads)


def report_from(
    nodes: Sequence[Mapping[str, Any]], names: Sequence[str], *, threads: int
) -> PartitionReport:
    """Return the report that a node list comes to.

    Args:
        nodes: Mappings with ``index``, ``op_name``, ``inputs`` and ``outputs`` (tensor numbers).
        names: Operators of the graph in order; a composite by its own name.
        threads: For the report.
    """
    partitions = [node for node in nodes if node["op_name"] == _MARK]
    originals = [node for node in nodes if node["op_name"] != _MARK]
    taken = assign(originals, partitions)
    operators: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    weights: collections.Counter[str] = collections.Counter()
    for place, node in enumerate(originals):
        name = names[place] if len(names) == len(originals) else str(node["op_name"])
        where = DELEGATE if int(node["index"]) in taken else _ELSEWHERE
        operators[name][where] += 1
        if name in _PRODUCTS:
            weights[where] += 1
    return PartitionReport(
        requested=DELEGATE,
        operators={name: dict(places) for name, places in sorted(operators.items())},
        weights=dict(weights),
        fallbacks=tuple(sorted(name for name, places in operators.items() if _ELSEWHERE in places)),
        precision={"kv_cache": "float32", "threads": str(threads)},
        source=f"the interpreter's nodes after delegation: {len(partitions)} partitions",
    )


def assign(
    originals: Sequence[Mapping[str, Any]], partitions: Sequence[Mapping[str, Any]]
) -> dict[int, int]:
    """Return ``node index -> index of the partition`` for every operator a partition took.

    Args:
        originals: The graph's own nodes.
        partitions: The nodes that stand for partitions.
    """
    by_index = {int(node["index"]): node for node in originals}
    producer = {int(t): index for index, node in by_index.items() for t in node["outputs"]}
    taken: dict[int, int] = {}
    for partition in partitions:
        border = {int(tensor) for tensor in partition["inputs"]}
        open_tensors = [int(tensor) for tensor in partition["outputs"]]
        while open_tensors:
            tensor = open_tensors.pop()
            index = producer.get(tensor)
            if tensor in border or index is None or index in taken:
                continue
            taken[index] = int(partition["index"])
            open_tensors.extend(int(t) for t in by_index[index]["inputs"])
    return taken
