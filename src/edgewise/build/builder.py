"""Build an artifact from a checkpoint by a recipe, and the receipt that proves how."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgewise.build.service import SERVICE, Exported, ExportParams
from edgewise.core.fingerprint import CheckpointIdentity
from edgewise.core.quantity import Measured, Quantity
from edgewise.core.recipe import Recipe
from edgewise.runtimes import registry
from edgewise.runtimes.protocol import TensorDeviation
from edgewise.runtimes.worker import WorkerProcess
from edgewise.store import Home
from edgewise.store.digest import file_digest

__all__ = ["BuildReceipt", "build"]

_EXPORT_TIMEOUT_S = 3600.0


class BuildReceipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an artifact came to be.

    Attributes:
        checkpoint: What it was built from.
        recipe: What was asked.
        runtime: For which runtime.
        exporter: Which exporter made it.
        exporter_version: Its version.
        format: File format.
        sha256: Digest of the artifact.
        size_bytes: Its size.
        copied: Whether the source was taken over unchanged.
        double_quantised: Whether already quantised weights were quantised again, which loses
            more than the format alone.
        types: Number of tensors per type.
        deviations: Tensors whose type is not what the recipe asked, each with the reason.
        seconds: Time of the export.
        peak_memory_bytes: Peak of the export's process.
    """

    checkpoint: CheckpointIdentity
    recipe: Recipe
    runtime: str
    exporter: str
    exporter_version: str
    format: str
    sha256: str
    size_bytes: int
    copied: bool
    double_quantised: bool
    types: dict[str, int]
    deviations: tuple[TensorDeviation, ...]
    seconds: Quantity
    peak_memory_bytes: Quantity


def build(
    home: Home,
    checkpoint: CheckpointIdentity,
    recipe: Recipe,
    *,
    runtime: str,
    threads: int,
    memory_limit_bytes: int | None = None,
) -> BuildReceipt:
    """Export the checkpoint's blob and store the artifact as a blob; return the receipt.

    What an interrupted or failed build leaves is swept from staging; a finished one is in the
    store under its digest before this returns.

    Args:
        home: Where the checkpoint's blob lies and the artifact goes.
        checkpoint: Identity of the source; its blob must exist.
        recipe: What the weights become.
        runtime: Name of the runtime to build for.
        threads: Threads the exporter may use.
        memory_limit_bytes: Most anonymous memory the exporter may allocate.

    Raises:
        UnsupportedError: the runtime cannot export, or not this recipe.
        InputError: the recipe contradicts itself.
        IntegrityError: the source is damaged.
        AdapterError: the exporter failed or died.
        ResourceError: memory or disk ran out.
    """
    registry.adapter(runtime)
    source = home.verified_blob(checkpoint.sha256)
    with home.work_folder() as work:
        exported = _export(
            ExportParams(
                runtime=runtime,
                source=str(source),
                destination=str(work / "artifact"),
                recipe=recipe,
                threads=threads,
            ),
            memory_limit_bytes,
        )
        artifact = Path(exported.result.path)
        sha256, size_bytes = file_digest(artifact), artifact.stat().st_size
        home.adopt(artifact, sha256)
    result = exported.result
    return BuildReceipt(
        checkpoint=checkpoint,
        recipe=recipe,
        runtime=runtime,
        exporter=result.exporter,
        exporter_version=result.version,
        format=result.format,
        sha256=sha256,
        size_bytes=size_bytes,
        copied=result.copied,
        double_quantised=result.requantised,
        types=result.types,
        deviations=result.deviations,
        seconds=Measured(value=round(exported.seconds, 3), source="worker clock"),
        peak_memory_bytes=exported.peak_resident_bytes,
    )


def _export(params: ExportParams, memory_limit_bytes: int | None) -> Exported:
    worker = WorkerProcess(SERVICE, memory_limit_bytes=memory_limit_bytes)
    try:
        return worker.call("export", params, Exported, timeout_s=_EXPORT_TIMEOUT_S)
    finally:
        worker.close()
