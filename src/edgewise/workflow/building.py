"""Build a checkpoint for one runtime or for many; one that fails leaves the others alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgewise.build import BuildReceipt, build
from edgewise.core.quantity import Unknown
from edgewise.core.recipe import Recipe
from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    InputError,
    IntegrityError,
    UnsupportedError,
)
from edgewise.run.service import capabilities_in_worker
from edgewise.runtimes import registry
from edgewise.runtimes.reports import Capabilities
from edgewise.store import trees
from edgewise.workflow.candidate_setup import kv_type_of
from edgewise.workflow.checkpoints import Checkpoint, fetch_checkpoint
from edgewise.workflow.context import Context, Step

__all__ = ["ALL", "BuildReport", "BuildRequest", "Built", "build_for"]

ALL = "all"
# Runs what others are compared with; nobody ships it to a device.
REFERENCE_RUNTIME = "transformers"


class BuildRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to build.

    Attributes:
        model: Checkpoint reference, or ``None`` for the default model.
        runtimes: Names of runtimes; ``all`` stands for every one that can export here.
        recipe: What the weights become.
        calibration: Text file, a sample per line, for methods that calibrate.
        again: Build also what has been built before.
        offline: Use no network.
        memory_limit_bytes: Most anonymous memory an exporter may allocate; by default what the
            device has to give.
    """

    model: str | None = None
    runtimes: tuple[str, ...]
    recipe: Recipe
    calibration: str | None = None
    again: bool = False
    offline: bool = False
    memory_limit_bytes: int | None = None


class Built(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of one runtime: a receipt (with its evidence), or an error.

    ``status`` is ``built``, ``reused``, ``skipped`` (under ``all``: it cannot export here),
    ``refused`` (it cannot honour the recipe or the architecture) or ``failed``.
    """

    runtime: str
    status: str
    receipt: BuildReceipt | None = None
    evidence: str | None = None
    error: dict[str, Any] | None = None


class BuildReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that was asked for, in order."""

    checkpoint: Checkpoint
    recipe: Recipe
    results: tuple[Built, ...]


def build_for(context: Context, request: BuildRequest) -> BuildReport:
    """Return what became of every runtime that was named.

    Raises:
        InputError: a name or the reference is wrong.
        IntegrityError, RemoteError, ResourceError: the checkpoint cannot be had.
    """
    every = ALL in request.runtimes
    names = _exporting_names() if every else request.runtimes
    for name in names:
        registry.adapter(name)
    checkpoint = fetch_checkpoint(context, request.model, offline=request.offline)
    results = []
    for name in dict.fromkeys(names):
        result = _build_one(context, request, checkpoint, name, every=every)
        results.append(result)
        _say_result(context, result)
    return BuildReport(checkpoint=checkpoint, recipe=request.recipe, results=tuple(results))


def _exporting_names() -> tuple[str, ...]:
    return tuple(name for name in registry.names() if name != REFERENCE_RUNTIME)


def _build_one(
    context: Context, request: BuildRequest, checkpoint: Checkpoint, name: str, *, every: bool
) -> Built:
    def say(message: str) -> None:
        context.report(Step(stage="build", status="start", message=f"{name}: {message}"))

    capabilities = capabilities_in_worker(name)
    if not capabilities.can_export:
        return _cannot(capabilities, every=every)
    if not request.again and (known := _known(context, request, checkpoint, capabilities)):
        digest, receipt = known
        return Built(runtime=name, status="reused", receipt=receipt, evidence=digest)
    try:
        kv_type_of(capabilities, request.recipe.kv)
        receipt = build(
            context.home,
            checkpoint.identity,
            request.recipe,
            runtime=name,
            threads=os.cpu_count() or 1,
            memory_limit_bytes=request.memory_limit_bytes or _budget(context),
            calibration=None if request.calibration is None else Path(request.calibration),
            report=say,
        )
    except EdgewiseError as error:
        status = "refused" if isinstance(error, UnsupportedError) else "failed"
        return Built(runtime=name, status=status, error=error.to_dict())
    digest = context.record("build", receipt.sha256, receipt)
    return Built(runtime=name, status="built", receipt=receipt, evidence=digest)


def _cannot(capabilities: Capabilities, *, every: bool) -> Built:
    name = capabilities.runtime
    if capabilities.broken:
        broken = AdapterError(
            "runtime-broken",
            f"{name} is installed and does not load: {capabilities.reason}",
            hint=f"install it anew: edgewise runtime remove {name}, then runtime install {name}",
        )
        return Built(runtime=name, status="failed", error=broken.to_dict())
    error = UnsupportedError(
        "runtime-cannot-export",
        f"{capabilities.runtime} cannot export here: {capabilities.reason}",
        context={"missing": list(capabilities.missing)},
        hint="`edgewise runtime list` says what can; `edgewise runtime install` adds a runtime",
    )
    status = "skipped" if every else "refused"
    return Built(runtime=capabilities.runtime, status=status, error=error.to_dict())


def _known(
    context: Context, request: BuildRequest, checkpoint: Checkpoint, capabilities: Capabilities
) -> tuple[str, BuildReceipt] | None:
    """Return an earlier build of the same by the same tools whose bytes are still sound."""
    if request.calibration is not None:
        return None  # the set may have changed
    for digest, receipt in reversed(builds(context, checkpoint.sha256)):
        same = (receipt.runtime, receipt.recipe, receipt.runtime_version) == (
            capabilities.runtime,
            request.recipe,
            capabilities.version,
        )
        if same and _sound(context, receipt):
            return digest, receipt
    return None


def builds(
    context: Context, checkpoint_sha256: str | None = None
) -> list[tuple[str, BuildReceipt]]:
    """Return the receipts of all builds, of one checkpoint if it is given, oldest first."""
    found = []
    for digest, piece in context.evidence.find(kind="build"):
        try:
            receipt = msgspec.convert(piece.figures, type=BuildReceipt)
        except msgspec.ValidationError:
            continue  # of an earlier form: it is built anew
        if checkpoint_sha256 in {None, receipt.checkpoint.sha256}:
            found.append((digest, receipt))
    return found


def _sound(context: Context, receipt: BuildReceipt) -> bool:
    try:
        trees.verified_path(context.home, receipt.sha256)
    except IntegrityError:
        return False
    return True


def _budget(context: Context) -> int | None:
    budget = context.device.memory.budget_bytes
    return None if isinstance(budget, Unknown) else int(budget.number)


def _say_result(context: Context, result: Built) -> None:
    if result.receipt is not None:
        receipt = result.receipt
        formats = "as it was" if receipt.resolved is None else receipt.resolved.name
        size = receipt.size_bytes / (1 << 20)
        message = f"{result.runtime}: {formats}, {size:.1f} MiB, {receipt.sha256[:12]}"
        status = "reused" if result.status == "reused" else "done"
        context.report(Step(stage="build", status=status, message=message))
        for note in receipt.notes:
            context.report(Step(stage="build", status="note", message=f"{result.runtime}: {note}"))
        if receipt.double_quantised:
            message = f"{result.runtime}: the source was quantised already: quality suffers twice"
            context.report(Step(stage="build", status="note", message=message))
        return
    assert result.error is not None
    message = f"{result.runtime} {result.status}: {result.error['message']}"
    context.report(Step(stage="build", status="note", message=message))


def require_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names given as ``a,b`` or one by one, each once.

    Raises:
        InputError: there is none.
    """
    found = [part.strip() for name in names for part in name.split(",") if part.strip()]
    if not found:
        raise InputError("runtime-missing", "no runtime was named", hint="e.g. --for llamacpp")
    return tuple(dict.fromkeys(found))
