"""Reports on a loaded model: where its operators run, and what memory it holds.

The partition is observed, not assumed: one decode step runs with llama.cpp's evaluation
callback, which sees every graph node, its operator, and the buffer its weights and result live
in. The memory lines come from llama.cpp's own log, the only place where it tells them to C
callers; a line that is not found is unknown, never zero.
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
from edgewise.runtimes.llamacpp.formats import KV_TYPES
from edgewise.runtimes.protocol import MemoryReport, PartitionReport

__all__ = ["memory_report", "partition_report", "system_features"]

_BACKEND = "CPU"
_MIB = 1 << 20
_LOGGED = re.compile(r"(KV|compute|output) buffer size\s*=\s*([0-9.]+) MiB")


class _Tensor(ctypes.Structure):
    """The head of ``struct ggml_tensor``, as far as it is read (ggml.h, 2026-11)."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int32),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
    )


def memory_report(weights_bytes: int, log: list[str]) -> MemoryReport:
    """Return the memory of this process and the runtime's own lines.

    Args:
        weights_bytes: Bytes of all tensors, as llama.cpp says.
        log: llama.cpp's log since the model was loaded.
    """
    logged: dict[str, float] = collections.defaultdict(float)
    for line in log:
        for kind, size in _LOGGED.findall(line):
            logged[kind] += float(size)
    return MemoryReport(
        resident_bytes=resident_bytes(),
        peak_resident_bytes=peak_resident_bytes(),
        weights_bytes=Measured(value=weights_bytes, source="llama_model_size"),
        kv_cache_bytes=_from_log(logged, "KV"),
        workspace_bytes=_from_log(logged, "compute", "output"),
    )


def _from_log(logged: dict[str, float], *kinds: str) -> Quantity:
    if kinds[0] not in logged:
        return Unknown(reason=f"llama.cpp logged no {kinds[0]} buffer size")
    total = sum(logged[kind] for kind in kinds)
    return Measured(value=int(total * _MIB), source="llama.cpp log: buffer size")


def system_features(bindings: Any) -> tuple[str, ...]:
    """Return the instruction sets that the loaded kernels use, as llama.cpp names them."""
    text: str = bindings.llama_print_system_info().decode("utf-8", "replace")
    return tuple(re.findall(r"(\w+) = 1\b", text))


def partition_report(bindings: Any, model: Any, config: RunConfig) -> PartitionReport:
    """Return which operators of one decode step ran where.

    Raises:
        AdapterError: the context for the step cannot be made, or the step fails.
    """
    seen = _Observer(bindings)
    params = bindings.llama_context_default_params()
    params.n_ctx = 256
    params.n_batch = params.n_ubatch = 8
    params.n_outputs_max = 1
    params.n_threads = params.n_threads_batch = config.threads
    params.flash_attn_type = int(config.flash_attention)
    params.type_k = params.type_v = KV_TYPES[config.kv_type]
    params.swa_full = False
    params.cb_eval = seen.callback
    context = bindings.llama_init_from_model(model, params)
    if not context:
        raise AdapterError("partition-failed", "llama.cpp made no context to observe")
    try:
        seen.reset()
        token = (ctypes.c_int32 * 1)(0)
        code = bindings.llama_decode(context, bindings.llama_batch_get_one(token, 1))
        if code:
            raise AdapterError("partition-failed", f"the observed step failed with code {code}")
    finally:
        bindings.llama_free(context)
    return PartitionReport(
        requested=_BACKEND,
        operators={op: dict(places) for op, places in sorted(seen.operators.items())},
        weights=dict(seen.weights),
        fallbacks=tuple(
            sorted(
                op
                for op, places in seen.operators.items()
                if any(not place.startswith(_BACKEND) for place in places)
            )
        ),
        features=system_features(bindings),
    )


class _Observer:
    def __init__(self, bindings: Any) -> None:
        # libllama links libggml-base, so its symbols resolve through the same handle.
        library = ctypes.CDLL(bindings._lib._name)  # noqa: SLF001 - no public accessor
        self._op_name = _function(library, "ggml_op_desc", ctypes.c_char_p)
        self._buffer_name = _function(library, "ggml_backend_buffer_name", ctypes.c_char_p)
        self._bindings = bindings
        self.callback = bindings.ggml_backend_sched_eval_callback(self._take)
        self.reset()

    def reset(self) -> None:
        self.operators: dict[str, collections.Counter[str]] = collections.defaultdict(
            collections.Counter
        )
        self.weights: collections.Counter[str] = collections.Counter()

    def _take(self, address: int, ask: bool, _data: Any) -> bool:
        if ask and address:
            tensor = ctypes.cast(address, ctypes.POINTER(_Tensor)).contents
            operator = self._op_name(address).decode("ascii", "replace")
            if operator not in {"RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE", "NONE"}:
                self.operators[operator][self._place(tensor.buffer)] += 1
            if operator.startswith("MUL_MAT") and tensor.src[0]:
                weight = ctypes.cast(tensor.src[0], ctypes.POINTER(_Tensor)).contents
                self.weights[self._place(weight.buffer)] += 1
        return False  # never split the graph for us

    def _place(self, buffer: int | None) -> str:
        if not buffer:
            return "unassigned"
        name: str = self._buffer_name(buffer).decode("ascii", "replace")
        return name


def _function(library: ctypes.CDLL, name: str, result: Any) -> Any:
    function = getattr(library, name)
    function.argtypes = [ctypes.c_void_p]
    function.restype = result
    return function
