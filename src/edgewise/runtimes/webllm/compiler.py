"""From a model's shape to compiled code: a shared library for this CPU, or objects for a page.

Imports TVM: import this module only where it is installed.
"""

from __future__ import annotations

import collections
import json
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import dlight

from edgewise.device.cpu import read_cpu
from edgewise.runtimes.reports import PartitionReport
from edgewise.runtimes.webllm.config import LlamaConfig
from edgewise.runtimes.webllm.cpu_schedule import schedule_products
from edgewise.runtimes.webllm.formats import Numbers
from edgewise.runtimes.webllm.merge_state import replace_merge_state
from edgewise.runtimes.webllm.model import build_module
from edgewise.runtimes.webllm.sampling import add_sampling

__all__ = ["cpu_target", "link_cpu", "link_web", "web_target"]

_DIGITS = re.compile(r"\d+")
_V3_FEATURES = {"avx2", "fma", "f16c"}

Link = Callable[[str, list[str], Any], None]


def cpu_target() -> Any:
    """Return the TVM target of this machine: x86-64-v3 where it has AVX2, else its baseline."""
    kind: dict[str, Any] = {"kind": "llvm"}
    machine = platform.machine().lower()
    if machine in {"x86_64", "amd64"}:
        sets = getattr(read_cpu().instruction_sets, "value", ()) or ()
        kind["mcpu"] = "x86-64-v3" if set(sets) >= _V3_FEATURES else "x86-64"
    return tvm.target.Target(kind)


def web_target() -> Any:
    """Return the target of a page: WebGPU kernels, the rest in WebAssembly."""
    host = tvm.target.Target({"kind": "llvm", "mtriple": "wasm32-unknown-unknown-wasm"})
    return tvm.target.Target({"kind": "webgpu"}, host=host)


def link_cpu(
    config: LlamaConfig, numbers: Numbers, target: Any, output: Path
) -> list[tuple[str, Any]]:
    """Write a shared library and return the model's parameters, in the order of calls."""
    with target:
        module, parameters = build_module(config, numbers, target)
        builder = relax.BlockBuilder(module)
        _add_metadata(builder, {"quantization": numbers.name}, parameters)
        module = schedule_products(relax.get_pipeline("zero")(builder.finalize()))
        compiled = tvm.compile(module, target=target)
    compiled.export_library(str(output))
    return parameters


def link_web(
    config: LlamaConfig,
    numbers: Numbers,
    metadata: dict[str, Any],
    output: Path,
    link: Link,
) -> tuple[list[tuple[str, Any]], PartitionReport]:
    """Write the model library of a page; return the model's parameters and where functions run.

    Args:
        config: Shape of the model.
        numbers: Format of its weights and arithmetic.
        metadata: What ``_metadata`` answers; the parameters are added here.
        output: The ``.wasm`` file.
        link: Called with the output, TVM's object files and options.
    """
    target = web_target()
    with target:
        module, parameters = build_module(config, numbers, target)
        builder = relax.BlockBuilder(module)
        add_sampling(builder, config.vocab)
        _add_metadata(builder, metadata, parameters)
        module = builder.finalize()
        replace_merge_state(module, config.heads, config.head_dim, numbers.dtype)
        module = relax.get_pipeline("zero")(module)
        module = dlight.ApplyDefaultSchedule(
            dlight.gpu.Matmul(),
            dlight.gpu.GEMV(),
            dlight.gpu.Reduction(),
            dlight.gpu.GeneralReduction(),
            dlight.gpu.Fallback(),
        )(module)
        compiled = tvm.compile(module, target=target)

    def call(output: str, objects: list[str], options: Any = None, **_: Any) -> None:
        link(output, objects, options)

    call.object_format = "o"  # type: ignore[attr-defined]
    compiled.export_library(str(output), fcompile=call)
    return parameters, _placed(module, numbers)


def _placed(module: Any, numbers: Numbers) -> PartitionReport:
    """Return which functions became GPU kernels: those that a schedule bound to GPU threads."""
    operators: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    fallbacks = set()
    for variable, function in module.functions.items():
        if not isinstance(function, tvm.tirx.PrimFunc):
            continue
        bound = "thread_binding" in function.script()
        name = _DIGITS.sub("", variable.name_hint)
        operators[name]["webgpu" if bound else "wasm"] += 1
        if not bound:
            fallbacks.add(name)
    return PartitionReport(
        requested="webgpu",
        operators={name: dict(places) for name, places in sorted(operators.items())},
        fallbacks=tuple(sorted(fallbacks)),
        precision={"arithmetic": numbers.kv_type, "kv_cache": numbers.kv_type},
        source="GPU thread bindings of the scheduled module, over all its functions",
    )


def _add_metadata(
    builder: relax.BlockBuilder, metadata: dict[str, Any], parameters: list[tuple[str, Any]]
) -> None:
    told = {**metadata, "params": [_described(name, value) for name, value in parameters]}
    with builder.function("_metadata", []):
        builder.emit_func_output(tvm.ir.StringImm(json.dumps(told)))


def _described(name: str, parameter: Any) -> dict[str, Any]:
    return {
        "name": name,
        "shape": [int(size) for size in parameter.shape],
        "dtype": parameter.dtype,
        "preprocs": [],
    }
