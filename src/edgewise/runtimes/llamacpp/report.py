"""Reports on a loaded model: where its operators run, and what memory it holds.

The partition is observed, not assumed: one decode step runs with the evaluation callback, which
sees every graph node, its operator, and the buffer its weights and result live in. The memory
lines come from the library's own log, the only place where it tells them to C callers; a line
that is not found is unknown, never zero.
"""

from __future__ import annotations

import collections
import ctypes
import re
from typing import Any

from edgewise.core.quantity import Measured, Quantity, Unknown
from edgewise.core.recipe import RunConfig
from edgewise.device.process import peak_resident_bytes, resident_bytes
from edgewise.errors import AdapterError
from edgewise.runtimes.llamacpp.library import ContextSettings, Library
from edgewise.runtimes.llamacpp.observer import GraphReader
from edgewise.runtimes.reports import MemoryReport, PartitionReport

__all__ = ["memory_report", "partition_report", "system_features"]

_BACKEND = "CPU"
_MIB = 1 << 20
_LOGGED = re.compile(r"(KV|compute|output) buffer size\s*=\s*([0-9.]+) MiB")


def memory_report(weights_bytes: Quantity, log: list[str], title: str) -> MemoryReport:
    """Return the memory of this process and the runtime's own lines.

    Args:
        weights_bytes: Bytes of all tensors, as the library says.
        log: The library's log since the model was loaded.
        title: The library's name.
    """
    logged: dict[str, float] = collections.defaultdict(float)
    for line in log:
        for kind, size in _LOGGED.findall(line):
            logged[kind] += float(size)
    return MemoryReport(
        resident_bytes=resident_bytes(),
        peak_resident_bytes=peak_resident_bytes(),
        weights_bytes=weights_bytes,
        kv_cache_bytes=_from_log(title, logged, "KV"),
        workspace_bytes=_from_log(title, logged, "compute", "output"),
    )


def _from_log(title: str, logged: dict[str, float], *kinds: str) -> Quantity:
    if kinds[0] not in logged:
        return Unknown(reason=f"{title} logged no {kinds[0]} buffer size")
    total = sum(logged[kind] for kind in kinds)
    return Measured(value=int(total * _MIB), source=f"{title} log: buffer size")


def system_features(bindings: Any) -> tuple[str, ...]:
    """Return the instruction sets that the loaded kernels use, as the library names them."""
    text: str = bindings.llama_print_system_info().decode("utf-8", "replace")
    return tuple(re.findall(r"(\w+) = 1\b", text))


def partition_report(library: Library, model: Any, config: RunConfig) -> PartitionReport:
    """Return which operators of one decode step ran where.

    Raises:
        AdapterError: the context for the step cannot be made, or the step fails.
    """
    seen = _Placement(GraphReader(library))
    bindings = library.bindings()
    context = library.make_context(
        model,
        ContextSettings(
            tokens=256,
            batch_tokens=8,
            threads=config.threads,
            flash_attention=config.flash_attention,
            kv_type=config.kv_type,
            observer=seen.callback,
        ),
    )
    if not context:
        raise AdapterError("partition-failed", f"{library.title} made no context to observe")
    try:
        seen.reset()
        token = (ctypes.c_int32 * 1)(0)
        code = bindings.llama_decode(context, library.batch(token, 1, 0))
        if code:
            raise AdapterError("partition-failed", f"the observed step failed with code {code}")
    finally:
        bindings.llama_free(context)
    return PartitionReport(
        requested=_BACKEND,
        operators={op: dict(places) for op, places in sorted(seen.operators.items())},
        weights=dict(sorted(seen.weights.items())),
        fallbacks=tuple(
            sorted(
                op
                for op, places in seen.operators.items()
                if any(not place.startswith(_BACKEND) for place in places)
            )
        ),
        features=system_features(bindings),
        precision={"kv": ", ".join(sorted(seen.cache_types))} if seen.cache_types else {},
        source="evaluation callback of one decode step",
    )


class _Placement:
    def __init__(self, reader: GraphReader) -> None:
        self._read = reader
        self.callback = reader.bindings.ggml_backend_sched_eval_callback(self._take)
        self.reset()

    def reset(self) -> None:
        self.operators: dict[str, collections.Counter[str]] = collections.defaultdict(
            collections.Counter
        )
        self.weights: collections.Counter[str] = collections.Counter()
        self.cache_types: set[str] = set()

    def _take(self, address: int, ask: bool, _data: Any) -> bool:
        if ask and address:
            tensor = self._read.tensor(address)
            operator = self._read.operator(address)
            if operator:
                self.operators[operator][self._read.place(tensor)] += 1
            for slot in _matrix_slots(operator):
                if tensor.src[slot]:
                    self._matrix(self._read.tensor(tensor.src[slot]))
        return False  # never split the graph for us

    def _matrix(self, matrix: Any) -> None:
        origin = self._read.tensor(matrix.view_src) if matrix.view_src else matrix
        if origin.name.startswith(b"cache_"):
            self.cache_types.add(self._read.type_name(matrix))
        else:
            self.weights[f"{self._read.place(matrix)} {self._read.type_name(matrix)}"] += 1


def _matrix_slots(operator: str) -> tuple[int, ...]:
    if operator.startswith("MUL_MAT"):
        return (0,)
    if operator == "FLASH_ATTN_EXT":
        return (1, 2)
    # One of the family's members computes gate and up projection in one operator.
    return (0, 1) if "FUSED_UP_GATE" in operator else ()
