"""What the engine needs of a native library of the llama.cpp family, and where members differ.

llama.cpp and its descendants share their design and most names, not their layouts: structures
have other fields, functions other arguments. One :class:`Library` per member holds those
differences; engine, exporter and reports are written once, against this.
"""

from __future__ import annotations

import abc
import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from edgewise.core.quantity import Quantity
from edgewise.core.recipe import KvType, RunConfig
from edgewise.runtimes.llamacpp.native import NativeLog

__all__ = ["ContextSettings", "Library", "QuantizeOrder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """How a context is made.

    Attributes:
        tokens: Cells of the KV cache that are asked for, of all sequences together.
        batch_tokens: Most tokens of one step.
        threads: Compute threads.
        flash_attention: Whether the fused attention kernel is used.
        kv_type: Element format of the cache.
        rows: Most tokens of a step whose logits are wanted.
        sequences: Sequences that have a part of the cache each.
        observer: Evaluation callback, or ``None``.
    """

    tokens: int
    batch_tokens: int
    threads: int
    flash_attention: bool
    kv_type: KvType = KvType.F16
    rows: int = 1
    sequences: int = 1
    observer: Any = None

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Return the settings a run configuration asks for."""
        return cls(
            tokens=config.context_length * config.parallel,
            sequences=config.parallel,
            batch_tokens=config.batch_tokens,
            threads=config.threads,
            flash_attention=config.flash_attention,
            kv_type=config.kv_type,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOrder:
    """What the native quantiser is asked for. Types are numbers of ``ggml_type``.

    Attributes:
        ftype: Number of the file type, which also names the mixture.
        pure: Whether every matrix gets the same type, instead of the file type's mixture.
        embedding: Type of the token embedding; ``None`` leaves it to the mixture.
        output: Type of the output matrix; ``None`` leaves it to the mixture.
        overrides: ``(regular expression, type)``, the first that matches counts.
        importance: ``tensor -> importance of its columns``, float32, one value per column.
        metadata: Texts to put into the file's metadata, at most 127 bytes each.
        threads: Threads to use.
    """

    ftype: int
    pure: bool
    embedding: int | None
    output: int | None
    overrides: tuple[tuple[str, int], ...]
    importance: dict[str, Any]
    metadata: dict[str, str]
    threads: int


class Library(abc.ABC):
    """A member of the family. Every method may load it, and raises what :meth:`bindings` does.

    Attributes:
        runtime: Name of the runtime.
        title: Name in messages.
        tensor: The structure that an evaluation callback is given, with at least the fields
            ``type``, ``buffer``, ``ne``, ``src``, ``data`` and ``name``.
        hints: Names that ``RunConfig.hints`` may hold.
        quantiser_extras: Whether its quantiser takes overrides and importances from C.
        sequences_max: Most sequences of one context that are evaluated together.
    """

    runtime: ClassVar[str]
    title: ClassVar[str]
    tensor: ClassVar[type[ctypes.Structure]]
    hints: ClassVar[tuple[str, ...]] = ()
    quantiser_extras: ClassVar[bool] = True
    sequences_max: ClassVar[int] = 1

    @abc.abstractmethod
    def bindings(self) -> Any:
        """Return the native functions that all members share, with the library loaded.

        Raises:
            UnsupportedError: the library is not installed.
            AdapterError: it does not load.
        """

    @abc.abstractmethod
    def log(self) -> NativeLog:
        """Return this process's log of the library."""

    @abc.abstractmethod
    def version(self) -> str | None:
        """Return its version, or ``None`` when it is not installed."""

    @abc.abstractmethod
    def load_model(self, path: Path, config: RunConfig | None) -> Any:
        """Load a model, for running by a configuration or, without one, for looking at it.

        Returns:
            The model's address, or something false.

        Raises:
            InputError: the configuration contradicts itself.
        """

    @abc.abstractmethod
    def free_model(self, model: Any) -> None:
        """Free a model."""

    @abc.abstractmethod
    def make_context(self, model: Any, settings: ContextSettings) -> Any:
        """Return a context's address, or something false."""

    @abc.abstractmethod
    def vocab_size(self, model: Any) -> int:
        """Return how many logits a step gives."""

    @abc.abstractmethod
    def weights_bytes(self, model: Any, log: list[str]) -> Quantity:
        """Return the bytes of the weights in memory.

        Args:
            model: The model's address.
            log: The library's log since the model was loaded.
        """

    @abc.abstractmethod
    def tokenize(
        self, model: Any, data: bytes, room: Any, *, add_special: bool, parse_special: bool
    ) -> int:
        """Fill ``room`` (an array of int32); return the count, negative when it is too small."""

    @abc.abstractmethod
    def piece(self, model: Any, token: int, room: Any) -> int:
        """Fill ``room`` with a token's bytes; return the count, negative when it is too small."""

    @abc.abstractmethod
    def batch(self, ids: Any, count: int, position: int) -> Any:
        """Return a batch of ``count`` tokens that stand from ``position`` on."""

    @abc.abstractmethod
    def clear(self, context: Any) -> None:
        """Empty the KV cache."""

    @abc.abstractmethod
    def cut(self, context: Any, position: int, sequence: int = 0) -> bool:
        """Remove a sequence's tokens from ``position`` on; return whether that was possible."""

    @abc.abstractmethod
    def oldest_needed(self, model: Any, position: int) -> int:
        """Return the oldest position every layer's cache must hold to go on at ``position``."""

    @abc.abstractmethod
    def oldest_held(self, context: Any, sequence: int = 0) -> int:
        """Return the oldest position that every layer's cache still holds."""

    @abc.abstractmethod
    def state_size(self, context: Any, sequence: int = 0) -> int:
        """Return the bytes of the saved cache."""

    @abc.abstractmethod
    def state_get(self, context: Any, room: Any, size: int, sequence: int = 0) -> int:
        """Save the cache; return the bytes written."""

    @abc.abstractmethod
    def state_set(self, context: Any, data: Any, size: int, sequence: int = 0) -> int:
        """Restore the cache; return the bytes taken."""

    @abc.abstractmethod
    def quantize(self, source: Path, destination: Path, order: QuantizeOrder) -> int:
        """Quantise a file; return 0, or the native failure code."""
