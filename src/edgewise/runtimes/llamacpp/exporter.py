"""The family's exporter: take a GGUF over as it is, or quantise it, and say what came out.

The native quantiser replaces a format that a tensor's rows do not divide, and keeps some tensors
in other formats by its own mixture rules. Neither is an error there; here every tensor whose type
differs from what the recipe asked is reported by name, with the reason.
"""

from __future__ import annotations

import collections
import errno
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgewise.core.formats import OfferedFormat
from edgewise.core.recipe import Recipe
from edgewise.errors import AdapterError, InputError, UnsupportedError
from edgewise.models.gguf import read_gguf
from edgewise.runtimes.llamacpp.formats import (
    GGML_TYPES,
    TENSOR_FORMATS,
    WEIGHT_FORMATS,
    is_exact,
    offers,
    resolve_formats,
    tensor_type,
)
from edgewise.runtimes.llamacpp.imatrix import Importance, collect
from edgewise.runtimes.llamacpp.library import Library, QuantizeOrder
from edgewise.runtimes.llamacpp.upstream import LlamaCppLibrary
from edgewise.runtimes.reports import ExportResult, TensorDeviation
from edgewise.store.home import storage_error

if TYPE_CHECKING:
    from edgewise.models.gguf_types import GgufFile, TensorInfo

__all__ = ["GgufExporter"]

_AS_IS = "as-is"
_FILE = "model.gguf"
_DISK_NEARLY_FULL_BYTES = 4 << 20
_EMBEDDING = "token_embd.weight"
_OUTPUT = "output.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a recipe comes to for one file: types by name, and why."""

    offer: OfferedFormat
    weights: str
    embedding: str
    output: str
    overrides: tuple[tuple[str, str], ...]
    tied: bool
    embedding_stated: bool
    output_stated: bool

    @property
    def exact(self) -> bool:
        return is_exact(self.offer.name)

    def asked(self, tensor: str) -> str:
        for pattern, name in self.overrides:
            if re.search(pattern, tensor):
                return name
        if tensor == _EMBEDDING:
            return self.embedding
        return self.output if tensor == _OUTPUT else self.weights


class GgufExporter:
    """Writes GGUF files with the quantiser of a member of the family."""

    def __init__(self, library: Library | None = None) -> None:
        """Take the member whose quantiser is used; llama.cpp's when none is given."""
        self._library = library or LlamaCppLibrary()
        self.name = f"{self._library.title}-quantize"

    def export(
        self,
        source: Path,
        destination: Path,
        recipe: Recipe,
        *,
        threads: int,
        calibration: Path | None = None,
    ) -> ExportResult:
        """Write ``model.gguf`` and return what was made, tensor types compared with the recipe.

        Raises:
            UnsupportedError: the recipe names a format that the quantiser does not have.
            InputError: the recipe contradicts itself, an override is no regular expression or
                matches no tensor, or its method calibrates and there is nothing to calibrate on.
            IntegrityError: the source is no sound GGUF file.
            AdapterError: the native quantiser failed.
            ResourceError: the file cannot be written, or the disk is full.
        """
        before = read_gguf(source)
        target = destination / _FILE
        if recipe.weights == _AS_IS:
            _refuse_changes(recipe)
            return self._copy(source, target, recipe, before)
        plan = self._plan(recipe, before)
        importance = None
        if recipe.method == "imatrix":
            if calibration is None:
                raise InputError(
                    "calibration-missing",
                    "the method imatrix needs a calibration set",
                    hint="name a text file with a sample per line",
                )
            importance = collect(self._library, source, calibration, threads=threads)
        self._quantize(source, target, plan, importance, threads)
        return self._result(recipe, plan, read_gguf(target), importance)

    def _copy(self, source: Path, target: Path, recipe: Recipe, before: GgufFile) -> ExportResult:
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            target.unlink(missing_ok=True)
            raise storage_error(error, target, "copying the artifact") from error
        return ExportResult(
            format="gguf",
            exporter="copy",
            version=self._version(),
            resolved=None,
            copied=True,
            types=_types(before),
            tools=self._tools(),
            notes=_left_open(recipe),
        )

    def _plan(self, recipe: Recipe, source: GgufFile) -> _Plan:
        runtime = self._library.runtime
        if recipe.overrides and not self._library.quantiser_extras:
            raise UnsupportedError(
                "overrides-unsupported",
                f"{runtime}'s quantiser takes no types for single tensors",
                hint="build with llamacpp; the file runs with both",
            )
        offered = offers(extras=self._library.quantiser_extras)
        offer, embedding, output = resolve_formats(recipe, offered, runtime=runtime)
        tied = not any(t.name == _OUTPUT for t in source.tensors)
        weights = WEIGHT_FORMATS[offer.name][1]
        if tied:
            offer, embedding, output = _tie(recipe, offer, embedding, output)
        either = recipe.embedding is not None or recipe.output is not None
        embedding_stated = either if tied else recipe.embedding is not None
        output_stated = either if tied else recipe.output is not None
        if not is_exact(offer.name):
            # What the recipe leaves open is the mixture's to decide, so nothing else is asked.
            embedding = embedding if embedding_stated else weights
            output = output if output_stated else weights
        return _Plan(
            offer=offer,
            weights=weights,
            embedding=embedding,
            output=output,
            overrides=_overrides(recipe, source, runtime),
            tied=tied,
            embedding_stated=embedding_stated,
            output_stated=output_stated,
        )

    def _quantize(
        self, source: Path, target: Path, plan: _Plan, importance: Importance | None, threads: int
    ) -> None:
        library = self._library
        library.bindings().llama_backend_init()
        library.log().clear()
        set_embedding = plan.exact or plan.embedding_stated
        set_output = plan.exact or plan.output_stated
        order = QuantizeOrder(
            ftype=WEIGHT_FORMATS[plan.offer.name][0],
            pure=plan.exact,
            embedding=GGML_TYPES[plan.asked(_EMBEDDING)] if set_embedding else None,
            output=GGML_TYPES[plan.asked(_OUTPUT)] if set_output else None,
            overrides=tuple((pattern, GGML_TYPES[name]) for pattern, name in plan.overrides),
            importance={} if importance is None else importance.columns,
            metadata={} if importance is None else importance.metadata,
            threads=threads,
        )
        code = library.quantize(source, target, order)
        if not code:
            return
        written = target.stat().st_size if target.exists() else 0
        free = shutil.disk_usage(target.parent).free
        target.unlink(missing_ok=True)
        if free < _DISK_NEARLY_FULL_BYTES:  # the library only says that it failed
            error = OSError(errno.ENOSPC, f"{written} bytes were written")
            raise storage_error(error, target, "quantising")
        raise AdapterError(
            "quantise-failed",
            f"{library.title}'s quantiser failed with code {code}",
            context={"native_log": library.log().complaints},
        )

    def _result(
        self, recipe: Recipe, plan: _Plan, after: GgufFile, importance: Importance | None
    ) -> ExportResult:
        return ExportResult(
            format="gguf",
            exporter=self.name,
            version=self._version(),
            resolved=_observed(plan, after),
            types=_types(after),
            deviations=tuple(_deviations(plan, after)),
            tools=self._tools(),
            calibration=None if importance is None else importance.report,
            notes=_left_open(recipe),
        )

    def _version(self) -> str:
        return self._library.version() or "not-installed"

    def _tools(self) -> dict[str, str]:
        return {self._library.title: self._version()}


def _refuse_changes(recipe: Recipe) -> None:
    stated = (recipe.embedding, recipe.output, recipe.activation, recipe.method)
    if recipe.overrides or any(value is not None for value in stated):
        raise InputError(
            "recipe-contradiction",
            "weights taken as they are cannot have types or a method of their own",
            hint="name a weight format, or leave the rest out",
        )


def _tie(
    recipe: Recipe, offer: OfferedFormat, embedding: str, output: str
) -> tuple[OfferedFormat, str, str]:
    if recipe.embedding is not None and recipe.output is not None and embedding != output:
        raise InputError(
            "recipe-contradiction",
            f"embedding and head are one tensor in this model; it cannot be {embedding} and "
            f"{output} at once",
            hint="state one of the two",
        )
    shared = output if recipe.output is not None else embedding
    both = TENSOR_FORMATS[shared]
    return msgspec.structs.replace(offer, embedding=both, output=both), shared, shared


def _overrides(recipe: Recipe, source: GgufFile, runtime: str) -> tuple[tuple[str, str], ...]:
    found = []
    for pattern, text in recipe.overrides:
        name = tensor_type(text, runtime=runtime)
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
        found.append((pattern, name))
    return tuple(found)


def _left_open(recipe: Recipe) -> tuple[str, ...]:
    notes = []
    if recipe.kv is not None:
        notes.append(f"the KV format {recipe.kv} is not part of a GGUF; it is chosen when it runs")
    if recipe.context_length is not None:
        notes.append("the context length is not part of a GGUF; it is chosen when it runs")
    return tuple(notes)


def _observed(plan: _Plan, artifact: GgufFile) -> OfferedFormat:
    """Return the offer with embedding and head as they came out; a mixture decides them late."""
    types = {tensor.name: _type(tensor) for tensor in artifact.tensors}
    embedding = TENSOR_FORMATS.get(types.get(_EMBEDDING, ""), plan.offer.embedding)
    output = TENSOR_FORMATS.get(types.get(_OUTPUT, ""), plan.offer.output)
    return msgspec.structs.replace(
        plan.offer, embedding=embedding, output=embedding if plan.tied else output
    )


def _deviations(plan: _Plan, artifact: GgufFile) -> list[TensorDeviation]:
    found = []
    for tensor in artifact.tensors:
        if not _matrix(tensor):
            continue  # vectors stay float in every recipe
        asked, got = plan.asked(tensor.name), _type(tensor)
        if asked != got:
            found.append(
                TensorDeviation(
                    tensor=tensor.name, asked=asked, got=got, reason=_reason(plan, tensor, asked)
                )
            )
    return found


def _reason(plan: _Plan, tensor: TensorInfo, asked: str) -> str:
    block = next(t.block_size for t in type(tensor.type) if t.name.lower() == asked)
    row = tensor.shape[0]
    if row % block:
        return f"its rows have {row} elements, which blocks of {block} do not divide"
    if plan.offer.weights.kind == "float" and asked != plan.weights:
        return "the quantiser takes types for single tensors only beside a quantised format"
    if plan.exact:
        return "the quantiser leaves this tensor as it is"
    return "the quantiser's mixture for this format keeps this tensor in another type"


def _types(artifact: GgufFile) -> dict[str, int]:
    return dict(collections.Counter(_type(tensor) for tensor in artifact.tensors))


def _matrix(tensor: TensorInfo) -> bool:
    return len(tensor.shape) > 1 and min(tensor.shape[:2]) > 1


def _type(tensor: TensorInfo) -> str:
    return tensor.type.name.lower()
