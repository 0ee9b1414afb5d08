"""The ``.pte`` exporter: one program with prefill and decode, and what is needed to run it.

The artifact is a folder with ``model.pte``, ``tokenizer.json`` and ``export.json``. Nothing is
fetched: the checkpoint's folder is the only input.
"""

from __future__ import annotations

import collections
import shutil
import tempfile
from pathlib import Path
from typing import Final

from edgewise.core.formats import OfferedFormat
from edgewise.core.recipe import KvType, Recipe
from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    ResourceError,
    UnsupportedError,
)
from edgewise.runtimes.executorch import native
from edgewise.runtimes.executorch.checkpoint import Checkpoint, read_checkpoint
from edgewise.runtimes.executorch.formats import FORMATS, Target, choose_format, target_of
from edgewise.runtimes.executorch.lowering import STEP_TOKENS, lower
from edgewise.runtimes.executorch.pte import read_pte
from edgewise.runtimes.executorch.record import (
    PROGRAM,
    ExportRecord,
    partition_of,
    require_vocabulary,
    write_record,
)
from edgewise.runtimes.hf_tokenizer import HfTokenizer
from edgewise.runtimes.reports import ExportResult
from edgewise.store.home import storage_error

__all__ = ["CONTEXT_DEFAULT", "PteExporter"]

# Where a recipe states no context and the model was trained with more.
CONTEXT_DEFAULT: Final = 2048
_CONTEXT_MIN: Final = 8
_MATRICES_PER_LAYER: Final = 7
_OUT_OF_MEMORY: Final = ("not enough memory", "can't allocate memory", "Cannot allocate memory")


class PteExporter:
    """Writes ``.pte`` programs with ExecuTorch's own decoder and lowering."""

    name = "executorch-llama"

    def __init__(
        self,
        *,
        runtime: str = "executorch",
        formats: tuple[OfferedFormat, ...] = FORMATS,
        target: Target | None = None,
    ) -> None:
        """Take what to offer.

        Args:
            runtime: Name for refusals.
            formats: What is offered.
            target: The one backend of all formats; by default each format names its own.
        """
        self._runtime = runtime
        self._formats = formats
        self._target = target

    def export(
        self,
        source: Path,
        destination: Path,
        recipe: Recipe,
        *,
        threads: int,
        calibration: Path | None = None,
    ) -> ExportResult:
        """Write the artifact into ``destination`` and return what was made.

        Raises:
            InputError: the folder is no Hugging Face checkpoint, or a text is malformed.
            UnsupportedError: the recipe, the architecture or one of its settings cannot be
                exported.
            IntegrityError: the checkpoint is damaged.
            AdapterError: ExecuTorch's exporter failed.
            ResourceError: memory ran out, or the disk is full.
        """
        offer = choose_format(recipe, self._formats, runtime=self._runtime)
        target = self._target or target_of(offer.name)
        _refuse_rest(recipe, self._runtime)
        checkpoint = read_checkpoint(source.resolve())
        _check_groups(checkpoint, offer)
        tokenizer = source / "tokenizer.json"
        require_vocabulary(HfTokenizer(source), checkpoint.params["vocab_size"])
        context, notes = _context(recipe, checkpoint)
        if calibration is not None:
            notes.append("the calibration set was not used: no method of this runtime calibrates")
        method = recipe.method or offer.methods[0] if offer.weights.kind == "int" else ""
        native.quiet()
        record = self._lower(
            checkpoint, destination.resolve(), offer, target, method, context, threads
        )
        try:
            shutil.copyfile(tokenizer, destination / tokenizer.name)
            write_record(destination, record)
        except OSError as error:
            raise storage_error(error, destination, "writing the artifact") from error
        if checkpoint.tied and (target.name == "xnnpack" or offer.weights.kind == "int"):
            notes.append("the head is stored beside the embedding, though they are tied")
        return self._result(checkpoint, destination, offer, record, notes)

    def _lower(
        self,
        checkpoint: Checkpoint,
        destination: Path,
        offer: OfferedFormat,
        target: Target,
        method: str,
        context: int,
        threads: int,
    ) -> ExportRecord:
        work = Path(tempfile.mkdtemp(prefix=".work-", dir=destination))
        try:
            delegated = lower(
                checkpoint,
                offer,
                target,
                method=method,
                context_length=context,
                threads=threads,
                work=work,
                program=destination / PROGRAM,
            )
        except EdgewiseError:
            raise
        except MemoryError as error:
            raise _memory(error) from error
        except OSError as error:
            raise storage_error(error, destination, "exporting") from error
        except Exception as error:  # the libraries raise anything
            if any(words in str(error) for words in _OUT_OF_MEMORY):
                raise _memory(error) from error
            raise AdapterError(
                "export-failed",
                f"ExecuTorch's exporter failed: {type(error).__name__}: {str(error)[:400]}",
                context={"format": offer.name, "architecture": checkpoint.architecture},
                hint="report it with the checkpoint's config.json",
            ) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return ExportRecord(
            format=offer.name,
            backend=target.name,
            method=method,
            context_length=context,
            step_tokens=min(STEP_TOKENS, context - 1) if target.dynamic else 1,
            kv_bytes_per_token=checkpoint.kv_bytes_per_token,
            delegated=delegated,
        )

    def _result(
        self,
        checkpoint: Checkpoint,
        destination: Path,
        offer: OfferedFormat,
        record: ExportRecord,
        notes: list[str],
    ) -> ExportResult:
        program = read_pte(destination / PROGRAM)
        extra = ("coremltools",) if record.backend == "coreml" else ()
        return ExportResult(
            format="pte",
            exporter=self.name,
            version=native.installed_version() or "not-installed",
            resolved=offer,
            context_length=record.context_length,
            types=_types(checkpoint, offer),
            tools=native.tools(*extra),
            partition=partition_of(program, record),
            notes=tuple(notes),
        )


def _refuse_rest(recipe: Recipe, runtime: str) -> None:
    if recipe.kv not in {None, KvType.F32}:
        raise UnsupportedError(
            "kv-type-unsupported",
            f"{runtime} exports no {recipe.kv} KV cache",
            hint="its programs keep the KV cache in f32",
        )
    if recipe.overrides:
        raise UnsupportedError(
            "overrides-unsupported",
            f"{runtime} takes no formats for single tensors",
            hint="state weights, embedding and head",
        )


def _check_groups(checkpoint: Checkpoint, offer: OfferedFormat) -> None:
    for values in (offer.weights, offer.embedding, offer.output):
        for width in checkpoint.linear_widths:
            if values.group_size and width % values.group_size:
                raise UnsupportedError(
                    "group-size-unsupported",
                    f"rows of {width} values do not divide into groups of {values.group_size}",
                    hint="choose a format with one scale per row, e.g. 8da8w-channel",
                )


def _context(recipe: Recipe, checkpoint: Checkpoint) -> tuple[int, list[str]]:
    trained = checkpoint.context_length_trained
    context = recipe.context_length or min(CONTEXT_DEFAULT, trained or CONTEXT_DEFAULT)
    if context < _CONTEXT_MIN:
        raise UnsupportedError(
            "context-too-short", f"the shortest context is {_CONTEXT_MIN} tokens, not {context}"
        )
    if trained is not None and context > trained:
        return context, [f"the context of {context} is longer than the model's own {trained}"]
    return context, []


def _types(checkpoint: Checkpoint, offer: OfferedFormat) -> dict[str, int]:
    layers = checkpoint.params["n_layers"]
    types: collections.Counter[str] = collections.Counter()
    types[str(offer.weights)] += _MATRICES_PER_LAYER * layers
    types[str(offer.embedding)] += 1
    types[str(offer.output)] += 1
    vectors = 2 + (3 if "attention_qkv_bias" in checkpoint.params else 0)
    vectors += 2 if "use_qk_norm" in checkpoint.params else 0
    types["f32"] += vectors * layers + 1
    return dict(types)


def _memory(error: BaseException) -> ResourceError:
    return ResourceError(
        "export-out-of-memory",
        f"memory ran out while exporting: {str(error)[:200]}",
        hint="raise the worker's memory limit, or export on a larger machine",
    )
