"""Both exporters: weights in TVM's tensor cache, beside a library for this processor or a page."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from edgewise.core.formats import OfferedFormat
from edgewise.core.recipe import Recipe, resolve
from edgewise.errors import AdapterError, EdgewiseError, InputError, ResourceError, UnsupportedError
from edgewise.runtimes.reports import ExportResult, PartitionReport
from edgewise.runtimes.webllm import native, webruntime
from edgewise.runtimes.webllm.artifact import (
    ABOUT,
    CPU_LIBRARY,
    TENSOR_CACHE,
    TOKENIZER,
    WEB_LIBRARY,
    About,
)
from edgewise.runtimes.webllm.chat_config import CHAT_CONFIG, PREFILL_CHUNK, chat_config
from edgewise.runtimes.webllm.config import LlamaConfig, read_config
from edgewise.runtimes.webllm.formats import FORMATS, Numbers, numbers
from edgewise.runtimes.webllm.weights import Checkpoint, parameters
from edgewise.store.home import storage_error

__all__ = ["TvmExporter", "WebllmExporter"]

_AS_IS: Final = "as-is"
# A page reserves its whole cache at once, in one browser tab.
_WEB_CONTEXT_DEFAULT: Final = 2048
_SHARD_MB: Final = 32


class _Exporter:
    runtime: str
    name: str

    def export(
        self,
        source: Path,
        destination: Path,
        recipe: Recipe,
        *,
        threads: int,
        calibration: Path | None = None,  # noqa: ARG002 - no format here calibrates
    ) -> ExportResult:
        """Write the artifact and return what was made.

        See :meth:`edgewise.runtimes.protocol.Exporter.export`.

        Raises:
            InputError: the checkpoint lacks a file, or its configuration is damaged.
            UnsupportedError: the recipe or the architecture is not covered, or a native piece
                is missing.
            IntegrityError: the weights are damaged or do not fit their configuration.
            AdapterError: TVM or emscripten failed.
            ResourceError: memory or disk ran out.
        """
        offer = _resolved(recipe, source, self.runtime)
        config = read_config(source)
        if not (source / TOKENIZER).is_file():
            raise InputError("tokenizer-missing", f"the checkpoint has no {TOKENIZER}")
        os.environ.setdefault("TVM_NUM_THREADS", str(threads))
        tvm = native.load_tvm()
        context = _context(recipe, config, self._context_default(config))
        with _translated(destination):
            return self._write(tvm, source, destination, offer, config, context)

    def _write(
        self,
        tvm: Any,
        source: Path,
        destination: Path,
        offer: OfferedFormat,
        config: LlamaConfig,
        context: int,
    ) -> ExportResult:
        chosen = numbers(offer.name)
        about, partition, expected = self._compile(tvm, destination, offer, config, context)
        types = _write_weights(source, destination, config, chosen, expected)
        chat, notes = chat_config(source, config, chosen, context)
        (destination / CHAT_CONFIG).write_bytes(_json(chat))
        (destination / ABOUT).write_bytes(msgspec.json.format(msgspec.json.encode(about)) + b"\n")
        shutil.copyfile(source / TOKENIZER, destination / TOKENIZER)
        return ExportResult(
            format="tvm" if self.runtime == "tvm" else "mlc",
            exporter=self.name,
            version=tvm.__version__,
            resolved=offer,
            context_length=context,
            types=types,
            tools=self._tools(tvm),
            partition=partition,
            notes=notes,
        )

    def _context_default(self, config: LlamaConfig) -> int:
        raise NotImplementedError

    def _compile(
        self, tvm: Any, destination: Path, offer: OfferedFormat, config: LlamaConfig, context: int
    ) -> tuple[About, PartitionReport | None, list[tuple[str, Any]]]:
        raise NotImplementedError

    def _tools(self, tvm: Any) -> dict[str, str]:
        return {"apache-tvm": tvm.__version__, "numpy": np.__version__}


class TvmExporter(_Exporter):
    """Compiles for this machine's processor."""

    runtime = "tvm"
    name = "tvm-llvm"

    def _context_default(self, config: LlamaConfig) -> int:
        return config.context_length

    def _compile(
        self, tvm: Any, destination: Path, offer: OfferedFormat, config: LlamaConfig, context: int
    ) -> tuple[About, PartitionReport | None, list[tuple[str, Any]]]:
        from edgewise.runtimes.webllm.compiler import cpu_target, link_cpu  # noqa: PLC0415

        if native.compiler() is None:
            raise UnsupportedError(
                "native-piece-missing",
                "a C++ compiler is needed to link the model's library",
                hint="install g++ (Debian: apt-get install g++)",
            )
        target = cpu_target()
        expected = link_cpu(config, numbers(offer.name), target, destination / CPU_LIBRARY)
        about = About(
            format=offer,
            config=config,
            context_length=context,
            tvm_version=tvm.__version__,
            target=str(target.attrs.get("mcpu", platform.machine())),
            machine=platform.machine(),
        )
        return about, None, expected


class WebllmExporter(_Exporter):
    """Compiles for a page: WebGPU kernels inside a WebAssembly library."""

    runtime = "webllm"
    name = "tvm-webgpu"

    def _context_default(self, config: LlamaConfig) -> int:
        return min(config.context_length, _WEB_CONTEXT_DEFAULT)

    def _compile(
        self, tvm: Any, destination: Path, offer: OfferedFormat, config: LlamaConfig, context: int
    ) -> tuple[About, PartitionReport | None, list[tuple[str, Any]]]:
        from edgewise.runtimes.webllm.compiler import link_web  # noqa: PLC0415

        objects = webruntime.runtime_objects()
        metadata = {
            "model_type": "llama",
            "quantization": offer.name,
            "context_window_size": context,
            "sliding_window_size": -1,
            "attention_sink_size": -1,
            "prefill_chunk_size": PREFILL_CHUNK,
            "tensor_parallel_shards": 1,
            "kv_state_kind": "kv_cache",
            "max_batch_size": 1,
            "memory_usage": {},
        }
        output = destination / WEB_LIBRARY

        def link(path: str, found: list[str], _options: Any) -> None:
            webruntime.link(path, found, objects)

        expected, partition = link_web(config, numbers(offer.name), metadata, output, link)
        output.chmod(0o644)
        about = About(
            format=offer,
            config=config,
            context_length=context,
            tvm_version=tvm.__version__,
            target="webgpu",
            partition=partition,
        )
        return about, partition, expected

    def _tools(self, tvm: Any) -> dict[str, str]:
        return {**super()._tools(tvm), "emscripten": webruntime.emcc_version()}


def _resolved(recipe: Recipe, source: Path, runtime: str) -> OfferedFormat:
    if recipe.overrides:
        raise UnsupportedError(
            "recipe-unsupported",
            f"{runtime} has one format for all matrices: overrides cannot be honoured",
            hint="leave the overrides out",
        )
    if recipe.weights == _AS_IS:
        recipe = msgspec.structs.replace(recipe, weights=Checkpoint(source).format())
    offer = resolve(recipe, FORMATS, runtime=runtime)
    kept = numbers(offer.name).kv_type
    if recipe.kv is not None and recipe.kv.value != kept:
        raise UnsupportedError(
            "recipe-unsupported",
            f"{runtime} keeps the KV cache of {offer.name} in {kept}, not in {recipe.kv}",
            hint=f"ask for {kept}, or another weight format",
        )
    return offer


def _context(recipe: Recipe, config: LlamaConfig, default: int) -> int:
    if recipe.context_length is None:
        return default
    if recipe.context_length > config.context_length:
        raise UnsupportedError(
            "context-too-long",
            f"the model was trained with {config.context_length} tokens; "
            f"{recipe.context_length} were asked for",
            hint=f"choose a context of at most {config.context_length}",
        )
    return recipe.context_length


def _write_weights(
    source: Path,
    destination: Path,
    config: LlamaConfig,
    chosen: Numbers,
    expected: list[tuple[str, Any]],
) -> dict[str, int]:
    """Write the tensor cache and return the number of tensors per type."""
    from tvm.contrib import tvmjs  # noqa: PLC0415 - loads TVM

    wanted = {name: tuple(int(size) for size in tensor.shape) for name, tensor in expected}
    types: collections.Counter[str] = collections.Counter()

    def checked() -> Iterator[tuple[str, Any]]:
        for name, value in parameters(Checkpoint(source), config, chosen):
            if wanted.pop(name, None) != value.shape:
                raise AdapterError("weights-mismatch", f"the compiled model takes no such {name}")
            types[str(value.dtype)] += 1
            yield name, value

    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        tvmjs.dump_tensor_cache(
            checked(),
            str(destination),
            encode_format="raw",
            meta_data=lambda: {"ParamSize": sum(types.values())},
            shard_cap_mb=_SHARD_MB,
            show_progress=False,
        )
    if wanted:
        raise AdapterError("weights-mismatch", f"no weight was found for {min(wanted)}")
    if not (destination / TENSOR_CACHE).is_file():
        raise AdapterError("weights-mismatch", f"TVM wrote no {TENSOR_CACHE}")
    return dict(types)


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value)) + b"\n"


@contextlib.contextmanager
def _translated(destination: Path) -> Iterator[None]:
    """Turn what TVM and the disk raise into the project's errors; nothing half-built stays."""
    try:
        yield
    except BaseException as error:
        for path in destination.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if isinstance(error, EdgewiseError) or not isinstance(error, Exception):
            raise
        if isinstance(error, MemoryError):
            raise ResourceError("memory-exhausted", "memory ran out in the export") from error
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_error(error, destination, "exporting") from error
        lines = str(error).strip().splitlines()[:1]
        raise AdapterError(
            "export-failed",
            f"TVM failed: {lines[0] if lines else type(error).__name__}",
            context={"error": str(error)[:2000]},
        ) from error
