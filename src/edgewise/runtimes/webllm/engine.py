"""The CPU engine: the relax functions that a page calls, compiled for this processor.

One sequence in a paged KV cache. Rewinding pops tokens; a saved state is the cache's own pages in
the runtime's checkpoint form. Numbers of weights, arithmetic and cache are the artifact's.
"""

from __future__ import annotations

import collections
import json
import platform
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from edgewise.core.quantity import Estimated, Measured, Unknown
from edgewise.core.recipe import RunConfig
from edgewise.device.process import peak_resident_bytes, resident_bytes
from edgewise.errors import AdapterError, IntegrityError, ResourceError, UnsupportedError
from edgewise.runtimes.hf_tokenizer import HfTokenizer
from edgewise.runtimes.reports import MemoryReport, PartitionReport
from edgewise.runtimes.stepped import SteppedEngine, refuse_hints
from edgewise.runtimes.webllm.artifact import CPU_LIBRARY, About, read_about
from edgewise.runtimes.webllm.formats import numbers
from edgewise.runtimes.webllm.native import load_tvm

__all__ = ["TvmEngine"]

_PAGE_TOKENS: Final = 16
_SEQUENCE: Final = 0
_ELEMENT_BYTES: Final = {"f16": 2, "f32": 4}
_STATE_HEAD: Final = struct.Struct("<Q")
_BUILTIN: Final = "vm.builtin."
_DIGITS = re.compile(r"\d+")

Logits = np.ndarray[Any, np.dtype[np.float32]]


class TvmEngine(SteppedEngine):
    """A compiled model and one sequence."""

    runtime = "tvm"

    def __init__(self, artifact: Path, run_config: RunConfig) -> None:
        """Load the library and the weights and reserve the cache.

        Raises:
            UnsupportedError: TVM is not installed, the artifact is for another processor or
                version, or the run configuration asks for what it does not have.
            IntegrityError: the artifact is damaged.
            AdapterError: the library does not load.
            ResourceError: memory ran out.
        """
        self._tvm = load_tvm()
        self._about = read_about(artifact)
        self._numbers = numbers(self._about.format.name)
        self._check(run_config)
        config = self._about.config
        super().__init__(
            context_length=run_config.context_length,
            vocab_size=config.vocab,
            step_tokens=run_config.batch_tokens,
            codec=HfTokenizer(artifact),
        )
        self._device = self._tvm.cpu()
        with _translated("load-failed", "loading the compiled model"):
            library = self._tvm.runtime.load_module(str(artifact / CPU_LIBRARY))
            self._machine = self._tvm.runtime.vm.VirtualMachine(library, self._device)
            self._weights = self._load_weights(artifact)
            self._cache = self._make_cache()
            self._bind_functions()
            self._add_sequence(self._cache, _SEQUENCE)

    def _check(self, run_config: RunConfig) -> None:
        refuse_hints(self.runtime, run_config, ())
        about = self._about
        if run_config.kv_type.value != self._numbers.kv_type:
            raise UnsupportedError(
                "kv-type-unsupported",
                f"this artifact keeps its KV cache in {self._numbers.kv_type}, not in "
                f"{run_config.kv_type}",
                hint=f"run it with --kv {self._numbers.kv_type}",
            )
        if run_config.context_length > about.context_length:
            raise UnsupportedError(
                "context-too-long",
                f"the model was trained with {about.context_length} tokens; "
                f"{run_config.context_length} were asked for",
                hint=f"choose a context of at most {about.context_length}",
            )
        if about.machine != platform.machine():
            raise UnsupportedError(
                "artifact-for-another-machine",
                f"the library was compiled for {about.machine or about.target}; this machine is "
                f"{platform.machine()}",
                hint="build the artifact on this kind of machine",
            )
        if about.tvm_version != self._tvm.__version__:
            raise UnsupportedError(
                "artifact-for-another-version",
                f"the library was compiled by TVM {about.tvm_version}; {self._tvm.__version__} is "
                "installed",
                hint="build the artifact again",
            )

    def _load_weights(self, artifact: Path) -> list[Any]:
        from tvm.contrib import tvmjs  # noqa: PLC0415 - loads TVM

        loaded, _ = tvmjs.load_tensor_cache(str(artifact), self._device)
        told = json.loads(str(self._machine["_metadata"]()))
        names = [parameter["name"] for parameter in told["params"]]
        missing = [name for name in names if name not in loaded]
        if missing:
            raise IntegrityError(
                "artifact-damaged",
                f"the artifact has no weight {missing[0]}",
                hint="build the artifact again",
            )
        return [loaded[name] for name in names]

    def _make_cache(self) -> Any:
        shape = self._tvm.runtime.ShapeTuple
        sizes = (1, self.context_length, self._step_tokens, _PAGE_TOKENS, 0)
        return self._machine["create_tir_paged_kv_cache"](*(shape([size]) for size in sizes))

    def _bind_functions(self) -> None:
        def builtin(name: str) -> Callable[..., Any]:
            return self._tvm.get_global_func(f"{_BUILTIN}{name}")  # type: ignore[no-any-return]

        self._add_sequence = builtin("kv_state_add_sequence")
        self._remove_sequence = builtin("kv_state_remove_sequence")
        self._pop = builtin("kv_state_popn")
        self._begin = builtin("kv_state_begin_forward")
        self._end = builtin("kv_state_end_forward")
        self._cached = builtin("attention_kv_cache_get_total_sequence_length")
        self._embed = self._machine["embed"]
        self._prefill = self._machine["prefill"]
        self._decode = self._machine["decode"]

    def _evaluate(self, tokens: list[int]) -> Logits:
        shape = self._tvm.runtime.ShapeTuple
        ids = self._tvm.runtime.tensor(np.asarray(tokens, dtype=np.int32), self._device)
        with _translated("decode-failed", "a step"):
            rows = self._embed(ids, self._weights)
            embedded = self._view(rows, (1, len(tokens), self._about.config.hidden))
            self._begin(self._cache, shape([_SEQUENCE]), shape([len(tokens)]))
            step = self._decode if len(tokens) == 1 else self._prefill
            logits = step(embedded, self._cache, self._weights)[0]
            self._end(self._cache)
        values: Logits = logits.numpy().reshape(-1)
        return values

    def _view(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        return tensor._create_view(shape)  # noqa: SLF001 - the only reshape without a copy

    def _truncate(self, position: int) -> None:
        # A failed step may have taken its tokens already: the cache's own count is the truth.
        with _translated("rewind-failed", "cutting the cache"):
            surplus = int(self._cached(self._cache)) - position
            if position == 0:
                self._remove_sequence(self._cache, _SEQUENCE)
                self._add_sequence(self._cache, _SEQUENCE)
            elif surplus > 0:
                self._pop(self._cache, _SEQUENCE, surplus)

    def _identity(self) -> tuple[object, ...]:
        about = self._about
        return (about.tvm_version, about.format.name, repr(about.config), about.target)

    def _save(self) -> bytes:
        if self.position == 0:
            return b""
        builtin = f"{_BUILTIN}attention_kv_cache_"
        with _translated("state-save-failed", "saving the cache"):
            told = str(
                self._tvm.get_global_func(f"{builtin}get_checkpoint_metadata")(
                    self._cache, _SEQUENCE
                )
            ).encode()
            export = self._tvm.get_global_func(f"{builtin}export_page_group")
            pages = []
            for layer in range(self._about.config.layers):
                page = self._empty_pages(self.position)
                export(self._cache, _SEQUENCE, layer, page)
                pages.append(page.numpy().tobytes())
        return _STATE_HEAD.pack(len(told)) + told + b"".join(pages)

    def _load(self, body: memoryview, position: int) -> None:
        if position == 0:
            return
        builtin = f"{_BUILTIN}attention_kv_cache_"
        (size,) = _STATE_HEAD.unpack_from(body)
        start = _STATE_HEAD.size + size
        told = bytes(body[_STATE_HEAD.size : start]).decode()
        pages = np.frombuffer(body, dtype=self._numbers.dtype, offset=start)
        pages = pages.reshape(self._about.config.layers, *self._pages_shape(position))
        try:
            with _translated("state-restore-failed", "restoring the cache"):
                self._tvm.get_global_func(f"{builtin}prepare_import")(self._cache, _SEQUENCE, told)
                take = self._tvm.get_global_func(f"{builtin}import_page_group")
                for layer, page in enumerate(pages):
                    tensor = self._tvm.runtime.tensor(np.ascontiguousarray(page), self._device)
                    take(self._cache, _SEQUENCE, layer, tensor)
                self._tvm.get_global_func(f"{builtin}finish_import")(self._cache, _SEQUENCE)
        except AdapterError:
            self._cache = self._make_cache()
            self._add_sequence(self._cache, _SEQUENCE)
            raise

    def _pages_shape(self, tokens: int) -> tuple[int, ...]:
        config = self._about.config
        pages = -(-tokens // _PAGE_TOKENS)
        return (1, pages, 2, config.kv_heads, _PAGE_TOKENS, config.head_dim)

    def _empty_pages(self, tokens: int) -> Any:
        empty = np.zeros(self._pages_shape(tokens), dtype=self._numbers.dtype)
        return self._tvm.runtime.tensor(empty, self._device)

    def memory(self) -> MemoryReport:
        """Return what the process and the runtime hold."""
        config = self._about.config
        # One spare page on top, as the cache is created.
        pages = -(-self.context_length // _PAGE_TOKENS) + 1
        page = 2 * config.kv_heads * _PAGE_TOKENS * config.head_dim
        weights = sum(int(np.prod(w.shape)) * _item_bytes(str(w.dtype)) for w in self._weights)
        return MemoryReport(
            resident_bytes=resident_bytes(),
            peak_resident_bytes=peak_resident_bytes(),
            weights_bytes=Measured(value=weights, source="tensors loaded from the tensor cache"),
            kv_cache_bytes=Estimated(
                value=config.layers * pages * page * _ELEMENT_BYTES[self._numbers.kv_type],
                source="layers x pages x (keys + values), as the paged cache allocates them",
            ),
            workspace_bytes=Unknown(reason="TVM's pooled allocator tells no total"),
        )

    def partition(self) -> PartitionReport:
        """Run one decode step under the machine's instrument and return what it called.

        The cache is left as it was.

        Raises:
            AdapterError: the step failed.
            ResourceError: the context is full, so there is no step to run.
        """
        if self.position >= self.context_length:
            raise ResourceError(
                "kv-cache-full", "there is no room for the step that is watched", retryable=True
            )
        seen: collections.Counter[str] = collections.Counter()

        def watch(_function: Any, name: Any, before: bool, *_: Any) -> None:
            if before:
                seen[str(name)] += 1

        self._machine.set_instrument(watch)
        try:
            self._evaluate([0])
        finally:
            self._machine.set_instrument(lambda *_: None)
            self._truncate(self.position)
        return _report(seen, self._about)

    def close(self) -> None:
        """Free the model. The engine is unusable afterwards."""
        self._weights = []
        del self._cache, self._machine
        del self._embed, self._prefill, self._decode


def _report(seen: collections.Counter[str], about: About) -> PartitionReport:
    operators: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, count in seen.items():
        library = name.startswith(_BUILTIN)
        if library and not name.startswith(f"{_BUILTIN}attention_kv_cache_"):
            continue  # shapes, tuples and allocations of the machine itself
        place = "cpu: TVM runtime" if library else f"cpu: compiled for {about.target}"
        operators[_DIGITS.sub("", name.removeprefix(_BUILTIN))][place] += count
    return PartitionReport(
        requested="cpu",
        operators={name: dict(places) for name, places in sorted(operators.items())},
        features=(about.target,),
        precision={
            "weights": str(about.format.weights),
            "arithmetic": numbers(about.format.name).kv_type,
            "kv_cache": numbers(about.format.name).kv_type,
        },
        source="the virtual machine's instrument, over one decode step",
    )


def _item_bytes(dtype: str) -> int:
    return int(np.dtype(dtype).itemsize)


@contextmanager
def _translated(code: str, what: str) -> Iterator[None]:
    """Turn what TVM raises into the project's errors; it uses every built-in type."""
    try:
        yield
    except (AdapterError, IntegrityError, ResourceError, UnsupportedError):
        raise
    except MemoryError as error:
        raise ResourceError("memory-exhausted", f"memory ran out in {what}") from error
    except Exception as error:
        text = str(error).strip().splitlines()
        raise AdapterError(
            code,
            f"TVM failed in {what}: {text[0] if text else type(error).__name__}",
            context={"error": str(error)[:2000]},
        ) from error
