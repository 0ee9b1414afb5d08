"""What setting up asks of a runtime, and what its artifact changes about the plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec

from edgewise.build import BuildReceipt
from edgewise.core.quantity import Estimated, Quantity, Unknown
from edgewise.core.recipe import KvType, RunConfig
from edgewise.errors import UnsupportedError
from edgewise.planner import Plan, Verdict
from edgewise.run.service import capabilities_in_worker
from edgewise.runtimes.reports import Capabilities, Footprint
from edgewise.workflow.checkpoints import Description, describe

__all__ = [
    "as_built",
    "kv_type_of",
    "only_workspace_open",
    "require_runtime",
    "with_measured",
    "within",
]


def require_runtime(name: str) -> Capabilities:
    """Return what a runtime can do here.

    Raises:
        UnsupportedError: it cannot both export and run.
    """
    capabilities = capabilities_in_worker(name)
    if capabilities.can_run and capabilities.can_export:
        return capabilities
    raise UnsupportedError(
        "runtime-cannot-export" if capabilities.can_run else "runtime-cannot-run",
        f"{name} cannot be set up here: {capabilities.reason}",
        context={"missing": list(capabilities.missing)},
        hint="see `edgewise runtime list`",
    )


def kv_type_of(capabilities: Capabilities, wanted: KvType | None) -> KvType:
    """Return the KV cache format that was asked for, or the runtime's default.

    Raises:
        UnsupportedError: the runtime has no such format.
    """
    offered = capabilities.kv_types or (KvType.F16,)
    if wanted is None:
        return KvType(offered[0])
    if wanted not in offered:
        raise UnsupportedError(
            "kv-type-unsupported",
            f"{capabilities.runtime} has no {wanted} KV cache",
            hint=f"it has: {', '.join(offered)}",
        )
    return wanted


def only_workspace_open(plan: Plan) -> bool:
    """Return whether nothing but the runtime's workspace keeps the plan from an answer."""
    missing = [name for name, line in plan.memory.lines.items() if isinstance(line, Unknown)]
    return plan.verdict is Verdict.UNKNOWN and missing == ["workspace_bytes"]


def with_measured(lines: Footprint, peak: Quantity) -> Footprint:
    """Return memory lines whose unknown workspace is what a measured peak leaves."""
    if isinstance(peak, Unknown) or not isinstance(lines.workspace_bytes, Unknown):
        return lines
    known = 0
    for line in (lines.weights_bytes, lines.kv_cache_bytes, lines.runtime_bytes):
        if isinstance(line, Unknown):
            return lines
        known += int(line.number)
    workspace = Estimated(
        value=max(0, int(peak.number) - known),
        source="measured peak of the worker, less the other lines",
    )
    return msgspec.structs.replace(lines, workspace_bytes=workspace)


def as_built(description: Description, receipt: BuildReceipt, artifact: Path) -> Description:
    """Return the description of a checkpoint, with its artifact's weights."""
    if receipt.copied:
        return description
    if receipt.format == "gguf":
        return describe(artifact)
    shape = description.shape
    if shape is not None:
        shape = dataclasses.replace(shape, weights_bytes=receipt.size_bytes)
    return dataclasses.replace(description, shape=shape)


def within(config: RunConfig, receipt: BuildReceipt) -> RunConfig:
    """Return the configuration.

    Raises:
        UnsupportedError: its context is longer than the artifact allows.
    """
    longest = receipt.context_length
    if longest is None or config.context_length <= longest:
        return config
    raise UnsupportedError(
        "context-too-long",
        f"the artifact holds a context of {longest}, and {config.context_length} is asked",
        hint=f"ask for --context {longest}, or export it for a longer one",
    )
