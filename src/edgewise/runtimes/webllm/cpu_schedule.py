"""A CPU schedule for the model's matrix products.

Rows of the weight go to the threads. A row, unpacked once if it is packed, is multiplied with all
tokens of the step; the sum along it runs in :data:`_LANES` independent lanes, which become vector
registers, instead of one long chain of additions. Floating-point order therefore differs from a
plain loop, within the usual rounding.

Imports TVM: import this module only where it is installed.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir

from edgewise.runtimes.webllm.model import PRODUCT, UNPACKED

__all__ = ["schedule_products"]

_LANES = (32, 16, 8)


def schedule_products(module: Any) -> Any:
    """Return ``module`` with every function that holds a matrix product scheduled."""
    updated = {}
    for variable, function in module.functions.items():
        if isinstance(function, tvm.tirx.PrimFunc) and not _scheduled(function):
            schedule = s_tir.Schedule(function)
            if _apply(schedule):
                updated[variable] = schedule.mod["main"].with_attr("tirx.is_scheduled", True)
    module = module.clone() if hasattr(module, "clone") else tvm.IRModule(dict(module.functions))
    for variable, function in updated.items():
        module.update_func(variable, function)
    return module


def _scheduled(function: Any) -> bool:
    return bool(function.attrs and function.attrs.get("tirx.is_scheduled"))


def _apply(schedule: Any) -> bool:
    blocks = {schedule.get(block).name_hint: block for block in _blocks(schedule)}
    product = blocks.get(PRODUCT)
    if product is None:
        return False
    _, _, row, k = schedule.get_loops(product)
    width = int(schedule.get(k).extent)
    lanes = next((lanes for lanes in _LANES if width % lanes == 0), None)
    if lanes is None:
        return False
    _, lane = schedule.split(k, [None, lanes])
    partial = schedule.rfactor(lane, factor_axis=3)
    batch, token, row, lane = schedule.get_loops(product)
    schedule.reorder(row, batch, token, lane)
    schedule.parallel(row)
    schedule.compute_at(partial, token)
    *_, lane, outer = schedule.get_loops(partial)
    schedule.reorder(outer, lane)
    schedule.vectorize(lane)
    schedule.decompose_reduction(partial, outer)
    schedule.set_scope(partial, 0, "local")
    if UNPACKED in blocks:
        schedule.compute_at(blocks[UNPACKED], row)
    return True


def _blocks(schedule: Any) -> list[Any]:
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))
