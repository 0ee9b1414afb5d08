"""The GGUF exporter: take a GGUF over as it is, or quantise it, and say what came out.

llama.cpp replaces a format that a tensor's rows do not divide, and keeps some tensors in other
formats by its own mixture rules. Neither is an error there; here every tensor whose type differs
from what the recipe asked is reported by name, with the reason.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewise.core.recipe import Recipe
from edgewise.errors import AdapterError, InputError, UnsupportedError
from edgewise.models.gguf import read_gguf
from edgewise.runtimes.llamacpp import native
from edgewise.runtimes.llamacpp.formats import GGML_TYPES, WEIGHT_FORMATS
from edgewise.runtimes.protocol import ExportResult, TensorDeviation
from edgewise.store.home import storage_error

if TYPE_CHECKING:
    from edgewise.models.gguf_types import GgufFile, TensorInfo

__all__ = ["GgufExporter"]

_AS_IS = "as-is"
_DISK_NEARLY_FULL_BYTES = 4 << 20
_FLOAT_TYPES = {"f32", "f16", "bf16"}
_EMBEDDING = "token_embd.weight"
_OUTPUT = "output.weight"


class GgufExporter:
    """Writes GGUF files with llama.cpp's own quantiser."""

    name = "llama.cpp-quantize"

    def export(
        self, source: Path, destination: Path, recipe: Recipe, *, threads: int
    ) -> ExportResult:
        """Write the artifact and return what was made, tensor types compared with the recipe.

        Raises:
            UnsupportedError: the recipe names a format that GGUF quantisation does not have.
            InputError: an override is no regular expression or matches no tensor.
            IntegrityError: the source is no sound GGUF file.
            AdapterError: llama.cpp's quantiser failed.
            ResourceError: the file cannot be written, or the disk is full.
        """
        before = read_gguf(source)
        _check(recipe, before)
        if recipe.weights == _AS_IS:
            try:
                shutil.copyfile(source, destination)
            except OSError as error:
                destination.unlink(missing_ok=True)
                raise storage_error(error, destination, "copying the artifact") from error
            return self._result(destination, recipe, before, before, copied=True)
        self._quantize(source, destination, recipe, threads)
        return self._result(destination, recipe, before, read_gguf(destination), copied=False)

    def _quantize(self, source: Path, destination: Path, recipe: Recipe, threads: int) -> None:
        bindings = native.load()
        log = native.native_log()
        log.clear()
        bindings.llama_backend_init()
        params = bindings.llama_model_quantize_default_params()
        params.nthread = threads
        params.ftype = WEIGHT_FORMATS[recipe.weights][0]
        params.allow_requantize = True  # reported, and marked in the receipt
        if recipe.embedding is not None:
            params.token_embedding_type = GGML_TYPES[recipe.embedding]
        if recipe.output is not None:
            params.output_tensor_type = GGML_TYPES[recipe.output]
        overrides = _overrides(bindings, recipe)
        if overrides is not None:
            params.tt_overrides = ctypes.cast(overrides, type(params.tt_overrides))
        code = bindings.llama_model_quantize(
            str(source).encode(), str(destination).encode(), ctypes.byref(params)
        )
        if code:
            written = destination.stat().st_size if destination.exists() else 0
            free = shutil.disk_usage(destination.parent).free
            destination.unlink(missing_ok=True)
            if free < _DISK_NEARLY_FULL_BYTES:  # llama.cpp only says that it failed
                error = OSError(errno.ENOSPC, f"{written} bytes were written")
                raise storage_error(error, destination, "quantising")
            raise AdapterError(
                "quantise-failed",
                f"llama.cpp's quantiser failed with code {code}",
                context={"native_log": log.complaints},
            )

    def _result(
        self,
        destination: Path,
        recipe: Recipe,
        before: GgufFile,
        after: GgufFile,
        *,
        copied: bool,
    ) -> ExportResult:
        quantised = any(_matrix(t) and _type(t) not in _FLOAT_TYPES for t in before.tensors)
        return ExportResult(
            path=str(destination),
            format="gguf",
            exporter="copy" if copied else self.name,
            version=native.installed_version() or "not-installed",
            copied=copied,
            requantised=quantised and not copied,
            types=dict(collections.Counter(_type(t) for t in after.tensors)),
            deviations=() if copied else tuple(_deviations(recipe, after)),
        )


def _overrides(bindings: Any, recipe: Recipe) -> Any:
    if not recipe.overrides:
        return None
    entry = bindings.llama_model_tensor_override
    array = (entry * (len(recipe.overrides) + 1))()  # the last one stays empty: the end
    for index, (pattern, name) in enumerate(recipe.overrides):
        array[index].pattern = pattern.encode()
        array[index].type = GGML_TYPES[name]
    return array


def _check(recipe: Recipe, source: GgufFile) -> None:
    if recipe.weights != _AS_IS and recipe.weights not in WEIGHT_FORMATS:
        raise UnsupportedError(
            "weight-format-unsupported",
            f"llamacpp cannot export weights as {recipe.weights!r}",
            hint=f"it can: {', '.join((_AS_IS, *WEIGHT_FORMATS))}",
        )
    named = [recipe.embedding, recipe.output, *(name for _, name in recipe.overrides)]
    for name in named:
        if name is not None and name not in GGML_TYPES:
            raise UnsupportedError(
                "tensor-type-unsupported",
                f"llamacpp has no tensor type {name!r}",
                hint=f"it has: {', '.join(GGML_TYPES)}",
            )
    if recipe.weights == _AS_IS and any(name is not None for name in named):
        raise InputError(
            "recipe-contradiction",
            "weights taken as they are cannot have types of their own for some tensors",
            hint="name a weight format, or leave the overrides out",
        )
    for pattern, _ in recipe.overrides:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise InputError(
                "override-invalid", f"the override {pattern!r} is no regular expression: {error}"
            ) from error
        if not any(compiled.search(t.name) for t in source.tensors):
            raise InputError(
                "override-matches-nothing", f"the override {pattern!r} matches no tensor"
            )


def _deviations(recipe: Recipe, artifact: GgufFile) -> list[TensorDeviation]:
    tied = not any(t.name == _OUTPUT for t in artifact.tensors)
    found = []
    for tensor in artifact.tensors:
        if not _matrix(tensor):
            continue  # vectors stay float in every recipe
        asked, got = _asked(recipe, tensor.name, tied=tied), _type(tensor)
        if asked != got:
            found.append(
                TensorDeviation(
                    tensor=tensor.name, asked=asked, got=got, reason=_reason(tensor, asked)
                )
            )
    return found


def _asked(recipe: Recipe, tensor: str, *, tied: bool) -> str:
    for pattern, name in recipe.overrides:
        if re.search(pattern, tensor):
            return name
    if tensor == _EMBEDDING:
        named = (recipe.output or recipe.embedding) if tied else recipe.embedding
        if named is not None:
            return named
    if tensor == _OUTPUT and recipe.output is not None:
        return recipe.output
    return WEIGHT_FORMATS[recipe.weights][1]


def _reason(tensor: TensorInfo, asked: str) -> str:
    block = next(t.block_size for t in type(tensor.type) if t.name.lower() == asked)
    row = tensor.shape[0]
    if row % block:
        return f"its rows have {row} elements, which blocks of {block} do not divide"
    return "llama.cpp's mixture for this format keeps this tensor in another type"


def _matrix(tensor: TensorInfo) -> bool:
    return len(tensor.shape) > 1 and min(tensor.shape[:2]) > 1


def _type(tensor: TensorInfo) -> str:
    return tensor.type.name.lower()
