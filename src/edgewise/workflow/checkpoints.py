"""Checkpoints of a home: fetched once, kept by content, described from their own metadata."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgewise.core.bundle import TextSettings
from edgewise.core.canonical import canonical_json, is_digest
from edgewise.core.fingerprint import CheckpointIdentity
from edgewise.errors import EdgewiseError, IntegrityError, UnsupportedError
from edgewise.models.architecture import ModelShape, model_shape
from edgewise.models.gguf import read_gguf
from edgewise.models.sources import default_model, fetch, parse_reference, registry_models
from edgewise.models.sources.files import folder_of, is_folder
from edgewise.models.sources.reference import CheckpointReference, FileReference
from edgewise.models.template import ChatTemplate, chat_template
from edgewise.models.tokenizer import TokenizerIdentity, tokenizer_identity
from edgewise.store import trees
from edgewise.workflow.context import Context, Step

if TYPE_CHECKING:
    from edgewise.models.gguf_types import GgufFile
    from edgewise.models.sources import FetchedCheckpoint, Progress

__all__ = ["Checkpoint", "Description", "describe", "fetch_checkpoint", "text_settings"]


_HF_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.*",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "*.safetensors",
    "*.safetensors.index.json",
    "LICEN*",
    "NOTICE*",
)
_PROBE_TEXT = "Is the ferry late today?"


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record of a checkpoint in the store.

    Attributes:
        reference: What was asked for.
        revision: The immutable revision that was got.
        sha256: Digest of the file, under which its blob lies.
        size_bytes: Size of the file.
        pinned: Whether the digest was known beforehand; otherwise it is trusted on first use.
        licence: Licence the source states, if any.
    """

    schema_version: int = 1
    reference: str
    revision: str
    sha256: str
    size_bytes: int
    pinned: bool
    licence: str | None = None

    @property
    def identity(self) -> CheckpointIdentity:
        """Return what the fingerprint covers."""
        return CheckpointIdentity(
            reference=self.reference, revision=self.revision, sha256=self.sha256
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a model's file says. ``shape`` is ``None`` where no shape rules exist."""

    file: GgufFile
    shape: ModelShape | None
    shape_missing: str
    tokenizer: TokenizerIdentity


def fetch_checkpoint(context: Context, model: str | None, *, offline: bool = False) -> Checkpoint:
    """Return the checkpoint a reference names, fetched if the home does not have it.

    A reference that names immutable content (a registry model, a pinned version) is served from
    the home without asking anybody.

    Args:
        context: Home and report.
        model: Reference as :func:`parse_reference` takes it; ``None`` for the default model.
        offline: Use no network.

    Raises:
        InputError: the reference is malformed or names nothing.
        IntegrityError: the bytes are not what was promised, or no sound model.
        RemoteError: the source failed.
        ResourceError: the disk is full or cannot be written, or a lock timed out.
    """
    reference = parse_reference(model or default_model())
    if (known := _reusable(context, reference)) is not None:
        return known

    def waiting() -> None:
        message = "waiting for another process that is fetching it"
        context.report(Step(stage="fetch", status="note", message=message))

    with context.home.lock(f"fetch-{_key(reference.canonical)[:16]}", on_wait=waiting):
        if (known := _reusable(context, reference)) is not None:
            return known  # the other process has just finished
        context.report(Step(stage="fetch", status="start", message=reference.canonical))
        if isinstance(reference, FileReference) and is_folder(reference):
            return _keep_folder(context, reference)
        fetched = fetch(
            reference,
            context.home.folder("staging", "fetch"),
            progress=lambda p: context.report(_step(p)),
            offline=offline,
        )
        return _keep(context, fetched)


def _reusable(context: Context, reference: CheckpointReference) -> Checkpoint | None:
    """Return the stored checkpoint of a reference, verified, if it can stand for it."""
    known = _known(context, reference.canonical)
    if known is None or isinstance(reference, FileReference):
        return None  # a local file may have changed since
    try:
        trees.verified_path(context.home, known.sha256)
    except IntegrityError as error:
        message = f"{error.message}; it is fetched again"
        context.report(Step(stage="fetch", status="note", message=message))
        return None
    context.report(Step(stage="fetch", status="reused", message=_describe(known)))
    return known


def _keep(context: Context, fetched: FetchedCheckpoint) -> Checkpoint:
    checkpoint = Checkpoint(
        reference=fetched.reference,
        revision=fetched.revision,
        sha256=fetched.sha256,
        size_bytes=fetched.size_bytes,
        pinned=fetched.pinned,
        licence=fetched.licence,
    )
    try:
        read_gguf(fetched.path)  # nothing hostile gets a place in the store
    except EdgewiseError:
        fetched.path.unlink(missing_ok=True)
        raise
    context.home.adopt(fetched.path, fetched.sha256)
    return _remember(context, checkpoint)


def _keep_folder(context: Context, reference: FileReference) -> Checkpoint:
    """Copy what a checkpoint in the HF form consists of; code and pickles stay outside."""
    from edgewise.models.hf_form import read_hf  # noqa: PLC0415 - only this form needs it

    folder = folder_of(reference)
    licence = read_hf(folder).free_texts.get("licence")
    entries = trees.index_names(
        folder,
        (
            path.name
            for path in folder.iterdir()
            if any(fnmatch(path.name, kind) for kind in _HF_FILES)
        ),
    )
    sha256 = trees.tree_digest(entries)
    if reference.sha256 not in {None, sha256}:
        raise IntegrityError(
            "digest-mismatch",
            f"{folder} is not what its reference pins",
            context={"expected": reference.sha256, "actual": sha256},
            hint="use the right folder, or leave the pin out",
        )
    trees.copy_in(context.home, folder, entries)
    checkpoint = Checkpoint(
        reference=reference.canonical,
        revision=f"sha256:{sha256}",
        sha256=sha256,
        size_bytes=sum(entry.size_bytes for entry in entries),
        pinned=reference.sha256 is not None,
        licence=licence,
    )
    return _remember(context, checkpoint)


def _remember(context: Context, checkpoint: Checkpoint) -> Checkpoint:
    path = context.home.root / "checkpoints" / f"{_key(checkpoint.reference)}.json"
    context.home.write(path, canonical_json(checkpoint))
    context.report(Step(stage="fetch", status="done", message=_describe(checkpoint)))
    return checkpoint


def describe(path: Path) -> Description:
    """Return what a model's file says about itself.

    Raises:
        InputError: there is no such file.
        IntegrityError: it is no sound model file.
    """
    if path.is_dir():
        return _describe_folder(path)
    file = read_gguf(path)
    shape: ModelShape | None = None
    missing = ""
    try:
        shape = model_shape(file)
    except UnsupportedError as error:
        missing = error.message
    return Description(
        file=file, shape=shape, shape_missing=missing, tokenizer=tokenizer_identity(file)
    )


def _describe_folder(path: Path) -> Description:
    from edgewise.models.hf_form import read_hf  # noqa: PLC0415 - only this form needs it

    checkpoint = read_hf(path)
    return Description(
        file=checkpoint.view,
        shape=checkpoint.shape,
        shape_missing="",
        tokenizer=checkpoint.tokenizer,
    )


def text_settings(description: Description, *, template: str | None = None) -> TextSettings:
    """Return how messages become tokens for this model.

    Args:
        description: The model.
        template: Name of a built-in template to use when the model has none.

    Raises:
        UnsupportedError: the model has no template and none was named.
        IntegrityError: its template or tokenizer is malformed, or the template loses what the
            user says.
    """
    chosen = chat_template(description.file, allow_builtin=template)
    tokenizer = description.tokenizer
    by_id = {number: text for text, number in tokenizer.special_tokens.items()}
    bos = "" if tokenizer.bos_id is None else by_id.get(tokenizer.bos_id, "")
    eos = "" if tokenizer.eos_id is None else by_id.get(tokenizer.eos_id, "")
    _check_template(chosen, bos_token=bos, eos_token=eos)
    if not tokenizer.end_token_ids:
        raise IntegrityError(
            "end-token-missing",
            "the model names no token that ends an answer; it would run to the limit every time",
            context={"path": description.file.path},
        )
    return TextSettings(
        template_name=chosen.name,
        template_source=chosen.source,
        bos_token=bos,
        eos_token=eos,
        add_bos=_adds_bos(tokenizer),
        end_token_ids=tokenizer.end_token_ids,
        special_tokens=tuple(sorted(tokenizer.special_tokens)),
    )


def _check_template(template: ChatTemplate, *, bos_token: str, eos_token: str) -> None:
    """Refuse a template that does not carry the user's words into the prompt.

    Rendering also finds a template that is invalid, unsafe or never ends, before anything is
    built on it.
    """
    rendered = template.render(
        [{"role": "user", "content": _PROBE_TEXT}], bos_token=bos_token, eos_token=eos_token
    )
    if _PROBE_TEXT not in rendered:
        raise IntegrityError(
            "template-loses-message",
            f"the chat template ({template.name}) leaves the user's message out of the prompt",
            hint="every answer would ignore the question; use another checkpoint",
        )


def _adds_bos(tokenizer: TokenizerIdentity) -> bool:
    if tokenizer.add_bos is not None:
        return tokenizer.add_bos
    return tokenizer.kind == "llama"  # llama.cpp's default for SentencePiece vocabularies


def _known(context: Context, reference: str) -> Checkpoint | None:
    path = context.home.root / "checkpoints" / f"{_key(reference)}.json"
    try:
        checkpoint = msgspec.json.decode(path.read_bytes(), type=Checkpoint)
    except OSError:
        return None
    except msgspec.MsgspecError as error:
        raise IntegrityError(
            "checkpoint-record-corrupt",
            f"the record of {reference} is damaged",
            context={"path": str(path)},
            hint="remove the file; the model is then fetched again",
        ) from error
    return checkpoint if is_digest(checkpoint.sha256) else None


def _key(reference: str) -> str:
    import hashlib  # noqa: PLC0415

    return hashlib.sha256(reference.encode()).hexdigest()


def _describe(checkpoint: Checkpoint) -> str:
    trust = "digest pinned" if checkpoint.pinned else "digest trusted on first use"
    return f"{checkpoint.reference}, SHA-256 {checkpoint.sha256[:12]}, {trust}"


def _step(progress: Progress) -> Step:
    message = progress.note or str(progress.phase)
    return Step(
        stage="fetch",
        status="note" if progress.note else "progress",
        message=message,
        done=progress.done_bytes,
        total=progress.total_bytes,
        unit="bytes",
    )


def model_name(model: str | None) -> str:
    """Return a display name for a reference."""
    known = registry_models()
    name = model or default_model()
    return known[name].title if name in known else name
