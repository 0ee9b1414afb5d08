"""What a runtime can be asked to do: two halves, an exporter and an engine, both optional.

A runtime declares in :class:`Capabilities` what it can do on this machine. Whatever it does not
declare it refuses with :class:`~edgewise.errors.UnsupportedError`; no adapter substitutes
something else quietly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from edgewise.core.quantity import Quantity
from edgewise.core.recipe import Recipe, RunConfig

if TYPE_CHECKING:
    import numpy as np

    from edgewise.models.architecture import ModelShape

__all__ = [
    "CancelledError",
    "Capabilities",
    "Engine",
    "ExportResult",
    "Exporter",
    "Footprint",
    "MemoryReport",
    "PartitionReport",
    "RuntimeAdapter",
    "TensorDeviation",
]


class CancelledError(Exception):
    """The running call was cancelled. It never leaves the worker: an outcome says it instead."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a runtime can do here.

    Attributes:
        runtime: Name under which it is registered.
        version: Version of the runtime, ``None`` when it is not installed.
        can_export: Whether artifacts can be built on this machine.
        can_run: Whether artifacts can be run on this machine.
        reason: Why not, when one of the two is false.
        artifact_formats: File formats it runs.
        weight_formats: Weight formats its exporter offers.
        kv_types: KV cache formats.
        backends: Devices that truly loaded, by the runtime's own name.
        logits: Whether each step's logits can be read.
        rewind: Whether the KV cache can be cut back to an earlier position.
        state_save: Whether the KV cache can be saved and restored.
        cancel_latency: ``in-step`` when a running step can be aborted, ``per-step`` when only
            between steps, ``none`` when not at all.
    """

    runtime: str
    version: str | None
    can_export: bool
    can_run: bool
    reason: str = ""
    artifact_formats: tuple[str, ...] = ()
    weight_formats: tuple[str, ...] = ()
    kv_types: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    logits: bool = False
    rewind: bool = False
    state_save: bool = False
    cancel_latency: str = "none"


class PartitionReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which operators of one decode step ran where.

    Attributes:
        requested: The backend the run configuration asked for.
        operators: ``operator -> {backend buffer: count}`` over one decode step.
        weights: ``weight buffer -> number of matrix products that read from it``; a runtime
            that repacks weights for its kernels shows it here.
        fallbacks: Names of operators that ran somewhere else than requested.
        features: Instruction sets the kernels were compiled for and use.
    """

    requested: str
    operators: dict[str, dict[str, int]]
    weights: dict[str, int]
    fallbacks: tuple[str, ...]
    features: tuple[str, ...]


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory of the process that holds the engine, and what the runtime says it allocated."""

    resident_bytes: Quantity
    peak_resident_bytes: Quantity
    weights_bytes: Quantity
    kv_cache_bytes: Quantity
    workspace_bytes: Quantity


class Footprint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a runtime will hold in memory, before it holds anything; see the plan's ledger."""

    weights_bytes: Quantity
    kv_cache_bytes: Quantity
    workspace_bytes: Quantity
    runtime_bytes: Quantity


class TensorDeviation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor whose type is not what the recipe asked for, and why."""

    tensor: str
    asked: str
    got: str
    reason: str


class ExportResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an exporter made.

    Attributes:
        path: The artifact file.
        format: Its format, e.g. ``gguf``.
        exporter: Name of the exporter.
        version: Its version.
        copied: Whether the source was taken over unchanged.
        requantised: Whether already quantised weights were quantised again.
        types: Number of tensors per type in the artifact.
        deviations: Every tensor whose type differs from what the recipe asked.
    """

    path: str
    format: str
    exporter: str
    version: str
    copied: bool
    requantised: bool
    types: dict[str, int]
    deviations: tuple[TensorDeviation, ...]


class Exporter(Protocol):
    """Turns a checkpoint and a recipe into artifact files."""

    def export(
        self, source: Path, destination: Path, recipe: Recipe, *, threads: int
    ) -> ExportResult:
        """Write the artifact to ``destination`` and return what was made.

        Raises:
            UnsupportedError: the recipe asks for something the format cannot carry.
            AdapterError: the native exporter failed.
            ResourceError: the disk is full.
        """
        ...


@runtime_checkable
class Engine(Protocol):
    """A loaded artifact that turns tokens into logits. Not thread-safe, except ``cancel``."""

    @property
    def position(self) -> int:
        """Return how many tokens the KV cache holds."""
        ...

    @property
    def context_length(self) -> int:
        """Return how many tokens the KV cache can hold."""
        ...

    @property
    def vocab_size(self) -> int:
        """Return how many logits one step gives."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the token ids of ``text``."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token stands for; empty for a control token."""
        ...

    def prefill(
        self, tokens: Sequence[int], *, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        """Evaluate ``tokens`` and return the logits after the last one.

        Args:
            tokens: Token ids, at least one.
            progress: Called with the number of tokens done after each step.

        Returns:
            Logits, shape ``(vocab_size,)``, float32, valid until the next call.

        Raises:
            InputError: the tokens do not fit into the context.
            CancelledError: ``cancel`` was called; the cache holds what it held before.
            AdapterError: the native call failed.
        """
        ...

    def decode(self, token: int) -> np.ndarray:
        """Evaluate one token and return the logits, as :meth:`prefill` does."""
        ...

    def rewind(self, position: int) -> None:
        """Cut the KV cache back to ``position`` tokens.

        Raises:
            UnsupportedError: the cache no longer holds what a correct answer would need.
        """
        ...

    def save_state(self) -> bytes:
        """Return the KV cache as bytes that :meth:`restore_state` verifies."""
        ...

    def restore_state(self, state: bytes) -> None:
        """Replace the KV cache.

        Raises:
            IntegrityError: the bytes are damaged, or belong to another engine; the cache is
                empty afterwards.
        """
        ...

    def cancel(self) -> None:
        """Abort the running call. Callable from any thread."""
        ...

    def clear_cancel(self) -> None:
        """Arm the engine for the next call."""
        ...

    def memory(self) -> MemoryReport:
        """Return what the process and the runtime hold."""
        ...

    def partition(self) -> PartitionReport:
        """Run one decode step and return which operators ran where."""
        ...

    def close(self) -> None:
        """Free the model. The engine is unusable afterwards."""
        ...


class RuntimeAdapter(Protocol):
    """One runtime. Only ``capabilities``, ``exporter`` and ``engine`` may load native code."""

    name: str

    def capabilities(self) -> Capabilities:
        """Return what this runtime can do here. Loads the native library to be sure."""
        ...

    def prepare(self) -> None:
        """Load the native library, ahead of :meth:`engine`.

        Raises:
            UnsupportedError: the runtime is not installed.
            AdapterError: its library does not load.
        """
        ...

    def version(self) -> str:
        """Return the runtime's version without loading native code, or ``not-installed``."""
        ...

    def huge_pages_possible(self) -> bool:
        """Return whether a worker of this runtime can ask its allocator for huge pages."""
        ...

    def operators_digest(self) -> str:
        """Return the digest of the native libraries that hold the operators.

        Raises:
            UnsupportedError: the runtime is not installed.
        """
        ...

    def worker_environment(self, run_config: RunConfig) -> dict[str, str]:
        """Return the variables a worker needs before exec, e.g. for its allocator."""
        ...

    def footprint(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        """Return what a model of this shape will take under this configuration."""
        ...

    def exporter(self) -> Exporter:
        """Return the exporter.

        Raises:
            UnsupportedError: the runtime cannot export here.
        """
        ...

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:
        """Load an artifact.

        Raises:
            UnsupportedError: the runtime cannot run here, or not this model.
            AdapterError: the native loader failed.
            ResourceError: memory ran out.
        """
        ...
