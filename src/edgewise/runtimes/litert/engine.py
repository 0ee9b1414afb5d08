"""The ``litert`` engine: tokens in, logits out, through LiteRT's compiled model.

The KV cache lives in buffers of the runtime that go into every step and come out of it. A step
writes the cells from its first position on and a mask hides what lies beyond, so the cache is
cut at a position by writing on from there; nothing has to be moved or cleared. Measured on
float and int8 models, evaluating tokens one by one and many at once gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.errors import AdapterError, IntegrityError, UnsupportedError
from edgewise.runtimes.hf_tokenizer import HfTokenizer
from edgewise.runtimes.litert import native
from edgewise.runtimes.litert.artifact import StoredModel, find_model
from edgewise.runtimes.litert.flatbuffer import DECODE, Layout, read_layout
from edgewise.runtimes.litert.report import memory_report, partition_report
from edgewise.runtimes.reports import MemoryReport, PartitionReport
from edgewise.runtimes.stepped import SteppedEngine, refuse_hints

__all__ = ["LiteRtEngine", "check_context", "check_run_config"]

_CACHE = "kv_cache_"
_LOGITS = "logits"
# Which axis of a cache buffer counts tokens.
_TOKEN_AXIS = {"k": 2, "v": 3}
# Added to the score of a hidden cell: its weight becomes exactly zero in float32.
_HIDDEN = np.float32(-1e9)
# Below this many tokens single steps are faster than a prefill step, which always runs in full
# (measured with the int8 model of 30 layers, 2 threads).
_PREFILL_WORTH = 12


class LiteRtEngine(SteppedEngine):
    """One model and one KV cache."""

    runtime = "litert"

    def __init__(self, artifact: Path, run_config: RunConfig) -> None:
        """Load the model and reserve the cache.

        Raises:
            UnsupportedError: the runtime is not installed, or the run configuration or the
                artifact asks for what it cannot do.
            IntegrityError: the artifact is damaged.
            AdapterError: LiteRT refuses the model.
        """
        check_run_config(self.runtime, run_config)
        stored = find_model(artifact)
        if stored.offset:
            raise UnsupportedError(
                "artifact-of-another-runtime",
                f"{stored.file.name} is a bundle, which the runtime litert-lm runs",
                hint="run it with litert-lm, or build the model for litert",
            )
        layout = read_layout(stored)
        check_context(run_config, layout)
        self._stored = stored
        self._config = run_config
        self._cells = layout.cells
        self._prefill_tokens = layout.prefill_tokens
        self._signature = layout.prefill
        # Read, not mapped, the bytes must outlive the model: it keeps pointing into them.
        self._data = stored.read() if run_config.load_mode is LoadMode.MALLOC else None
        self._model = _compile(stored, self._data, run_config.threads)
        decode = self._model.get_input_tensor_details(DECODE)
        vocab_size = int(self._model.get_output_tensor_details(DECODE)[_LOGITS]["shape"][-1])
        super().__init__(
            context_length=run_config.context_length,
            vocab_size=vocab_size,
            step_tokens=min(run_config.batch_tokens, self._prefill_tokens),
            codec=HfTokenizer(artifact if artifact.is_dir() else artifact.parent),
        )
        self._shapes = {
            name: tuple(int(size) for size in details["shape"])
            for name, details in decode.items()
            if name.startswith(_CACHE)
        }
        self._check_layout(decode)
        self._cache = {
            name: self._model.create_input_buffer_by_name(DECODE, name) for name in self._shapes
        }
        for name, shape in self._shapes.items():
            self._cache[name].write(np.zeros(shape, np.float32))
        self._inputs = {name: self._step_inputs(name) for name in (layout.prefill, DECODE)}
        self._logits = self._model.create_output_buffer_by_name(DECODE, _LOGITS)
        self._outstanding = 0
        self._mask = _mask(self._prefill_tokens, self._cells)

    def _step_inputs(self, signature: str) -> dict[str, Any]:
        return {
            name: self._model.create_input_buffer_by_name(signature, name)
            for name in ("tokens", "input_pos", "mask")
        }

    def _check_layout(self, details: dict[str, Any]) -> None:
        for name, shape in self._shapes.items():
            axis = _axis(name)
            if details[name]["dtype"] != "float32" or axis is None or shape[axis] != self._cells:
                raise UnsupportedError(
                    "cache-layout-unknown",
                    f"the artifact's {name} is not laid out as this engine knows it",
                    context={"shape": list(shape), "dtype": str(details[name]["dtype"])},
                    hint="build the artifact with this version of Edgewise",
                )

    def prefill(
        self, tokens: Sequence[int], *, progress: Callable[[int], None] | None = None
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Evaluate ``tokens`` and return the logits after the last one.

        See :meth:`edgewise.runtimes.protocol.Engine.prefill`.
        """
        self._outstanding = len(tokens)
        try:
            return super().prefill(tokens, progress=progress)
        finally:
            self._outstanding = 0

    def _evaluate(self, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        self._outstanding -= len(tokens)
        # A prefill step gives no logits, and between two of them nobody asks for any.
        silent = self._outstanding > 0
        body, last = (tokens[:], None) if silent else (tokens[:-1], tokens[-1])
        at, most = self._position, self._prefill_tokens
        while body:
            # A prefill step writes all its cells; past the end they would be moved back.
            whole = len(body) >= _PREFILL_WORTH and at + most <= self._cells
            count = min(len(body), most) if whole else 1
            self._run(self._signature if whole else DECODE, body[:count], at)
            del body[:count]
            at += count
            self._stop_if_cancelled()
        if last is None:
            return np.empty(0, np.float32)
        self._run(DECODE, [last], at)
        logits: np.ndarray[Any, np.dtype[np.float32]] = self._logits.read(
            self._vocab_size, np.float32
        )
        return logits

    def _run(self, signature: str, tokens: list[int], at: int) -> None:
        width = 1 if signature == DECODE else self._prefill_tokens
        ids = np.zeros((1, width), np.int32)
        ids[0, : len(tokens)] = tokens
        inputs = self._inputs[signature]
        outputs = dict(self._cache)
        if signature == DECODE:
            outputs[_LOGITS] = self._logits
        try:
            inputs["tokens"].write(ids)
            inputs["input_pos"].write(np.arange(at, at + width, dtype=np.int32))
            inputs["mask"].write(self._mask[:width, self._cells - at : 2 * self._cells - at])
            self._model.run_by_name(signature, {**inputs, **self._cache}, outputs)
        except RuntimeError as error:
            raise AdapterError(
                "decode-failed",
                f"LiteRT's {signature} step failed: {_first_line(error)}",
                context={"position": at},
            ) from error

    def _truncate(self, position: int) -> None:
        """Nothing to do: the mask hides the cells and the next step overwrites them."""

    def _identity(self) -> tuple[object, ...]:
        stat = self._stored.file.stat()
        version = native.installed_version(native.RUNTIME_PACKAGE)
        return (stat.st_size, stat.st_mtime_ns, self._stored.offset, version, self._cells)

    def _save(self) -> bytes:
        return b"".join(
            self._filled(name, self._read(name), self._position).tobytes() for name in self._shapes
        )

    def _load(self, body: memoryview, position: int) -> None:
        values = np.frombuffer(body, np.float32)
        if values.size != sum(self._count(name, position) for name in self._shapes):
            raise IntegrityError("state-damaged", "the saved state has another size than its cache")
        start = 0
        for name, shape in self._shapes.items():
            cells = np.zeros(shape, np.float32)
            part = self._filled(name, cells, position)
            part[...] = values[start : start + part.size].reshape(part.shape)
            self._cache[name].write(cells)
            start += part.size

    def _read(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        shape = self._shapes[name]
        values: np.ndarray[Any, np.dtype[np.float32]] = self._cache[name].read(
            int(np.prod(shape)), np.float32
        )
        return values.reshape(shape)

    def _filled(
        self, name: str, cells: np.ndarray[Any, np.dtype[np.float32]], position: int
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the view of a cache buffer that holds ``position`` tokens."""
        return cells[(slice(None),) * (_axis(name) or 0) + (slice(position),)]

    def _count(self, name: str, position: int) -> int:
        return int(np.prod(self._shapes[name])) // self._cells * position

    def memory(self) -> MemoryReport:
        """Return what the process holds and what the model and its cache take."""
        cache = sum(int(np.prod(shape)) for shape in self._shapes.values()) * 4
        return memory_report(self._stored.size, cache)

    def partition(self) -> PartitionReport:
        """Load the model once more in LiteRT's interpreter and return which operators ran where.

        Raises:
            AdapterError: the interpreter refuses the model.
            ResourceError: there is no room for a copy of the model.
        """
        return partition_report(self._stored, threads=self._config.threads)

    def close(self) -> None:
        """Free the model and its buffers."""
        self._cache.clear()
        self._inputs.clear()
        self._logits = None
        self._model = None
        self._data = None


def check_run_config(runtime: str, run_config: RunConfig) -> None:
    """Refuse what LiteRT has no setting for.

    Raises:
        UnsupportedError: names the setting.
    """
    refuse_hints(runtime, run_config, ())
    if run_config.kv_type is not KvType.F32:
        raise UnsupportedError(
            "kv-type-unsupported",
            f"{runtime} keeps its KV cache in float32; {run_config.kv_type} was asked for",
            hint="use --kv f32",
        )
    if run_config.flash_attention:
        raise UnsupportedError(
            "flash-attention-unsupported",
            f"{runtime} has no fused attention on this processor",
            hint="leave flash attention off",
        )


def check_context(run_config: RunConfig, layout: Layout) -> None:
    """Refuse a context that the artifact cannot hold.

    Raises:
        UnsupportedError: names both lengths.
    """
    if run_config.context_length > layout.cells:
        raise UnsupportedError(
            "context-too-long",
            f"the artifact holds a context of {layout.cells} tokens; "
            f"{run_config.context_length} were asked for",
            context={"asked": run_config.context_length, "artifact": layout.cells},
            hint=f"run it with at most {layout.cells}, or build it with a longer context",
        )


def _compile(stored: StoredModel, data: bytes | None, threads: int) -> Any:
    compiled, options, accelerator = native.load(
        native.RUNTIME_PACKAGE, "compiled_model", "options", "hardware_accelerator"
    )
    chosen = options.Options(
        hardware_accelerators=accelerator.HardwareAccelerator.CPU,
        cpu_options=options.CpuOptions(num_threads=threads),
    )
    try:
        if data is not None:
            return compiled.CompiledModel.from_buffer(data, options=chosen)
        return compiled.CompiledModel.from_file(str(stored.file), options=chosen)
    except RuntimeError as error:
        raise AdapterError(
            "model-load-failed",
            f"LiteRT cannot load {stored.file.name}: {_first_line(error)}",
            hint="build the artifact again; if that does not help, with this version of LiteRT",
        ) from error


def _mask(width: int, cells: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return rows from which a causal mask for any position is cut.

    The mask of a step at position ``p`` is columns ``cells - p`` to ``2 * cells - p``: row ``r``
    then sees cells 0 to ``p + r``. Shape ``(width, 2 * cells)``.
    """
    columns = np.arange(2 * cells)
    rows = np.arange(width)[:, None]
    return np.where(columns <= cells + rows, np.float32(0), _HIDDEN).astype(np.float32)


def _axis(name: str) -> int | None:
    return _TOKEN_AXIS.get(name.removeprefix(_CACHE)[:1])


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
