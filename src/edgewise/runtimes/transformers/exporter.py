"""The exporter: the checkpoint itself, in 32-bit floats.

A checkpoint of that kind is copied; one in 16-bit floats is widened, which loses nothing.
"""

from __future__ import annotations

import collections
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from edgewise.core.recipe import Recipe, resolve
from edgewise.errors import InputError, UnsupportedError
from edgewise.models.hf_form import HfCheckpoint, read_hf
from edgewise.models.hf_form.dequantize import encode
from edgewise.models.hf_form.folder import HfTensor
from edgewise.models.hf_form.streams import hf_rows
from edgewise.models.hf_form.writers import PlannedTensor, write_safetensors
from edgewise.runtimes.reports import ExportResult
from edgewise.runtimes.transformers import native
from edgewise.runtimes.transformers.formats import FORMATS
from edgewise.store.home import storage_error
from edgewise.store.regular import open_regular

__all__ = ["FloatExporter"]

_TEXTS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_WEIGHTS = "model.safetensors"
_FLOAT32 = "F32"


class FloatExporter:
    """Takes a checkpoint over in 32-bit floats."""

    name = "hf-f32"

    def export(
        self,
        source: Path,
        destination: Path,
        recipe: Recipe,
        *,
        threads: int,  # noqa: ARG002 - copying takes one
        calibration: Path | None = None,
    ) -> ExportResult:
        """Write the artifact into the empty folder ``destination`` and return what was made.

        Raises:
            InputError: a calibration set was given, which nothing here would use.
            UnsupportedError: the recipe asks for anything but 32-bit floats, or the checkpoint's
                architecture has no rules.
            IntegrityError: the checkpoint is not sound.
            ResourceError: the disk is full or failed.
        """
        if calibration is not None:
            raise InputError(
                "calibration-unused", "32-bit floats are not calibrated", hint="leave the set out"
            )
        if recipe.overrides:
            raise UnsupportedError(
                "overrides-unsupported",
                "the reference takes no formats for single tensors",
                hint="leave the overrides out",
            )
        offer = resolve(recipe, FORMATS, runtime="transformers")
        checkpoint = read_hf(source)
        dtypes = collections.Counter(one.info.dtype.lower() for one in checkpoint.tensors.values())
        copied = set(dtypes) == {_FLOAT32.lower()}
        try:
            for name in _TEXTS:
                if (source / name).is_file():
                    shutil.copyfile(source / name, destination / name)
            if copied:
                _copy_weights(checkpoint, destination)
            else:
                _widen(checkpoint, destination)
        except OSError as error:
            raise storage_error(error, destination, "copying the checkpoint") from error
        widened = sum(dtypes.values()) - dtypes[_FLOAT32.lower()]
        return ExportResult(
            format="hf",
            exporter=self.name,
            version=native.installed_version() or "not-installed",
            resolved=offer,
            copied=copied,
            types={_FLOAT32.lower(): sum(dtypes.values())},
            notes=(f"{widened} tensors were widened to 32-bit floats",) if widened else (),
        )


def _copy_weights(checkpoint: HfCheckpoint, destination: Path) -> None:
    shards = {one.shard for one in checkpoint.tensors.values()}
    for shard in sorted(shards):
        shutil.copyfile(shard, destination / shard.name)
    index = checkpoint.folder / f"{_WEIGHTS}.index.json"
    if {shard.name for shard in shards} != {_WEIGHTS}:
        shutil.copyfile(index, destination / index.name)


def _widen(checkpoint: HfCheckpoint, destination: Path) -> None:
    planned = [
        PlannedTensor(
            name=name,
            shape=one.info.shape,
            dtype=_FLOAT32,
            pieces=partial(_wide_pieces, one),
        )
        for name, one in checkpoint.tensors.items()
    ]
    write_safetensors(destination / _WEIGHTS, planned, {"format": "pt", **checkpoint.free_texts})


def _wide_pieces(tensor: HfTensor) -> Iterator[bytes]:
    with open_regular(tensor.shard) as stream:
        for rows in hf_rows(stream, tensor.info):
            yield encode(rows, _FLOAT32, tensor=tensor.info.name)
