"""GGUF files taken over as they are, for the two readers that OpenVINO has for them.

OpenVINO GenAI's own reader stores Q4_1 as 4-bit integers with an integer zero point, where Q4_1
has a float minimum. The recipe that uses it exists so that this can be measured; each tensor it
changes is named.
"""

from __future__ import annotations

import collections
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import Recipe, resolve
from edgewise.errors import InputError, UnsupportedError
from edgewise.models.gguf import read_gguf
from edgewise.models.gguf_types import GgmlType
from edgewise.runtimes.openvino import native
from edgewise.runtimes.openvino.formats import (
    FRONTEND,
    GGUF_DIRECT,
    GGUF_FORMATS,
    GGUF_FRONTEND,
)
from edgewise.runtimes.openvino.load import GGUF_NAME, READER_NAME
from edgewise.runtimes.reports import ExportResult, TensorDeviation
from edgewise.store.home import storage_error

if TYPE_CHECKING:
    from edgewise.models.gguf_types import GgufFile

__all__ = ["GENAI_ARCHITECTURES", "export_gguf", "wants_gguf"]

GENAI_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_STATED = {GgmlType.F32, GgmlType.Q4_1, GgmlType.Q8_0}
_K_WITH_MINIMUM = {GgmlType.Q2_K, GgmlType.Q4_K, GgmlType.Q5_K}
_WITH_MINIMUM = {GgmlType.Q4_1, GgmlType.Q5_1, *_K_WITH_MINIMUM}


def wants_gguf(recipe: Recipe) -> bool:
    """Return whether a recipe takes a GGUF file rather than a Hugging Face folder."""
    return recipe.weights in {GGUF_DIRECT, GGUF_FRONTEND}


def export_gguf(source: Path, destination: Path, recipe: Recipe) -> ExportResult:
    """Copy a GGUF file, after asking its reader, and return what that reader makes of it.

    Raises:
        InputError: the source is no file, or the recipe is one for Hugging Face folders.
        UnsupportedError: the recipe, or the model's architecture, is none of the reader's.
        IntegrityError: the file is damaged.
        ResourceError: the disk is full.
    """
    if not source.is_file():
        raise InputError(
            "source-form-wrong",
            f"the recipe {recipe.weights} takes a GGUF file, {source} is none",
            hint="give the GGUF file, or a recipe such as int8",
        )
    name = GGUF_DIRECT if recipe.weights == "as-is" else recipe.weights
    if name not in {GGUF_DIRECT, GGUF_FRONTEND}:
        raise InputError(
            "source-form-wrong",
            f"the recipe {recipe.weights} takes a Hugging Face folder, {source} is a file",
            hint=f"convert the checkpoint, or use {GGUF_FRONTEND}",
        )
    offer = resolve(recipe, [o for o in GGUF_FORMATS if o.name == name], runtime="openvino")
    header = read_gguf(source)
    _require_reader(name, header, source)
    target = destination / GGUF_NAME
    try:
        shutil.copyfile(source, target)
        if name == GGUF_FRONTEND:
            (destination / READER_NAME).write_text(json.dumps({"reader": FRONTEND}) + "\n")
    except OSError as error:
        raise storage_error(error, target, "copying the artifact") from error
    others = sorted({t.type.name for t in header.tensors if t.type not in _STATED})
    return ExportResult(
        format="gguf",
        exporter="copy",
        version=native.installed_version() or "not-installed",
        resolved=offer,
        copied=True,
        types=dict(collections.Counter(t.type.name.lower() for t in header.tensors)),
        deviations=tuple(_deviations(name, header)),
        tools=native.tool_versions(),
        notes=(f"types beside those the format states: {', '.join(others)}",) if others else (),
    )


def _require_reader(name: str, header: GgufFile, source: Path) -> None:
    if name == GGUF_FRONTEND:
        from edgewise.runtimes.openvino.frontend import read_with_frontend  # noqa: PLC0415

        read_with_frontend(source)
        return
    architecture = str(header.metadata.get("general.architecture"))
    if architecture not in GENAI_ARCHITECTURES:
        raise UnsupportedError(
            "architecture-unsupported",
            f"OpenVINO GenAI reads no GGUF files of the architecture {architecture}",
            context={"architecture": architecture, "known": list(GENAI_ARCHITECTURES)},
            hint=f"use {GGUF_FRONTEND}, or build from the Hugging Face form",
        )


def _deviations(name: str, header: GgufFile) -> Iterator[TensorDeviation]:
    reader = "OpenVINO GenAI" if name == GGUF_DIRECT else "OpenVINO's GGUF frontend"
    rounded = _WITH_MINIMUM if name == GGUF_DIRECT else _K_WITH_MINIMUM
    for tensor in header.tensors:
        if tensor.type in rounded:
            kind = tensor.type.name.lower()
            yield TensorDeviation(
                tensor=tensor.name,
                asked=kind,
                got="int4-g32-asym-f16" if tensor.type is GgmlType.Q4_1 else f"{kind}, rounded",
                reason=f"{reader} rounds the float minimum to an integer zero point",
            )
