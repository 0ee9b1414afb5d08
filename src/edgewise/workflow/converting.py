"""Convert a checkpoint between its two forms, for a person's own use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from edgewise.errors import InputError
from edgewise.models import hf_form
from edgewise.store import trees
from edgewise.store.home import storage_error
from edgewise.workflow.checkpoints import fetch_checkpoint
from edgewise.workflow.context import Context, Step

__all__ = ["ConvertReport", "ConvertRequest", "convert_checkpoint"]


class ConvertRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to convert.

    Attributes:
        model: Checkpoint reference, or ``None`` for the default model.
        form: ``hf`` (a folder) or ``gguf`` (a file).
        destination: Where to; must not exist.
        dtype: ``f32``, ``f16`` or ``bf16`` of the matrices.
        layers: Take only the first layers; only towards ``hf``.
        offline: Use no network.
    """

    model: str | None
    form: str
    destination: str
    dtype: str = "f32"
    layers: int | None = None
    offline: bool = False


class ConvertReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was made; ``dequantised`` says that the source's numbers were quantised."""

    path: str
    architecture: str
    layers: int
    dtype: str
    dequantised: bool
    tools: dict[str, str]
    notes: tuple[str, ...]


def convert_checkpoint(context: Context, request: ConvertRequest) -> ConvertReport:
    """Return the report of a conversion. A failed one leaves nothing behind.

    Raises:
        InputError: the destination exists, or the checkpoint has that form already.
        UnsupportedError: the architecture has no conversion, or a library is missing.
        IntegrityError: the checkpoint is not sound.
        ResourceError: the disk is full.
    """
    destination = Path(request.destination).expanduser().absolute()
    if os.path.lexists(destination):
        raise InputError(
            "destination-exists",
            f"{destination} exists already",
            hint="name a file or folder that does not exist",
        )
    checkpoint = fetch_checkpoint(context, request.model, offline=request.offline)
    source = trees.path_of(context.home, checkpoint.sha256)
    if source.is_dir() == (request.form == "hf"):
        raise InputError(
            "conversion-not-needed",
            f"the checkpoint is in the {request.form} form already",
            context={"path": str(source)},
            hint=f"it lies at {source}",
        )
    context.report(Step(stage="convert", status="start", message=f"to {request.form}"))
    made = _convert(source, destination, request)
    for note in made.notes:
        context.report(Step(stage="convert", status="note", message=note))
    return ConvertReport(
        path=str(destination),
        architecture=made.architecture,
        layers=made.n_layers,
        dtype=made.dtype,
        dequantised=made.dequantised,
        tools=made.tools,
        notes=made.notes,
    )


def _convert(source: Path, destination: Path, request: ConvertRequest) -> hf_form.Conversion:
    if request.form == "gguf":
        if request.layers is not None:
            raise InputError(
                "layers-need-hf",
                "layers can be left out only on the way to the HF form",
                hint="convert to hf with --layers first",
            )
        return hf_form.hf_to_gguf(source, destination, dtype=request.dtype)
    try:
        destination.mkdir(parents=True)
    except OSError as error:
        raise storage_error(error, destination, "making the folder") from error
    try:
        return hf_form.gguf_to_hf(source, destination, dtype=request.dtype, layers=request.layers)
    except BaseException:
        shutil.rmtree(destination, ignore_errors=True)
        raise
