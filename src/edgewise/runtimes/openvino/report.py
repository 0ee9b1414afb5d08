"""Reports on a loaded model: which kernels ran, which settings are in force, what is held."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping
from typing import Any

from edgewise.core.quantity import Estimated, Measured, Unknown
from edgewise.device.process import peak_resident_bytes, resident_bytes
from edgewise.runtimes.openvino import native
from edgewise.runtimes.reports import MemoryReport, PartitionReport

__all__ = [
    "NO_FUSED_CACHE",
    "cache_precision",
    "features_in_force",
    "is_reference",
    "kernel_table",
    "memory_report",
    "partition_of",
    "precision_in_force",
]

_REFERENCE = "reference"
_READ_BACK = (
    "INFERENCE_PRECISION_HINT",
    "EXECUTION_MODE_HINT",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE",
    "KEY_CACHE_PRECISION",
    "VALUE_CACHE_PRECISION",
    "KEY_CACHE_GROUP_SIZE",
    "VALUE_CACHE_GROUP_SIZE",
    "INFERENCE_NUM_THREADS",
    "NUM_STREAMS",
    "ENABLE_CPU_PINNING",
)
_CACHE_PROPERTIES = ("KEY_CACHE", "VALUE_CACHE")
NO_FUSED_CACHE = "not in force: the graph's attention keeps its cache outside of the kernel"


def kernel_table(steps: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Return ``operator -> {place: count}`` from ``(operator, kernel)`` of what was executed.

    The plugin calls a kernel written for clarity, not for speed, ``ref`` or ``ref_any``; such an
    operator counts as run elsewhere than on the optimised CPU kernels that were asked for.
    """
    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for operator, kernel in steps:
        place = _REFERENCE if is_reference(kernel) else native.DEVICE
        table[operator][f"{place} {kernel}"] += 1
    return {operator: dict(places) for operator, places in sorted(table.items())}


def is_reference(kernel: str) -> bool:
    """Return whether a kernel is one of the plugin's plain reference implementations."""
    return kernel == "ref" or kernel.startswith("ref_")


def partition_of(
    executed: Iterable[tuple[str, str]],
    unassigned: Mapping[str, int],
    precision: dict[str, str],
    features: tuple[str, ...],
) -> PartitionReport:
    """Return the report of one profiled decode step.

    Args:
        executed: ``(operator, kernel)`` of everything that ran.
        unassigned: ``operator -> count`` of graph operators that the device refuses.
        precision: Settings in force.
        features: Instruction sets in use.
    """
    operators = kernel_table(executed)
    for name, count in unassigned.items():
        operators.setdefault(name, {})["unassigned"] = count
    weights: collections.Counter[str] = collections.Counter()
    for operator, places in operators.items():
        if operator.startswith("FullyConnected"):
            weights.update(places)
    return PartitionReport(
        requested=native.DEVICE,
        operators=operators,
        weights=dict(weights),
        fallbacks=tuple(
            operator
            for operator, places in operators.items()
            if any(not place.startswith(native.DEVICE) for place in places)
        ),
        features=features,
        precision=precision,
        source="profiling of one decode step, and the plugin's answer for the graph",
    )


def precision_in_force(compiled: Any, *, fused: bool, stored: str) -> dict[str, str]:
    """Return the settings that a compiled model reports, with the KV cache's real format.

    Args:
        compiled: The compiled model.
        fused: Whether attention holds its cache itself, which the cache settings need.
        stored: Element format of the cache otherwise.
    """
    found = {}
    for name in _READ_BACK:
        try:
            value = compiled.get_property(name)
        except RuntimeError:  # another device or version has no such setting
            continue
        found[name] = str(value.get_type_name() if hasattr(value, "get_type_name") else value)
        if name.startswith(_CACHE_PROPERTIES) and not fused:
            found[name] = f"{stored} ({NO_FUSED_CACHE})"
    return found


def features_in_force(compiled: Any) -> tuple[str, ...]:
    """Return the instruction sets the plugin chose kernels for, in its words."""
    try:
        text = str(compiled.get_property("RUNTIME_REQUIREMENTS"))
    except RuntimeError:
        return ()
    return tuple(part[4:] for part in text.split(";") if part.startswith("isa="))


def cache_precision(compiled: Any) -> tuple[bool, str]:
    """Return whether attention holds the KV cache itself, and the format of a cache outside."""
    fused, caches, formats = 0, 0, set()
    for node in compiled.get_runtime_model().get_ops():
        info = node.get_rt_info()
        kind = _text(info, "layerType")
        if kind == "MemoryInput":
            caches += 1
            formats.add(_text(info, "runtimePrecision"))
        elif kind == "ScaledDotProductAttention":
            feeding = [port.get_source_output().get_node() for port in node.inputs()]
            kinds = [_text(source.get_rt_info(), "layerType") for source in feeding]
            fused += kinds.count("MemoryInput") == 2
    return 2 * fused == caches, "+".join(sorted(formats))


def _text(info: Any, key: str) -> str:
    return str(info[key].astype(str)) if key in info else ""


def memory_report(
    weights_bytes: int, state_shapes: Iterable[tuple[int, ...]], element_bytes: float
) -> MemoryReport:
    """Return the memory of this process, and what follows from the artifact and its states.

    Args:
        weights_bytes: Bytes of the constants' file.
        state_shapes: Shapes of the KV states now.
        element_bytes: Bytes of one cached element, scales included.
    """
    held = sum(math.prod(shape) for shape in state_shapes)
    return MemoryReport(
        resident_bytes=resident_bytes(),
        peak_resident_bytes=peak_resident_bytes(),
        weights_bytes=Measured(value=weights_bytes, source="size of the artifact's constants"),
        kv_cache_bytes=Estimated(
            value=int(held * element_bytes), source="shapes of the states x element size"
        ),
        workspace_bytes=Unknown(reason="OpenVINO does not tell what it allocates"),
    )
