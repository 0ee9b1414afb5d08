"""The build's worker: one export, in a process of its own, under a memory limit."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from edgewise.core.quantity import Quantity
from edgewise.core.recipe import Recipe
from edgewise.device.process import peak_resident_bytes
from edgewise.runtimes import registry
from edgewise.runtimes.host import Emit, Method
from edgewise.runtimes.protocol import ExportResult

__all__ = ["SERVICE", "BuildService", "ExportParams", "Exported"]

SERVICE = "edgewise.build.service:BuildService"


class ExportParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to export, from where, to where."""

    runtime: str
    source: str
    destination: str
    recipe: Recipe
    threads: int


class Exported(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result, with what it took."""

    result: ExportResult
    seconds: float
    peak_resident_bytes: Quantity


class BuildService:
    """Runs one exporter. A build cannot be cancelled half-way; end the process instead."""

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {"export": Method(ExportParams, self._export)}

    def cancel(self) -> None:
        """Do nothing: exporters have no safe point to stop at."""

    def clear_cancel(self) -> None:
        """Do nothing."""

    def _export(self, params: ExportParams, _emit: Emit) -> Exported:
        started = time.perf_counter()
        exporter = registry.adapter(params.runtime).exporter()
        result = exporter.export(
            Path(params.source), Path(params.destination), params.recipe, threads=params.threads
        )
        return Exported(
            result=result,
            seconds=time.perf_counter() - started,
            peak_resident_bytes=peak_resident_bytes(),
        )
