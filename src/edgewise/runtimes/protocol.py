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

from edgewise.core.formats import OfferedFormat
from edgewise.core.outcome import FinishReason
from edgewise.core.quantity import Quantity
from edgewise.core.recipe import LoadMode, Recipe, RunConfig
from edgewise.core.request import Message, Sampling

if TYPE_CHECKING:
    import numpy as np

    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.environment import EnvironmentSpec

__all__ = [
    "ActivationRange",
    "CalibrationReport",
    "CancelledError",
    "Capabilities",
    "Engine",
    "ExportResult",
    "Exporter",
    "Footprint",
    "MemoryReport",
    "OutlierChannel",
    "PartitionReport",
    "RuntimeAdapter",
    "StreamTimes",
    "TensorDeviation",
    "TextEngine",
    "TextResult",
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
        formats: What its exporter offers, most recommended first.
        kv_types: KV cache formats, the default first.
        backends: Devices that truly loaded, by the runtime's own name.
        logits: Whether each step's logits can be read.
        rewind: Whether the KV cache can be cut back to an earlier position.
        state_save: Whether the KV cache can be saved and restored.
        cancel_latency: ``in-step`` when a running step can be aborted, ``per-step`` when only
            between steps, ``none`` when not at all.
        text_only: Whether its engine takes messages and gives text, as :class:`TextEngine`.
        hints: Names that ``RunConfig.hints`` may hold.
        unverified: What this runtime declares and nobody has run on such a machine.
        missing: What would have to be installed for the rest, each by name.
        broken: Whether it is installed and does not load.
    """

    runtime: str
    version: str | None
    can_export: bool
    can_run: bool
    reason: str = ""
    artifact_formats: tuple[str, ...] = ()
    formats: tuple[OfferedFormat, ...] = ()
    kv_types: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    logits: bool = False
    rewind: bool = False
    state_save: bool = False
    cancel_latency: str = "none"
    text_only: bool = False
    hints: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    broken: bool = False


class PartitionReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which operators of one decode step ran where.

    Attributes:
        requested: The backend the run configuration asked for.
        operators: ``operator -> {place: count}`` over one decode step, or over the graph where
            a runtime shows no more. A place is a delegate, an execution provider, a buffer;
            one whose name begins with ``requested`` counts as what was asked for.
        weights: ``weight buffer -> number of matrix products that read from it``; a runtime
            that repacks weights for its kernels shows it here.
        fallbacks: Names of operators that ran somewhere else than requested.
        features: Instruction sets the kernels were compiled for and use.
        precision: Precision settings in force, read back from the runtime.
        source: How this was found out, e.g. ``evaluation callback`` or ``the file's instructions``.
    """

    requested: str
    operators: dict[str, dict[str, int]]
    weights: dict[str, int] = {}
    fallbacks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    precision: dict[str, str] = {}
    source: str = ""

    @property
    def delegated(self) -> int:
        """Return how many operators ran where they were asked to."""
        return sum(
            count
            for places in self.operators.values()
            for place, count in places.items()
            if place.startswith(self.requested)
        )

    @property
    def fallen_back(self) -> int:
        """Return how many operators ran elsewhere."""
        return sum(sum(places.values()) for places in self.operators.values()) - self.delegated


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


class ActivationRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The range a static activation quantiser clamps to, and the share of values it clipped."""

    tensor: str
    low: float
    high: float
    clipped: Quantity


class OutlierChannel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A channel whose largest magnitude is ``ratio`` times the median channel's."""

    tensor: str
    channel: int
    ratio: float


class CalibrationReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a calibration saw and decided.

    Attributes:
        method: ``imatrix``, ``awq``, ``gptq``, ``static``, ...
        revision: Digest of the calibration set.
        samples: Texts in it.
        tokens: Tokens that were run.
        ranges: Clamping ranges of static activation quantisers.
        outlier_channels: Channels far above the median one.
        notes: What else a reader should know.
    """

    method: str
    revision: str
    samples: int
    tokens: int
    ranges: tuple[ActivationRange, ...] = ()
    outlier_channels: tuple[OutlierChannel, ...] = ()
    notes: tuple[str, ...] = ()


class ExportResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an exporter made; the files are all that lies in the destination.

    Attributes:
        format: Its format, e.g. ``gguf``.
        exporter: Name of the exporter.
        version: Its version.
        resolved: The exact format the recipe came to; ``None`` when the source was taken over.
        copied: Whether the source was taken over unchanged.
        context_length: Longest context the artifact can be run with, where it fixes one.
        types: Number of tensors per type in the artifact.
        deviations: Every tensor whose type differs from what the recipe asked.
        tools: ``library -> version`` of everything that took part.
        partition: Where the operators were placed, for exporters that decide it.
        calibration: What a calibration saw, where there was one.
        notes: What was dropped, corrected or clamped on the way; empty when nothing was.
    """

    format: str
    exporter: str
    version: str
    resolved: OfferedFormat | None
    copied: bool = False
    context_length: int | None = None
    types: dict[str, int] = {}
    deviations: tuple[TensorDeviation, ...] = ()
    tools: dict[str, str] = {}
    partition: PartitionReport | None = None
    calibration: CalibrationReport | None = None
    notes: tuple[str, ...] = ()


class Exporter(Protocol):
    """Turns a checkpoint and a recipe into artifact files."""

    def export(
        self,
        source: Path,
        destination: Path,
        recipe: Recipe,
        *,
        threads: int,
        calibration: Path | None = None,
    ) -> ExportResult:
        """Write the artifact into the empty folder ``destination`` and return what was made.

        Args:
            source: The checkpoint in the adapter's ``source_form``: a GGUF file or an HF folder.
            destination: An existing, empty folder; every file left there is the artifact.
            recipe: What the weights become.
            threads: Threads the exporter may use.
            calibration: UTF-8 text file, a sample per line, for methods that calibrate.

        Raises:
            InputError: the recipe's method calibrates and no calibration set was given.
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


class TextResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a native generation ended; counts are ``None`` where the runtime does not tell them."""

    text: str
    finish: FinishReason
    prompt_tokens: int | None
    completion_tokens: int | None
    ttft_ms: float
    decode_ms: float


class StreamTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fast an engine streams an answer where stepping from outside costs it more.

    An engine that has such a way offers ``stream_times(tokens, decode_tokens)``, which returns
    this; its cache is empty before and afterwards.
    """

    tokens: int
    ttft_ms: float
    decode_ms: float


@runtime_checkable
class TextEngine(Protocol):
    """A loaded artifact that turns messages into text by itself; its logits are out of reach."""

    @property
    def context_length(self) -> int:
        """Return how many tokens prompt and answer may take together."""
        ...

    def generate(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        sampling: Sampling,
        on_text: Callable[[str], None],
    ) -> TextResult:
        """Answer, giving text to ``on_text`` as it comes.

        Raises:
            InputError: the messages do not fit into the context.
            UnsupportedError: the runtime cannot honour a sampling setting.
            AdapterError: the native call failed.
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
        """Return which operators run where."""
        ...

    def close(self) -> None:
        """Free the model. The engine is unusable afterwards."""
        ...


class RuntimeAdapter(Protocol):
    """One runtime.

    ``capabilities``, ``exporter`` and ``engine`` load its libraries and are called in a worker
    process of the runtime's environment; so are ``version`` and ``operators_digest``, which read
    what is installed there. The rest is answered anywhere.

    Attributes:
        name: Name under which it is registered.
        source_form: ``gguf`` or ``hf``: what its exporter takes. An adapter some of whose formats
            start from the other one has a method ``source_form_of(recipe)`` besides.
        environment: The libraries it needs in an environment of their own, or ``None`` when
            they are installed beside Edgewise.
    """

    @property
    def name(self) -> str:
        """Return the name under which it is registered."""
        ...

    @property
    def source_form(self) -> str:
        """Return ``gguf`` or ``hf``."""
        ...

    @property
    def environment(self) -> EnvironmentSpec | None:
        """Return what has to be installed."""
        ...

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

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return how its engine can load weights, the default first; any other is refused."""
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

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine | TextEngine:
        """Load an artifact.

        Args:
            artifact: The artifact's folder, or its file where it has one file only.
            run_config: How to run it.

        Raises:
            UnsupportedError: the runtime cannot run here, or not this model.
            AdapterError: the native loader failed.
            ResourceError: memory ran out.
        """
        ...
