"""The OpenVINO exporter: a Hugging Face folder to an IR, or a GGUF file taken over.

Optimum traces the model in f32 with its KV cache as state; NNCF rounds the weights of that graph.
What was written is then read back, and every matrix whose format is not the asked one is named.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from edgewise.core.formats import OfferedFormat
from edgewise.core.recipe import Recipe, resolve
from edgewise.errors import EdgewiseError, InputError, UnsupportedError
from edgewise.models.safetensors import read_safetensors
from edgewise.runtimes.openvino import native
from edgewise.runtimes.openvino.calibration import CalibrationSet, observe, read_calibration
from edgewise.runtimes.openvino.compress import compress
from edgewise.runtimes.openvino.formats import CALIBRATED, HF_FORMATS, dynamic_group
from edgewise.runtimes.openvino.gguf_export import export_gguf, wants_gguf
from edgewise.runtimes.openvino.graph import matrices, stable_names, type_counts
from edgewise.runtimes.openvino.load import IR_NAME, native_error
from edgewise.runtimes.reports import CalibrationReport, ExportResult, TensorDeviation
from edgewise.store.home import storage_error

__all__ = ["OpenVinoExporter"]

_AS_IS = "as-is"
_NEEDED = ("config.json", "tokenizer.json")
_COPIED = (
    *_NEEDED,
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_DISK_NEARLY_FULL_BYTES = 4 << 20
_FLOAT_SOURCES = {"float32": "f32", "float16": "f16"}
_BESIDE = ("embed_tokens", "lm_head")


class OpenVinoExporter:
    """Writes OpenVINO IR with Optimum and NNCF, and takes GGUF files over."""

    name = "optimum-intel+nncf"

    def export(
        self,
        source: Path,
        destination: Path,
        recipe: Recipe,
        *,
        threads: int,
        calibration: Path | None = None,
    ) -> ExportResult:
        """Write the artifact and return what was made.

        Args:
            source: A Hugging Face folder, or a GGUF file for the ``gguf-...`` recipes.
            destination: An empty folder.
            recipe: What the weights become.
            threads: Threads of torch and OpenVINO.
            calibration: UTF-8 text, a sample per line, for methods that calibrate.

        Raises:
            InputError: a file is missing, a format is malformed, or the method calibrates and
                there is no usable calibration set.
            UnsupportedError: the recipe or the architecture is not offered, or a library is
                missing.
            IntegrityError: the checkpoint is damaged.
            AdapterError: a library failed.
            ResourceError: memory or disk ran out.
        """
        try:
            if source.is_file() or wants_gguf(recipe):
                return export_gguf(source, destination, recipe)
            return self._export_folder(source, destination, recipe, threads, calibration)
        except BaseException:
            _empty(destination)
            raise

    def _export_folder(
        self,
        source: Path,
        destination: Path,
        recipe: Recipe,
        threads: int,
        calibration: Path | None,
    ) -> ExportResult:
        _check_source(source)
        offer = resolve(_stated(recipe, source), HF_FORMATS, runtime="openvino")
        method = recipe.method or offer.methods[0]
        notes = _refuse_or_note(recipe, method, calibration)
        _require_divisible(source, offer)
        samples = read_calibration(source, calibration) if method in CALIBRATED else None
        work = destination / ".work"
        with _native_failures(destination):
            model = _trace(source, work, threads)
            model, report = _compressed(model, offer, method, samples, threads)
            _save(model, destination / IR_NAME, offer)
            del model
            shutil.rmtree(work)
            _copy_beside(source, destination)
        written = native.load().Core().read_model(str(destination / IR_NAME))
        return ExportResult(
            format="openvino-ir",
            exporter=self.name,
            version=native.installed_version() or "not-installed",
            resolved=offer,
            types=type_counts(written),
            deviations=tuple(_deviations(written, offer)),
            tools=native.tool_versions(),
            calibration=report,
            notes=notes,
        )


def _check_source(source: Path) -> None:
    missing = [name for name in _NEEDED if not (source / name).is_file()]
    if missing or not any(source.glob("*.safetensors")):
        raise InputError(
            "checkpoint-files-missing",
            f"{source} is no complete Hugging Face checkpoint",
            context={"missing": missing or ["*.safetensors"]},
            hint="it takes config.json, tokenizer.json and *.safetensors",
        )


def _stated(recipe: Recipe, source: Path) -> Recipe:
    """Return the recipe with ``as-is`` replaced by the checkpoint's own float format."""
    if recipe.weights != _AS_IS:
        return recipe
    config = json.loads((source / "config.json").read_text())
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    ours = _FLOAT_SOURCES.get(dtype)
    if ours is None:
        raise UnsupportedError(
            "recipe-unsupported",
            f"openvino cannot take {dtype} weights over as they are",
            context={"runtime": "openvino", "nearest": "f32"},
            hint="the nearest it offers is f32, which holds every bf16 value exactly",
        )
    return msgspec.structs.replace(recipe, weights=ours)


def _refuse_or_note(recipe: Recipe, method: str, calibration: Path | None) -> tuple[str, ...]:
    if recipe.overrides:
        raise UnsupportedError(
            "overrides-unsupported",
            "openvino cannot give single tensors formats of their own",
            hint="leave the overrides out; embedding and head are chosen by the recipe's format",
        )
    if method in CALIBRATED and calibration is None:
        raise InputError(
            "calibration-missing",
            f"the method {method} takes a calibration set",
            hint="give a text file with a sample per line",
        )
    notes = []
    if recipe.kv is not None:
        notes.append(f"the KV format {recipe.kv} is no part of an IR: give it when running")
    if recipe.context_length is not None:
        notes.append("an IR has no longest context of its own: give it when running")
    if calibration is not None and method not in CALIBRATED:
        notes.append(f"the calibration set was not used: the method {method} takes none")
    return tuple(notes)


def _require_divisible(source: Path, offer: OfferedFormat) -> None:
    """Refuse a group size that some matrix cannot have, before anything expensive.

    Raises:
        UnsupportedError: names the rows and the largest offered group that divides all.
    """
    group = offer.weights.group_size or 0
    if group <= 0:
        return
    tensors = [t for file in source.glob("*.safetensors") for t in read_safetensors(file).tensors]
    everything = offer.embedding.group_size == group
    columns = {
        tensor.shape[-1]
        for tensor in tensors
        if len(tensor.shape) == 2 and (everything or not any(b in tensor.name for b in _BESIDE))
    }
    odd = sorted(size for size in columns if size % group)
    if odd:
        fitting = [g for g in (128, 64, 32) if not any(size % g for size in columns)]
        nearest = offer.name.replace(f"g{group}", f"g{fitting[0]}") if fitting else "int8-sym"
        raise UnsupportedError(
            "recipe-unsupported",
            f"groups of {group} do not divide this model's rows of {odd[0]}",
            context={"runtime": "openvino", "nearest": nearest, "columns": odd},
            hint=f"the nearest this model can have is {nearest}",
        )


@contextlib.contextmanager
def _native_failures(destination: Path) -> Iterator[None]:
    """Give the libraries' exceptions out as ours; a full disk looks like anything to them."""
    try:
        yield
    except EdgewiseError:
        raise
    except (Exception, MemoryError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_error(error, destination, "exporting to OpenVINO") from error
        if shutil.disk_usage(destination).free < _DISK_NEARLY_FULL_BYTES:
            full = OSError(errno.ENOSPC, str(error))
            raise storage_error(full, destination, "exporting to OpenVINO") from error
        raise native_error("export-failed", "exporting the model", error) from error


def _trace(source: Path, work: Path, threads: int) -> Any:
    """Return the f32 graph of a checkpoint, stateful, loaded from ``work``."""
    native.quiet_export_imports()
    openvino = native.load()
    torch = native.need("torch")
    optimum = native.need("optimum.exporters.openvino")
    settings = native.need("optimum.intel.openvino.configuration")
    torch.set_num_threads(threads)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            optimum.main_export(
                str(source),
                str(work),
                task="text-generation-with-past",
                library_name="transformers",
                local_files_only=True,
                stateful=True,
                convert_tokenizer=False,
                ov_config=settings.OVConfig(dtype="fp32"),
                model_loading_kwargs={"torch_dtype": torch.float32},
            )
    except (ValueError, KeyError) as error:
        if "custom or unsupported architecture" in str(error) or "not supported" in str(error):
            raise UnsupportedError(
                "architecture-unsupported",
                "Optimum cannot export this model's architecture to OpenVINO",
                context={"native": str(error)[:400]},
                hint="try another runtime, or a newer optimum-intel",
            ) from error
        raise
    core = openvino.Core()
    core.set_property({"ENABLE_MMAP": False})  # the file is removed before the graph is done
    return core.read_model(str(work / IR_NAME))


def _compressed(
    model: Any,
    offer: OfferedFormat,
    method: str,
    samples: CalibrationSet | None,
    threads: int,
) -> tuple[Any, CalibrationReport | None]:
    if samples is None:
        return compress(model, offer, method, None), None
    outliers = observe(model, samples, threads)
    model = compress(model, offer, method, samples)
    return model, samples.report(method, model, outliers, threads)


def _save(model: Any, path: Path, offer: OfferedFormat) -> None:
    group = str(dynamic_group(offer))
    model.set_rt_info(group, ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    stable_names(model)
    half = offer.weights.kind == "float" and offer.weights.bits == 16
    native.load().save_model(model, str(path), compress_to_fp16=half)


def _copy_beside(source: Path, destination: Path) -> None:
    for name in _COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)


def _deviations(model: Any, offer: OfferedFormat) -> Iterator[TensorDeviation]:
    asked = {"weights": offer.weights, "embedding": offer.embedding, "output": offer.output}
    for matrix in matrices(model):
        if matrix.format != asked[matrix.role]:
            yield TensorDeviation(
                tensor=matrix.name,
                asked=str(asked[matrix.role]),
                got=str(matrix.format),
                reason="read back from the graph that was written",
            )


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
