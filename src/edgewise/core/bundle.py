"""The bundle: the complete set that is activated together, and its text settings."""

from __future__ import annotations

import hashlib

import msgspec

from edgewise.core.canonical import digest_of
from edgewise.core.fingerprint import Deployment
from edgewise.core.ledger import MemoryLedger
from edgewise.errors import IntegrityError

__all__ = ["Bundle", "TextSettings"]

# What else lies in a bundle's folder, and names that lead out of it.
_TAKEN_NAMES = frozenset({"", ".", "..", "manifest.json", "template.jinja", "NOTICE.txt"})


class TextSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How messages become tokens and when an answer ends.

    Attributes:
        template_name: Where the template came from; reported in every answer.
        template_source: The Jinja text.
        bos_token: Text of the begin token, empty if there is none.
        eos_token: Text of the end token, empty if there is none.
        add_bos: Whether the tokenizer puts the begin token in front.
        end_token_ids: Every token that ends the answer.
        special_tokens: Text of every control token.
    """

    template_name: str
    template_source: str
    bos_token: str
    eos_token: str
    add_bos: bool
    end_token_ids: tuple[int, ...]
    special_tokens: tuple[str, ...]

    @property
    def template_sha256(self) -> str:
        """Return the digest of the template's text."""
        return hashlib.sha256(self.template_source.encode()).hexdigest()

    @property
    def special_tokens_sha256(self) -> str:
        """Return the digest of everything here but the template."""
        return digest_of(
            [
                self.bos_token,
                self.eos_token,
                self.add_bos,
                list(self.end_token_ids),
                list(self.special_tokens),
            ]
        )


class Bundle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lies in ``bundles/<fingerprint>/``, apart from the artifact's bytes.

    Attributes:
        model: Display name of the model.
        deployment: Everything the fingerprint covers.
        text: Text settings; their digests are part of the deployment.
        memory: The plan's ledger for the run configuration.
        artifact_name: File name of the artifact in the bundle.
        notice: Licence notice of the model.
        evidence: Digests of the evidence that led to activation.
        draft_name: File name of the draft model's artifact; empty where there is none.
    """

    schema_version: int = 1
    model: str
    deployment: Deployment
    text: TextSettings
    memory: MemoryLedger
    artifact_name: str
    notice: str
    evidence: tuple[str, ...] = ()
    draft_name: str = ""

    def __post_init__(self) -> None:
        identity = self.deployment.text
        if (
            self.text.template_sha256 != identity.template_sha256
            or self.text.special_tokens_sha256 != identity.special_tokens_sha256
        ):
            raise IntegrityError(
                "bundle-text-mismatch",
                "the bundle's template or special tokens are not those of its fingerprint",
            )
        names = [self.artifact_name]
        if self.deployment.draft is not None or self.draft_name:
            names.append(self.draft_name)
            if self.deployment.draft is None or self.draft_name == self.artifact_name:
                raise IntegrityError(
                    "bundle-invalid", "the bundle's draft model is not that of its fingerprint"
                )
        if any(name in _TAKEN_NAMES or any(c in "/\\:\0" for c in name) for name in names):
            raise IntegrityError("bundle-invalid", "the bundle's artifact name is not a file name")

    @property
    def fingerprint(self) -> str:
        """Return the deployment fingerprint."""
        return self.deployment.fingerprint
