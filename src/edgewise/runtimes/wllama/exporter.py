"""wllama runs GGUF files: a checkpoint in that form is taken over as it is."""

from __future__ import annotations

import collections
import shutil
from pathlib import Path

from edgewise.core.recipe import Recipe
from edgewise.errors import UnsupportedError
from edgewise.models.gguf import read_gguf
from edgewise.runtimes.browser.packages import WLLAMA
from edgewise.runtimes.reports import ExportResult
from edgewise.runtimes.wllama.site import FILE_BYTES_MAX, refuse_too_large
from edgewise.store.home import storage_error

__all__ = ["WllamaExporter"]

_AS_IS = "as-is"
_FILE = "model.gguf"


class WllamaExporter:
    """Copies a GGUF file that a browser can take."""

    name = "copy"

    def export(
        self,
        source: Path,
        destination: Path,
        recipe: Recipe,
        *,
        threads: int,  # noqa: ARG002 - a copy uses none
        calibration: Path | None = None,  # noqa: ARG002 - nothing is calibrated
    ) -> ExportResult:
        """Write ``model.gguf`` and return what was made.

        Raises:
            UnsupportedError: the recipe wants another format than the source's, or the file is
                larger than a browser takes.
            IntegrityError: the source is no sound GGUF file.
            ResourceError: the file cannot be written, or the disk is full.
        """
        stated = (recipe.embedding, recipe.output, recipe.activation, recipe.method)
        if recipe.weights != _AS_IS or recipe.overrides or any(stated):
            raise UnsupportedError(
                "recipe-unsupported",
                f"wllama takes GGUF files as they are and cannot honour {recipe.name!r}",
                context={"runtime": "wllama", "nearest": _AS_IS, "offered": [_AS_IS]},
                hint="the nearest it offers is as-is: build that format for llamacpp first, and "
                "give the file it makes to wllama",
            )
        file = read_gguf(source)
        refuse_too_large(source)
        target = destination / _FILE
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            target.unlink(missing_ok=True)
            raise storage_error(error, target, "copying the artifact") from error
        size = target.stat().st_size
        return ExportResult(
            format="gguf",
            exporter=self.name,
            version=WLLAMA.version,
            resolved=None,
            copied=True,
            types=dict(collections.Counter(t.type.name.lower() for t in file.tensors)),
            tools={WLLAMA.name: WLLAMA.version},
            notes=(f"one file of {size} bytes; a browser takes up to {FILE_BYTES_MAX}",),
        )
