"""What a runtime can be asked to do: two halves, an exporter and an engine, both optional.

A runtime declares in :class:`Capabilities` what it can do on this machine. Whatever it does not
declare it refuses with :class:`~edgewise.errors.UnsupportedError`; no adapter substitutes
something else quietly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from edgewise.core.recipe import LoadMode, Recipe, RunConfig
from edgewise.core.request import Message, Sampling
from edgewise.runtimes.reports import (
    Capabilities,
    ExportResult,
    Footprint,
    MemoryReport,
    PartitionReport,
    TextResult,
)

if TYPE_CHECKING:
    import numpy as np

    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.environment import EnvironmentSpec

__all__ = [
    "CancelledError",
    "Engine",
    "Exporter",
    "RuntimeAdapter",
    "SharedEngine",
    "TextEngine",
    "VerifyingEngine",
]


class CancelledError(Exception):
    """The running call was cancelled. It never leaves the worker: an outcome says it instead."""


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


@runtime_checkable
class VerifyingEngine(Engine, Protocol):
    """An engine that gives the logits of every token of a step, not of the last one only."""

    @property
    def verify_tokens(self) -> int:
        """Return how many tokens :meth:`verify` takes at most.

        0 when it takes none, or when what it appends cannot always be cut off again.
        """
        ...

    def verify(self, tokens: Sequence[int]) -> Sequence[np.ndarray]:
        """Evaluate ``tokens`` in one step and return the logits after each.

        Args:
            tokens: Token ids, from one to ``verify_tokens``.

        Returns:
            As many arrays as tokens, each ``(vocab_size,)``, float32, valid until the next call.

        Raises:
            InputError: the tokens do not fit into the context, or are too many at once.
            UnsupportedError: ``verify_tokens`` is 0.
            CancelledError: ``cancel`` was called; the cache holds what it held before.
            AdapterError: the native call failed.
        """
        ...


@runtime_checkable
class SharedEngine(Engine, Protocol):
    """One of several sequences of a loaded artifact, which are used by a thread each.

    It does what an engine does, for its sequence; ``close`` frees the artifact for all.
    """

    @property
    def sequences(self) -> Sequence[SharedEngine]:
        """Return all sequences, this one included."""
        ...

    @property
    def rounded_steps(self) -> int:
        """Return how many steps since :meth:`rest` were evaluated with others and round otherwise.

        Otherwise than alone, that is; steps that give the same logits bit by bit do not count.
        """
        ...

    def rest(self) -> None:
        """Say that the request has ended: nobody waits for a next step of this sequence."""
        ...


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
        parallel_max: Most requests its engine answers at once. Optional: an adapter without it
            answers one.
        drafts: Whether a draft model can be loaded beside a model. Optional: an adapter without it
            cannot.
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
