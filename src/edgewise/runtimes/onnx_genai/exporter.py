"""The exporter: from the Hugging Face form through ONNX Runtime GenAI's model builder.

The builder runs in this process, which is a worker of its own: it puts its folder before the
import path and keeps state between calls, so a process exports once. What it leaves is read again:
the graph must hold what was promised, and the end tokens all that the source names.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import importlib
import io
import json
import logging
import os
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from edgewise.core.formats import OfferedFormat
from edgewise.core.recipe import KvType, Recipe, resolve
from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    InputError,
    IntegrityError,
    ResourceError,
    UnsupportedError,
)
from edgewise.runtimes.hf_tokenizer import HfTokenizer
from edgewise.runtimes.onnx_genai import native
from edgewise.runtimes.onnx_genai.formats import (
    BODY,
    EMBEDDING,
    Weight,
    builder_options,
    offered,
    weights_of,
)
from edgewise.runtimes.onnx_genai.graph import Graph, read_graph
from edgewise.runtimes.onnx_genai.source import (
    HfSource,
    read_json,
    read_source,
    require_tokenizer,
)
from edgewise.runtimes.reports import ExportResult, TensorDeviation
from edgewise.store.home import storage_error

__all__ = ["OnnxExporter"]

_RUNTIME: Final = "onnx-genai"
_BUILDER: Final = "onnxruntime_genai.models.builder"
_CACHE: Final = ".cache"
_MODEL: Final = "model.onnx"
_CONFIG: Final = "genai_config.json"
# Read by the engine, by the library's own tokenizer, and by whoever deploys the folder.
_KEPT: Final = (
    _MODEL,
    "model.onnx.data",
    _CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_TOOLS: Final = (
    "numpy",
    "onnx",
    "onnx-ir",
    "onnxruntime",
    "onnxruntime-genai",
    "tokenizers",
    "torch",
    "transformers",
)
_LOG_LINES: Final = 20


class OnnxExporter:
    """Writes ONNX models with a generator configuration."""

    name = "onnxruntime-genai-builder"

    def export(
        self,
        source: Path,
        destination: Path,
        recipe: Recipe,
        *,
        threads: int,
        calibration: Path | None = None,
    ) -> ExportResult:
        """Write the artifact and return what was made, read back from the graph.

        See :meth:`edgewise.runtimes.protocol.Exporter.export`.

        Raises:
            InputError: the source is no HF checkpoint, or the recipe contradicts itself.
            IntegrityError: the source is damaged or incomplete.
            UnsupportedError: the recipe or the architecture is not supported, or the libraries
                are not installed.
            AdapterError: the builder failed, or made something else than was promised.
            ResourceError: memory or disk ran out.
        """
        checkpoint = read_source(source)
        offer = resolve(recipe, offered(tied=checkpoint.tied), runtime=_RUNTIME)
        require_tokenizer(HfTokenizer(source), checkpoint.vocab_size)
        context_length = _checked(recipe, checkpoint, calibration)
        try:
            windows = _build(checkpoint, destination, offer, threads)
            graph = read_graph(destination / _MODEL)
            weights = weights_of(graph)
            _require(offer, weights)
            _require_windows(graph, windows)
            notes = _finish(checkpoint, destination, context_length)
        except BaseException:
            _drop(destination, keep=())
            raise
        return ExportResult(
            format="onnx",
            exporter=self.name,
            version=native.installed_version() or "not-installed",
            resolved=offer,
            context_length=context_length,
            types=dict(collections.Counter(str(w.format) for w in _unique(weights))),
            deviations=tuple(_deviations(offer, weights)),
            tools=_versions(),
            notes=notes,
        )


def _checked(recipe: Recipe, checkpoint: HfSource, calibration: Path | None) -> int:
    if recipe.kv not in {None, KvType.F32}:
        raise UnsupportedError(
            "recipe-unsupported",
            f"onnx-genai's CPU graphs keep an f32 KV cache, not {recipe.kv}",
            hint="leave the KV format open, or ask for f32",
        )
    if recipe.overrides:
        raise UnsupportedError(
            "recipe-unsupported",
            "onnx-genai's builder takes no formats for single tensors",
            hint="state formats for weights, embedding and output only",
        )
    if calibration is not None:
        raise InputError(
            "calibration-unused",
            "no method of onnx-genai's exporter calibrates",
            hint="leave the calibration set out",
        )
    longest = checkpoint.context_length
    asked = recipe.context_length or longest
    if asked > longest:
        raise UnsupportedError(
            "context-too-long",
            f"the model was made for {longest} tokens of context, not {asked}",
            context={"asked": asked, "longest": longest},
            hint=f"ask for at most {longest}",
        )
    return asked


def _build(checkpoint: HfSource, destination: Path, offer: OfferedFormat, threads: int) -> int:
    """Run the builder; return how many layers see only a window."""
    missing = native.missing_modules(native.EXPORT_MODULES)
    if missing:
        raise UnsupportedError(
            "exporter-not-installed",
            f"what exporting takes is not installed: {', '.join(missing)}",
            context={"missing": list(missing)},
            hint="edgewise runtime install onnx-genai",
        )
    precision, options = builder_options(offer, tied=checkpoint.tied)
    cache = destination / _CACHE
    # Nothing is fetched: the checkpoint is whole, and no build may depend on a network.
    os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
    printed = io.StringIO()
    with _typed_failures(destination, printed), _transformers_log() as complaints:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            native.load()
            _set_threads(threads)
            builder: Any = importlib.import_module(_BUILDER)
            where = ("", str(checkpoint.folder), str(destination), precision, "cpu", str(cache))
            prepared = builder.parse_extra_options(*where, options)
            config = prepared["hf_details"]["hf_config"]
            _flatten_rope(config)
            windows = _state_windows(config)
            builder.create_model(*where, **prepared)
        shutil.rmtree(cache, ignore_errors=True)
    _refuse_incomplete(complaints)
    return windows


def _flatten_rope(config: Any) -> None:
    """State a rotary base per layer type in the two flat fields that the builder reads."""
    nested = getattr(config, "rope_parameters", None)
    if not isinstance(nested, dict) or "full_attention" not in nested:
        return
    config.rope_parameters = dict(nested["full_attention"])
    config.rope_theta = nested["full_attention"]["rope_theta"]
    config.rope_local_base_freq = nested["sliding_attention"]["rope_theta"]


def _state_windows(config: Any) -> int:
    """State which layers see only a window where the builder reads it; return how many do.

    A configuration that has a window and no list of layer types means all layers; the builder
    would take it for none.
    """
    window = getattr(config, "sliding_window", None)
    if window is None:
        return 0
    if getattr(config, "layer_types", None) is None:
        config.layer_types = ["sliding_attention"] * config.num_hidden_layers
    return list(config.layer_types).count("sliding_attention")


def _set_threads(threads: int) -> None:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)


@contextlib.contextmanager
def _typed_failures(destination: Path, printed: io.StringIO) -> Iterator[None]:
    try:
        yield
    except EdgewiseError:
        raise
    except MemoryError as error:
        raise _out_of_memory() from error
    except Exception as error:
        raise _typed(error, destination, printed) from error


def _typed(error: Exception, destination: Path, printed: io.StringIO) -> EdgewiseError:
    text = str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return storage_error(error, destination, "exporting")
    if os.strerror(errno.ENOSPC) in text:  # native writers only say it in words
        full = OSError(errno.ENOSPC, text)
        return storage_error(full, destination, "exporting")
    if "allocate memory" in text or "bad_alloc" in text:
        return _out_of_memory()
    if type(error).__name__ == "SafetensorError":
        return IntegrityError(
            "source-damaged", f"the weights of the checkpoint cannot be read: {text}"
        )
    return AdapterError(
        "export-failed",
        f"the model builder failed with {type(error).__name__}: {text[:500]}",
        context={"native_log": printed.getvalue().splitlines()[-_LOG_LINES:]},
    )


def _out_of_memory() -> ResourceError:
    return ResourceError(
        "export-out-of-memory",
        "memory ran out while the model was exported",
        hint="raise the memory limit; the builder holds the float weights about three times",
        retryable=True,
    )


@contextlib.contextmanager
def _transformers_log() -> Iterator[list[str]]:
    """Collect what transformers warns of while it loads the checkpoint."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keep(level=logging.WARNING)
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def _refuse_incomplete(complaints: list[str]) -> None:
    """Refuse a checkpoint whose missing tensors the loader filled with random numbers."""
    for line in complaints:
        if "MISSING" in line or "newly initialized" in line:
            raise IntegrityError(
                "checkpoint-incomplete",
                "the checkpoint lacks tensors that its architecture needs",
                context={"loader": line[:2000]},
            )


def _require(offer: OfferedFormat, weights: tuple[Weight, ...]) -> None:
    """Refuse an export whose embedding or head is not what was promised."""
    for weight in weights:
        if weight.part == BODY:
            continue
        promised = offer.embedding if weight.part == EMBEDDING else offer.output
        if weight.format != promised:
            raise AdapterError(
                "export-not-as-promised",
                f"the {weight.part} came out as {weight.format}, not as {promised}",
                context={"tensor": weight.tensor, "format": offer.name},
                hint="this version of the model builder behaves differently; "
                "install the one of the lock file",
            )
    if not any(w.part == BODY and w.format == offer.weights for w in weights):
        raise AdapterError("export-not-as-promised", f"no matrix came out as {offer.weights}")


def _require_windows(graph: Graph, expected: int) -> None:
    """Refuse a graph in which other layers see a window than in the model."""
    sliding = [
        node
        for node in graph.nodes
        if node.op == "GroupQueryAttention" and node.integers.get("local_window_size", -1) > 0
    ]
    if len(sliding) != expected:
        raise AdapterError(
            "export-not-as-promised",
            f"{len(sliding)} layers came out with a sliding window, not {expected}",
            hint="this version of the model builder behaves differently; "
            "install the one of the lock file",
        )


def _deviations(offer: OfferedFormat, weights: tuple[Weight, ...]) -> Iterator[TensorDeviation]:
    for weight in weights:
        if weight.part == BODY and weight.format != offer.weights:
            yield TensorDeviation(
                tensor=weight.tensor,
                asked=str(offer.weights),
                got=str(weight.format),
                reason="the model builder keeps this matrix in another format",
            )


def _unique(weights: tuple[Weight, ...]) -> list[Weight]:
    return list({weight.tensor: weight for weight in weights}.values())


def _finish(checkpoint: HfSource, destination: Path, context_length: int) -> tuple[str, ...]:
    """Correct the generator's configuration, take the source's tokenizer, drop the rest."""
    try:
        _drop(destination, keep=_KEPT)
        shutil.copyfile(checkpoint.folder / "tokenizer.json", destination / "tokenizer.json")
        config = read_json(destination / _CONFIG)
        notes = tuple(_correct(config, checkpoint, context_length))
        (destination / _CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise storage_error(error, destination, "finishing the export") from error
    return notes


def _drop(folder: Path, *, keep: tuple[str, ...]) -> None:
    for path in folder.iterdir():
        if path.name in keep:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _correct(config: dict[str, Any], checkpoint: HfSource, context_length: int) -> Iterator[str]:
    model = config.setdefault("model", {})
    written = model.get("eos_token_id")
    before = set(written) if isinstance(written, list) else {written} - {None}
    wanted = set(checkpoint.end_tokens) | before
    if wanted != before:
        yield f"end tokens corrected from {sorted(before)} to {sorted(wanted)}"
    if wanted:
        model["eos_token_id"] = sorted(wanted)
    if model.get("context_length") != context_length:
        yield f"context length set from {model.get('context_length')} to {context_length}"
    model["context_length"] = context_length
    config.setdefault("search", {})["max_length"] = context_length


def _versions() -> dict[str, str]:
    found = {}
    for name in _TOOLS:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
