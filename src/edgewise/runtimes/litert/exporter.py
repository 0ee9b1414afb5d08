"""The exporter of both LiteRT runtimes: a ``.tflite`` or a ``.litertlm`` from a checkpoint.

One conversion makes the float model, a quantiser makes the format the recipe asks for, and what
came out is read back from the file and compared with it.
"""

from __future__ import annotations

import collections
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from edgewise.core.formats import OfferedFormat, TensorFormat
from edgewise.core.recipe import KvType, Recipe, resolve
from edgewise.errors import UnsupportedError
from edgewise.runtimes.hf_tokenizer import HfTokenizer
from edgewise.runtimes.litert import native
from edgewise.runtimes.litert.artifact import BUNDLE_FILE, MODEL_FILE, find_model
from edgewise.runtimes.litert.bundle import BundleText, write_bundle
from edgewise.runtimes.litert.chat import (
    SETTINGS_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    ChatSource,
    bundle_template,
    needs_start_token,
    read_chat_source,
)
from edgewise.runtimes.litert.conversion import Checkpoint, convert, read_checkpoint
from edgewise.runtimes.litert.flatbuffer import Matrix, open_model
from edgewise.runtimes.litert.formats import FORMATS, PLANS
from edgewise.runtimes.litert.quantise import quantise
from edgewise.runtimes.reports import ExportResult, TensorDeviation
from edgewise.store.home import storage_error

__all__ = ["LiteRtExporter"]


class LiteRtExporter:
    """Exports with litert-torch and ai-edge-quantizer."""

    name = "litert-torch"

    def __init__(self, runtime: str, *, bundle: bool) -> None:
        """Make an exporter.

        Args:
            runtime: Name of the runtime it works for.
            bundle: Whether to write a LiteRT-LM bundle instead of the bare model.
        """
        self._runtime = runtime
        self._bundle = bundle

    def export(
        self,
        source: Path,
        destination: Path,
        recipe: Recipe,
        *,
        threads: int,
        calibration: Path | None = None,  # noqa: ARG002 - no format here calibrates
    ) -> ExportResult:
        """Write the artifact and return what was made, formats read back from the file.

        Raises:
            InputError: the source is no HF checkpoint, or has no chat template for a bundle.
            IntegrityError: the source's files are damaged.
            UnsupportedError: the recipe or the architecture cannot be exported, or the exporter
                is not installed.
            AdapterError: the converter, the quantiser or the builder failed.
            ResourceError: memory or disk ran out.
        """
        offer = resolve(recipe, FORMATS, runtime=self._runtime)
        _refuse_rest(recipe, self._runtime)
        checkpoint = read_checkpoint(source)
        context_length = checkpoint.context_length(recipe.context_length)
        chat = read_chat_source(source) if self._bundle else None
        native.require_export(bundle=self._bundle)
        with tempfile.TemporaryDirectory(dir=destination, prefix=".work-") as folder:
            work = Path(folder)
            model = convert(checkpoint, work, context_length=context_length, threads=threads)
            return self.finish(
                model, checkpoint, chat, destination, offer, context_length=context_length
            )

    def finish(
        self,
        float_model: Path,
        checkpoint: Checkpoint,
        chat: ChatSource | None,
        destination: Path,
        offer: OfferedFormat,
        *,
        context_length: int,
    ) -> ExportResult:
        """Write the artifact from a converted float model.

        Args:
            float_model: What :func:`convert` wrote; its folder may be used for more.
            checkpoint: The source.
            chat: Its template and tokens, for a bundle.
            destination: Folder of the artifact.
            offer: The format to make.
            context_length: Tokens the model's KV cache holds.

        Raises:
            AdapterError: the quantiser or the builder failed.
            ResourceError: memory or disk ran out.
        """
        model = float_model
        if offer.name in PLANS:
            model = float_model.with_name("quantised.tflite")
            quantise(float_model, model, PLANS[offer.name])
        matrices = open_model(find_model(model)).matrices()
        try:
            for name in (TOKENIZER_FILE, TEMPLATE_FILE, SETTINGS_FILE):
                if name == TOKENIZER_FILE or (chat and (checkpoint.folder / name).is_file()):
                    shutil.copyfile(checkpoint.folder / name, destination / name)
            if chat is None:
                shutil.copyfile(model, destination / MODEL_FILE)
        except OSError as error:
            raise storage_error(error, destination, "copying the artifact") from error
        if chat is not None:
            write_bundle(
                model,
                checkpoint.folder / TOKENIZER_FILE,
                destination / BUNDLE_FILE,
                _bundle_text(checkpoint, chat),
                context_length=context_length,
                n_layers=checkpoint.n_layers,
            )
        return ExportResult(
            format="litertlm" if self._bundle else "tflite",
            exporter=self.name,
            version=native.installed_version("litert-torch") or "not-installed",
            resolved=offer,
            context_length=context_length,
            types=dict(collections.Counter(str(m.format) for m in _stored(matrices))),
            deviations=tuple(_deviations(matrices, offer)),
            tools=native.tools(bundle=self._bundle),
            notes=_notes(checkpoint),
        )


def _refuse_rest(recipe: Recipe, runtime: str) -> None:
    if recipe.kv not in {None, KvType.F32}:
        raise UnsupportedError(
            "kv-type-unsupported",
            f"{runtime} exports a float32 KV cache; the recipe asks for {recipe.kv}",
            hint="leave it out, or ask for f32",
        )
    if recipe.overrides:
        raise UnsupportedError(
            "overrides-unsupported",
            f"{runtime} takes no formats for single tensors",
            hint="state weights, embedding and output instead",
        )


def _bundle_text(checkpoint: Checkpoint, chat: ChatSource) -> BundleText:
    tokenizer = HfTokenizer(checkpoint.folder)

    def encode(text: str, add_special: bool) -> list[int]:
        return tokenizer.tokenize(text, add_special=add_special, parse_special=True)

    start = needs_start_token(chat, encode)
    return BundleText(
        template=bundle_template(chat),
        start_token_id=encode(chat.bos_token, False)[0] if start else None,
        stop_token_ids=checkpoint.stop_token_ids,
    )


def _stored(matrices: Iterable[Matrix]) -> list[Matrix]:
    """Return one matrix per buffer: a tied head is stored once."""
    return list({matrix.buffer: matrix for matrix in matrices}.values())


def _deviations(matrices: Iterable[Matrix], offer: OfferedFormat) -> Iterable[TensorDeviation]:
    wanted: dict[str, TensorFormat] = {
        "embedding": offer.embedding,
        "head": offer.output,
        "weights": offer.weights,
    }
    for matrix in matrices:
        if matrix.format != wanted[matrix.role]:
            yield TensorDeviation(
                tensor=matrix.name,
                asked=str(wanted[matrix.role]),
                got=str(matrix.format),
                reason="the quantiser left this matrix in another format",
            )


def _notes(checkpoint: Checkpoint) -> tuple[str, ...]:
    if checkpoint.stop_token_ids:
        return ()
    return ("the checkpoint names no end token; answers end at the token limit only",)
