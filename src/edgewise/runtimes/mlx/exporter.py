"""The MLX exporter: safetensors and a config that mlx-lm loads, quantised where asked.

Every matrix gets exactly what the recipe asks. mlx-lm's own converter leaves a matrix as it is
when the group size does not divide its columns; here that is refused.
"""

from __future__ import annotations

import collections
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec

from edgewise.core.formats import OfferedFormat, TensorFormat
from edgewise.core.recipe import Recipe
from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.runtimes.mlx.formats import FORMATS, RUNTIME, dtype_of, resolve_formats, short
from edgewise.runtimes.mlx.libraries import build_model, installed_version, libraries, tools
from edgewise.runtimes.reports import ExportResult, TensorDeviation
from edgewise.store.home import storage_error

__all__ = ["MlxExporter"]

_AS_IS = "as-is"
_WEIGHTS = "model.safetensors"
_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_BESIDE = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "tokenizer.model",
)
# What a config says about where it came from, or about weights that are not in the artifact.
_DROPPED = ("_name_or_path", "transformers_version", "vision_config")


class MlxExporter:
    """Writes folders that mlx-lm loads."""

    name = "mlx-affine"

    def export(
        self,
        source: Path,
        destination: Path,
        recipe: Recipe,
        *,
        threads: int,  # noqa: ARG002 - MLX has no setting
        calibration: Path | None = None,
    ) -> ExportResult:
        """Write ``model.safetensors``, ``config.json`` and the tokenizer.

        Raises:
            UnsupportedError: the recipe or the architecture cannot be honoured.
            InputError: the recipe contradicts itself, the source is no HF folder, or a calibration
                set was given, which nothing here would use.
            IntegrityError: the source's weights do not fit its config.
            ResourceError: the disk is full.
        """
        _refuse_what_is_not_read(recipe, calibration)
        config = _read_config(source)
        model = build_model(config)
        weights = _read_weights(source)
        offer = _offer(recipe, weights)
        _load(model, weights)
        offer = _tie(offer, recipe, model)
        _cast(model, dtype_of(offer.weights))
        plan = _plan(model, offer)
        _quantize(model, plan)
        try:
            self._write(model, config, plan, offer, source, destination)
        except OSError as error:
            raise storage_error(error, destination, "writing the artifact") from error
        return ExportResult(
            format="mlx",
            exporter=self.name,
            version=installed_version() or "not-installed",
            resolved=offer,
            types=_types(model, plan),
            deviations=_deviations(model, plan, offer),
            tools=tools(),
            notes=_left_open(recipe),
        )

    def _write(
        self,
        model: Any,
        config: dict[str, Any],
        plan: dict[str, TensorFormat],
        offer: OfferedFormat,
        source: Path,
        destination: Path,
    ) -> None:
        lib = libraries()
        tensors = dict(lib.utils.tree_flatten(model.parameters()))
        try:
            lib.mx.save_safetensors(str(destination / _WEIGHTS), tensors, {"format": "mlx"})
        except RuntimeError as error:  # it reports a full disk that way as well
            raise OSError(0, f"MLX could not write the weights: {error}") from error
        written = _written_config(config, plan, offer)
        text = json.dumps(written, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (destination / "config.json").write_text(text, encoding="utf-8")
        for name in _BESIDE:
            if (source / name).is_file():
                shutil.copyfile(source / name, destination / name)


def _read_config(source: Path) -> dict[str, Any]:
    try:
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            "hf-config-unreadable", f"{source.name} holds no readable config.json"
        ) from error
    if not isinstance(config, dict):
        raise InputError("hf-config-unreadable", f"the config.json of {source.name} is no object")
    if not (source / "tokenizer.json").is_file():
        raise InputError("hf-tokenizer-missing", f"{source.name} holds no tokenizer.json")
    for key in ("quantization", "quantization_config"):
        if config.get(key):
            raise UnsupportedError(
                "source-quantised",
                "the source's weights are packed in a quantised format already",
                hint="build from the checkpoint in floating point",
            )
    return config


def _read_weights(source: Path) -> dict[str, Any]:
    mx = libraries().mx
    files = sorted(source.glob("*.safetensors"))
    if not files:
        raise InputError("hf-weights-missing", f"{source.name} holds no safetensors file")
    weights: dict[str, Any] = {}
    for file in files:
        try:
            weights.update(mx.load(str(file)))
        except (RuntimeError, ValueError) as error:
            raise IntegrityError(
                "hf-weights-damaged", f"{file.name} is no sound safetensors file: {error}"
            ) from error
    return weights


def _refuse_what_is_not_read(recipe: Recipe, calibration: Path | None) -> None:
    if recipe.overrides:
        raise UnsupportedError(
            "overrides-unsupported",
            "mlx takes no formats for single tensors",
            hint="state weights, embedding and head",
        )
    if calibration is not None:
        raise InputError(
            "calibration-unused",
            "no method of mlx's formats calibrates",
            hint="leave the set out",
        )


def _offer(recipe: Recipe, weights: dict[str, Any]) -> OfferedFormat:
    if recipe.weights != _AS_IS:
        return resolve_formats(recipe)
    matrices = {str(w.dtype).rpartition(".")[2] for w in weights.values() if w.ndim > 1}
    name = next((key for key, dtype in _DTYPES.items() if {dtype} == matrices), None)
    if name is None:
        raise UnsupportedError(
            "source-mixed-types",
            f"the source's matrices are stored as {', '.join(sorted(matrices))}",
            hint="name a weight format",
        )
    return resolve_formats(msgspec.structs.replace(recipe, weights=name))


def _tie(offer: OfferedFormat, recipe: Recipe, model: Any) -> OfferedFormat:
    if not _is_tied(model):
        return offer
    both = recipe.embedding is not None and recipe.output is not None
    if both and offer.embedding != offer.output:
        raise InputError(
            "recipe-contradiction",
            f"embedding and head are one tensor in this model; it cannot be {offer.embedding} and "
            f"{offer.output} at once",
            hint="state one of the two",
        )
    shared = offer.output if recipe.output is not None else offer.embedding
    return msgspec.structs.replace(offer, embedding=shared, output=shared)


def _load(model: Any, weights: dict[str, Any]) -> None:
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    try:
        model.load_weights(list(weights.items()), strict=True)
    except ValueError as error:
        raise IntegrityError(
            "hf-weights-mismatch", f"the weights do not fit the config: {error}"
        ) from error


def _cast(model: Any, dtype: str) -> None:
    lib = libraries()
    wanted = getattr(lib.mx, _DTYPES[dtype])
    may_cast = getattr(model, "cast_predicate", lambda _name: True)

    def cast(name: str, value: Any) -> Any:
        floating = lib.mx.issubdtype(value.dtype, lib.mx.floating)
        return value.astype(wanted) if floating and may_cast(name) else value

    model.update(lib.utils.tree_map_with_path(cast, model.parameters()))


def _plan(model: Any, offer: OfferedFormat) -> dict[str, TensorFormat]:
    """Return ``module -> format`` for every module that is to be quantised."""
    nn = libraries().nn
    plan = {}
    for path, module in model.named_modules():
        if not hasattr(module, "to_quantized"):
            continue
        exact = offer.weights
        if isinstance(module, nn.Embedding):
            exact = offer.embedding
        elif path.endswith("lm_head"):
            exact = offer.output
        if exact.kind == "float":
            continue
        columns = module.weight.shape[-1]
        if columns % (exact.group_size or 1):
            raise _indivisible(path, columns, exact)
        plan[path] = exact
    return dict(sorted(plan.items()))


def _indivisible(path: str, columns: int, exact: TensorFormat) -> UnsupportedError:
    near = [
        offer.name
        for offer in FORMATS
        if offer.weights.bits == exact.bits
        and offer.weights.scale == exact.scale
        and offer.weights.group_size
        and columns % offer.weights.group_size == 0
    ]
    return UnsupportedError(
        "group-size-indivisible",
        f"{path} has {columns} columns, which groups of {exact.group_size} do not divide",
        context={"runtime": RUNTIME, "nearest": near[0] if near else None},
        hint=f"the nearest it offers is {near[0]}" if near else "",
    )


def _quantize(model: Any, plan: dict[str, TensorFormat]) -> None:
    def chosen(path: str, _module: Any) -> Any:
        exact = plan.get(path)
        return False if exact is None else _parameters(exact)

    if plan:
        libraries().nn.quantize(model, class_predicate=chosen)


def _parameters(exact: TensorFormat) -> dict[str, Any]:
    return {"group_size": exact.group_size, "bits": exact.bits, "mode": "affine"}


def _written_config(
    config: dict[str, Any], plan: dict[str, TensorFormat], offer: OfferedFormat
) -> dict[str, Any]:
    dtype = _DTYPES[dtype_of(offer.weights)]
    written = {key: value for key, value in config.items() if key not in _DROPPED}
    written |= {"dtype": dtype, "torch_dtype": dtype}
    if not plan:
        return written
    common = offer.weights if offer.weights.kind == "int" else next(iter(plan.values()))
    settings = _parameters(common)
    settings |= {path: _parameters(exact) for path, exact in plan.items() if exact != common}
    return written | {"quantization": settings, "quantization_config": settings}


def _is_tied(model: Any) -> bool:
    return not any(path.endswith("lm_head") for path, _ in model.named_modules())


def _types(model: Any, plan: dict[str, TensorFormat]) -> dict[str, int]:
    lib = libraries()
    counts: collections.Counter[str] = collections.Counter(short(exact) for exact in plan.values())
    names = {dtype: name for name, dtype in _DTYPES.items()}
    for path, value in lib.utils.tree_flatten(model.parameters()):
        if path.rpartition(".")[0] not in plan:
            dtype = str(value.dtype).rpartition(".")[2]
            counts[names.get(dtype, dtype)] += 1
    return dict(counts)


def _deviations(
    model: Any, plan: dict[str, TensorFormat], offer: OfferedFormat
) -> tuple[TensorDeviation, ...]:
    """Name matrices that stay in another type: MLX quantises no module of their kind."""
    lib = libraries()
    wanted = dtype_of(offer.weights)
    found = []
    for path, value in lib.utils.tree_flatten(model.parameters()):
        module = path.rpartition(".")[0]
        if module in plan or value.ndim < 2:
            continue
        exact = offer.embedding if "embed" in module else offer.weights
        got = next(
            (name for name, dtype in _DTYPES.items() if str(value.dtype).endswith("." + dtype)),
            str(value.dtype),
        )
        if exact.kind == "int" or got != wanted:
            found.append(
                TensorDeviation(
                    tensor=path,
                    asked=short(exact),
                    got=got,
                    reason="mlx-lm's definition of this architecture keeps it",
                )
            )
    return tuple(found)


def _left_open(recipe: Recipe) -> tuple[str, ...]:
    notes = []
    if recipe.kv is not None:
        notes.append(f"the KV format {recipe.kv} is not part of the artifact; it is chosen to run")
    if recipe.context_length is not None:
        notes.append("the context length is not part of the artifact; it is chosen to run")
    return tuple(notes)
