"""The draft model of a deployment: whether it goes with the model, and what it is built into."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from edgewise.build import BuildReceipt
from edgewise.core.fingerprint import ArtifactIdentity, DraftIdentity
from edgewise.core.recipe import RunConfig
from edgewise.core.units import mib
from edgewise.errors import InputError
from edgewise.planner import DraftCandidate
from edgewise.run.pairing import refuse_draft
from edgewise.runtimes import registry
from edgewise.store import trees
from edgewise.workflow.candidate_setup import as_built
from edgewise.workflow.checkpoints import Checkpoint, Description, describe, fetch_checkpoint
from edgewise.workflow.context import Context

__all__ = [
    "Draft",
    "draft_candidate",
    "fetch_draft",
    "require_pair",
    "require_place",
    "require_smaller",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A draft model on its way into a deployment; ``receipt`` once it is built."""

    checkpoint: Checkpoint
    description: Description
    receipt: BuildReceipt | None = None
    artifact: Path | None = None

    @property
    def candidate(self) -> DraftCandidate:
        """Return what the planner needs to know about it."""
        return draft_candidate(self.description)

    @property
    def identity(self) -> DraftIdentity:
        """Return what the fingerprint covers of it."""
        assert self.receipt is not None
        return DraftIdentity(
            checkpoint=self.checkpoint.identity,
            recipe=self.receipt.recipe,
            artifact=ArtifactIdentity(
                format=self.receipt.format,
                sha256=self.receipt.sha256,
                size_bytes=self.receipt.size_bytes,
            ),
        )

    @property
    def licence(self) -> str:
        """Return the licence its source states."""
        metadata = self.description.file.metadata
        stated = self.checkpoint.licence or metadata.get("general.license")
        return str(stated or "the source states none")

    def built(self, context: Context, receipt: BuildReceipt, *, model: BuildReceipt) -> Draft:
        """Return it with what it was built into.

        Raises:
            InputError: that is no smaller than the model's artifact.
        """
        require_smaller(
            self.checkpoint.reference,
            receipt.size_bytes,
            model.checkpoint.reference,
            model.size_bytes,
        )
        artifact = trees.path_of(context.home, receipt.sha256)
        description = as_built(self.description, receipt, artifact)
        return dataclasses.replace(
            self, description=description, receipt=receipt, artifact=artifact
        )


def fetch_draft(
    context: Context,
    reference: str,
    *,
    model: str,
    description: Description,
    offline: bool = False,
) -> Draft:
    """Return a draft model for a model that is described, fetched if the home does not have it.

    Raises:
        InputError: its tokenizer is not the model's; the reference is malformed.
        IntegrityError: its bytes are not what was promised, or no sound model.
        RemoteError: the source failed.
        ResourceError: the disk is full or cannot be written.
    """
    checkpoint = fetch_checkpoint(context, reference, offline=offline)
    found = describe(trees.path_of(context.home, checkpoint.sha256))
    require_pair(checkpoint.reference, found, model, description)
    return Draft(checkpoint=checkpoint, description=found)


def draft_candidate(description: Description) -> DraftCandidate:
    """Return what the planner needs to know about a draft model."""
    return DraftCandidate(
        shape=description.shape,
        shape_missing=description.shape_missing,
        weights_bytes=sum(tensor.size_bytes for tensor in description.file.tensors),
    )


def require_place(runtime: str, parallel: int) -> None:
    """Refuse a draft model where there is no place for one; errors as ``refuse_draft``'s."""
    refuse_draft(registry.adapter(runtime), RunConfig(parallel=parallel))


def require_pair(draft_name: str, draft: Description, model_name: str, model: Description) -> None:
    """Refuse a draft model whose tokenizer is not the model's.

    Raises:
        InputError: their vocabularies or special tokens differ.
    """
    if draft.tokenizer.digest == model.tokenizer.digest:
        return
    raise InputError(
        "draft-vocabulary",
        f"the tokenizer of the draft model {draft_name} is not that of {model_name}: "
        f"{draft.tokenizer.n_tokens} and {model.tokenizer.n_tokens} tokens, digests "
        f"{draft.tokenizer.digest[:12]} and {model.tokenizer.digest[:12]}",
        context={
            "draft": draft_name,
            "draft_tokenizer_sha256": draft.tokenizer.digest,
            "model": model_name,
            "model_tokenizer_sha256": model.tokenizer.digest,
        },
        hint="a draft guesses the model's own tokens: use a smaller model of the same family, or "
        "the model itself with a smaller weight format (--draft-recipe)",
    )


def require_smaller(draft_name: str, draft_bytes: int, model_name: str, model_bytes: int) -> None:
    """Refuse a draft model that is no smaller than the model.

    Raises:
        InputError: it is as large or larger.
    """
    if draft_bytes < model_bytes:
        return
    raise InputError(
        "draft-too-large",
        f"the draft model {draft_name} has {mib(draft_bytes)}, and {model_name} has "
        f"{mib(model_bytes)}: its guesses could never pay",
        context={"draft_bytes": draft_bytes, "model_bytes": model_bytes},
        hint="use a smaller model, or a smaller weight format (--draft-recipe)",
    )
