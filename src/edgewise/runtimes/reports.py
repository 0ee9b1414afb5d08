"""What runtimes say: what they can do, what they made, where operators ran, what they hold."""

from __future__ import annotations

import msgspec

from edgewise.core.formats import OfferedFormat
from edgewise.core.ledger import DraftMemory
from edgewise.core.outcome import FinishReason
from edgewise.core.quantity import Quantity

__all__ = [
    "ActivationRange",
    "CalibrationReport",
    "Capabilities",
    "ExportResult",
    "Footprint",
    "MemoryReport",
    "OutlierChannel",
    "PartitionReport",
    "StreamTimes",
    "TensorDeviation",
    "TextResult",
]


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
    """Memory of the process that holds the engine, and what the runtime says it allocated.

    ``draft`` has the lines of a draft model that the process holds too.
    """

    resident_bytes: Quantity
    peak_resident_bytes: Quantity
    weights_bytes: Quantity
    kv_cache_bytes: Quantity
    workspace_bytes: Quantity
    draft: DraftMemory | None = None


class Footprint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a runtime will hold in memory, before it holds anything; see the plan's ledger.

    ``model_bytes`` is what of ``runtime_bytes`` every model takes that a process loads.
    """

    weights_bytes: Quantity
    kv_cache_bytes: Quantity
    workspace_bytes: Quantity
    runtime_bytes: Quantity
    model_bytes: int = 0


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


class StreamTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fast an engine streams an answer where stepping from outside costs it more.

    An engine that has such a way offers ``stream_times(tokens, decode_tokens)``, which returns
    this; its cache is empty before and afterwards.
    """

    tokens: int
    ttft_ms: float
    decode_ms: float


class TextResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a native generation ended; counts are ``None`` where the runtime does not tell them."""

    text: str
    finish: FinishReason
    prompt_tokens: int | None
    completion_tokens: int | None
    ttft_ms: float
    decode_ms: float
