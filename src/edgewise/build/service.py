"""The build's workers: one export or one conversion, in a process of its own, under a limit."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from edgewise.core.quantity import Quantity
from edgewise.core.recipe import Recipe
from edgewise.device.process import peak_resident_bytes
from edgewise.runtimes import registry
from edgewise.runtimes.host import Emit, Method
from edgewise.runtimes.reports import ExportResult

__all__ = [
    "CONVERT_SERVICE",
    "SERVICE",
    "BuildService",
    "ConvertParams",
    "ConvertService",
    "Converted",
    "ExportParams",
    "Exported",
]

SERVICE = "edgewise.build.service:BuildService"
CONVERT_SERVICE = "edgewise.build.service:ConvertService"


class ExportParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to export, from where, to where."""

    runtime: str
    source: str
    destination: str
    recipe: Recipe
    threads: int
    calibration: str | None = None


class Exported(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result, with what it took."""

    result: ExportResult
    seconds: float
    peak_resident_bytes: Quantity
    operators: str
    runtime_version: str


class ConvertParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint, and the form (``gguf`` or ``hf``) to write into an empty folder."""

    source: str
    destination: str
    form: str


class Converted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the conversion dropped or corrected, in words, and the libraries that took part."""

    notes: tuple[str, ...] = ()
    tools: dict[str, str] = {}


class _Uncancellable:
    """A service with no safe point to stop at; its process is ended instead."""

    def cancel(self) -> None:
        """Do nothing."""

    def clear_cancel(self) -> None:
        """Do nothing."""


class BuildService(_Uncancellable):
    """Runs one exporter."""

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {"export": Method(ExportParams, self._export)}

    def _export(self, params: ExportParams, _emit: Emit) -> Exported:
        from edgewise.models.hf_form import check_finite  # noqa: PLC0415 - numpy is in workers only

        unread = check_finite(Path(params.source))
        started = time.perf_counter()
        adapter = registry.adapter(params.runtime)
        result = adapter.exporter().export(
            Path(params.source),
            Path(params.destination),
            params.recipe,
            threads=params.threads,
            calibration=None if params.calibration is None else Path(params.calibration),
        )
        if unread:
            note = f"{', '.join(unread)} tensors were not searched for numbers that are not finite"
            result = msgspec.structs.replace(result, notes=(*result.notes, note))
        return Exported(
            result=result,
            seconds=time.perf_counter() - started,
            peak_resident_bytes=peak_resident_bytes(),
            operators=adapter.operators_digest(),
            runtime_version=adapter.version(),
        )


class ConvertService(_Uncancellable):
    """Runs one conversion between the forms of a checkpoint."""

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {"convert": Method(ConvertParams, self._convert)}

    def _convert(self, params: ConvertParams, _emit: Emit) -> Converted:
        from edgewise.models import hf_form  # noqa: PLC0415 - its libraries are heavy

        source, destination = Path(params.source), Path(params.destination)
        if params.form == "hf":
            made = hf_form.gguf_to_hf(source, destination)
        else:
            # F32, so that no number of the source is rounded on the way.
            made = hf_form.hf_to_gguf(source, destination / "model.gguf", dtype="f32")
        return Converted(notes=made.notes, tools=made.tools)
