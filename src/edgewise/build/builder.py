"""Build an artifact from a checkpoint by a recipe, and the receipt that proves how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from edgewise.build.limits import explain
from edgewise.build.service import SERVICE, Exported, ExportParams
from edgewise.build.source import Source, prepare_source
from edgewise.core.canonical import digest_of
from edgewise.core.fingerprint import CheckpointIdentity
from edgewise.core.formats import OfferedFormat
from edgewise.core.quantity import Measured, Quantity
from edgewise.core.recipe import Recipe
from edgewise.errors import AdapterError, EdgewiseError, InputError
from edgewise.runtimes import registry
from edgewise.runtimes.launch import start_worker
from edgewise.runtimes.protocol import RuntimeAdapter
from edgewise.runtimes.reports import CalibrationReport, PartitionReport, TensorDeviation
from edgewise.store import Home, trees
from edgewise.store.digest import file_digest
from edgewise.store.trees import FileEntry

__all__ = ["BuildReceipt", "build"]

_EXPORT_TIMEOUT_S = 7200.0
_UNUSED_SET = "nothing in this format is calibrated: the calibration set was not used"


class BuildReceipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an artifact came to be.

    Attributes:
        checkpoint: What it was built from.
        recipe: What was asked.
        resolved: The exact formats the recipe came to; ``None`` when the source was taken over.
        runtime: For which runtime.
        runtime_version: Its version.
        operators: Digest of its native libraries.
        exporter: Which exporter made it.
        exporter_version: Its version.
        tools: ``library -> version`` of all that took part.
        format: File format.
        sha256: Digest of the artifact: of its file, or of the index of its files.
        size_bytes: Size of all files.
        files: Every file with its digest and size.
        context_length: Longest context it can be run with, where the artifact fixes one.
        source_sha256: Digest of what the exporter read; another than the checkpoint's when its
            form was converted.
        copied: Whether the source was taken over unchanged.
        double_quantised: Whether already quantised weights were quantised again, which loses
            more than the format alone.
        types: Number of tensors per type.
        deviations: Tensors whose type is not what the recipe asked, each with the reason.
        partition: Where the exporter placed the operators, where it decides that.
        calibration: What a calibration saw.
        notes: What was dropped, corrected or clamped on the way.
        seconds: Time of the export, without conversion of the source.
        peak_memory_bytes: Peak of the export's process.
        fingerprint: The build's part of the deployment fingerprint: checkpoint, recipe, exporter,
            artifact and runtime.
    """

    schema_version: int = 2
    checkpoint: CheckpointIdentity
    recipe: Recipe
    resolved: OfferedFormat | None = None
    runtime: str
    runtime_version: str = ""
    operators: str = ""
    exporter: str
    exporter_version: str
    tools: dict[str, str] = {}
    format: str
    sha256: str
    size_bytes: int
    files: tuple[FileEntry, ...] = ()
    context_length: int | None = None
    source_sha256: str = ""
    copied: bool
    double_quantised: bool
    types: dict[str, int]
    deviations: tuple[TensorDeviation, ...]
    partition: PartitionReport | None = None
    calibration: CalibrationReport | None = None
    notes: tuple[str, ...] = ()
    seconds: Quantity
    peak_memory_bytes: Quantity
    fingerprint: str = ""


def build(
    home: Home,
    checkpoint: CheckpointIdentity,
    recipe: Recipe,
    *,
    runtime: str,
    threads: int,
    memory_limit_bytes: int | None = None,
    calibration: Path | None = None,
    report: Callable[[str], None] = lambda _message: None,
) -> BuildReceipt:
    """Export a checkpoint, store the artifact by content, and return the receipt.

    What an interrupted or failed build leaves is swept from staging; a finished one is in the
    store under its digest before this returns.

    Args:
        home: Where the checkpoint lies and the artifact goes.
        checkpoint: Identity of the source, which must be in the home.
        recipe: What the weights become.
        runtime: Name of the runtime to build for.
        threads: Threads the exporter may use.
        memory_limit_bytes: Most anonymous memory the exporter may allocate.
        calibration: UTF-8 text, a sample per line, for methods that calibrate.
        report: Called with what is going on, in words.

    Raises:
        UnsupportedError: the runtime cannot export, or not this recipe or architecture.
        InputError: the recipe contradicts itself, or its method lacks a calibration set.
        IntegrityError: the source is damaged.
        AdapterError: the exporter failed or died.
        ResourceError: memory or disk ran out.
    """
    adapter = registry.adapter(runtime)
    if calibration is not None:
        recipe = _with_revision(recipe, calibration)
    source = prepare_source(
        home,
        checkpoint.sha256,
        _source_form(adapter, recipe),
        runtime=runtime,
        memory_limit_bytes=memory_limit_bytes,
        report=report,
    )
    with home.work_folder() as work:
        destination = work / "artifact"
        destination.mkdir()
        report(f"exporting with {runtime}")
        params = ExportParams(
            runtime=runtime,
            source=source.path,
            destination=str(destination),
            recipe=recipe,
            threads=threads,
            calibration=None if calibration is None else str(calibration),
        )
        exported = _export(params, memory_limit_bytes)
        try:
            entries = trees.index(destination)
        except InputError as error:
            raise AdapterError(
                "export-empty", f"the exporter of {runtime} left no artifact: {error.message}"
            ) from error
        trees.adopt(home, destination, entries)
    return _receipt(checkpoint, recipe, runtime, source, exported, entries)


def _source_form(adapter: RuntimeAdapter, recipe: Recipe) -> str:
    """Return the form the exporter takes; some formats of a runtime start from another one."""
    by_recipe = getattr(adapter, "source_form_of", None)
    return adapter.source_form if by_recipe is None else str(by_recipe(recipe))


def _receipt(
    checkpoint: CheckpointIdentity,
    recipe: Recipe,
    runtime: str,
    source: Source,
    exported: Exported,
    entries: tuple[FileEntry, ...],
) -> BuildReceipt:
    result = exported.result
    quantises = result.resolved is not None and result.resolved.weights.kind != "float"
    sha256 = trees.tree_digest(entries)
    unused = recipe.calibration_revision is not None and result.calibration is None
    return BuildReceipt(
        checkpoint=checkpoint,
        recipe=recipe,
        resolved=result.resolved,
        runtime=runtime,
        runtime_version=exported.runtime_version,
        operators=exported.operators,
        exporter=result.exporter,
        exporter_version=result.version,
        tools=result.tools,
        format=result.format,
        sha256=sha256,
        size_bytes=sum(entry.size_bytes for entry in entries),
        files=entries,
        context_length=result.context_length,
        source_sha256=source.sha256,
        copied=result.copied,
        double_quantised=source.quantised and quantises and not result.copied,
        types=result.types,
        deviations=result.deviations,
        partition=result.partition,
        calibration=result.calibration,
        notes=(*source.notes, *result.notes, *([_UNUSED_SET] if unused else [])),
        seconds=Measured(value=round(exported.seconds, 3), source="worker clock"),
        peak_memory_bytes=exported.peak_resident_bytes,
        fingerprint=digest_of(
            {
                "checkpoint": checkpoint,
                "recipe": recipe,
                "exporter": [result.exporter, result.version],
                "artifact": sha256,
                "runtime": [runtime, exported.runtime_version, exported.operators],
            }
        ),
    )


def _export(params: ExportParams, memory_limit_bytes: int | None) -> Exported:
    worker = start_worker(params.runtime, SERVICE, memory_limit_bytes=memory_limit_bytes)
    try:
        return worker.call("export", params, Exported, timeout_s=_EXPORT_TIMEOUT_S)
    except EdgewiseError as error:
        raise explain(error, memory_limit_bytes) from error
    finally:
        worker.close()


def _with_revision(recipe: Recipe, calibration: Path) -> Recipe:
    try:
        revision = file_digest(calibration)
    except OSError as error:
        raise InputError(
            "calibration-unreadable",
            f"the calibration set {calibration} cannot be read: {error.strerror}",
            hint="name a text file with a sample on each line",
        ) from error
    return msgspec.structs.replace(recipe, calibration_revision=revision)
