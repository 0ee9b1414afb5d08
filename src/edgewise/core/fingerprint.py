"""The deployment fingerprint: the identity under which all evidence is kept.

A :class:`Deployment` lists everything that can change what a user sees. Its fingerprint is the
SHA-256 of its canonical JSON, so two deployments that differ in any field never share evidence.
:func:`diff` says in words what differs and which evidence the difference invalidates.
"""

from __future__ import annotations

from typing import Any

import msgspec

from edgewise.core.canonical import digest_of
from edgewise.core.recipe import Recipe, RunConfig

__all__ = [
    "ArtifactIdentity",
    "CheckpointIdentity",
    "ComputeIdentity",
    "Deployment",
    "Difference",
    "DraftIdentity",
    "EnvironmentIdentity",
    "ExportIdentity",
    "PolicyIdentity",
    "RuntimeIdentity",
    "TextIdentity",
    "diff",
]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections of a deployment."""


class CheckpointIdentity(_Part, frozen=True, kw_only=True):
    """Where the weights came from: canonical reference, immutable revision, file digest."""

    reference: str
    revision: str
    sha256: str


class TextIdentity(_Part, frozen=True, kw_only=True):
    """Tokenizer, special tokens and prompt template, by digest; the template also by name."""

    tokenizer_sha256: str
    special_tokens_sha256: str
    template_name: str
    template_sha256: str


class ExportIdentity(_Part, frozen=True, kw_only=True):
    """Which exporter made the artifact, its version and the graph it exported."""

    exporter: str
    version: str
    graph: str


class ArtifactIdentity(_Part, frozen=True, kw_only=True):
    """The built file: format, digest, size."""

    format: str
    sha256: str
    size_bytes: int


class RuntimeIdentity(_Part, frozen=True, kw_only=True):
    """The runtime: version, and the digest of the native libraries that hold its operators."""

    name: str
    version: str
    operators: str


class ComputeIdentity(_Part, frozen=True, kw_only=True):
    """Backend delegate, its partition, and the run configuration.

    Attributes:
        backend: The delegate that was asked for.
        partition_sha256: Digest of the whole partition report.
        fallbacks: Operators that run elsewhere.
        precision: Precision settings in force, as the runtime told them.
        run_config: How the artifact is run.
    """

    backend: str
    partition_sha256: str
    fallbacks: tuple[str, ...] = ()
    precision: dict[str, str] = {}
    run_config: RunConfig


class EnvironmentIdentity(_Part, frozen=True, kw_only=True):
    """Operating system build, ABI, and device class (CPU model and instruction sets)."""

    os_build: str
    abi: str
    device_class: str


class DraftIdentity(_Part, frozen=True, kw_only=True):
    """The draft model beside the model: where it came from, what was made of it, and the bytes.

    It is run by the run configuration of the model itself.
    """

    checkpoint: CheckpointIdentity
    recipe: Recipe
    artifact: ArtifactIdentity


class PolicyIdentity(_Part, frozen=True, kw_only=True):
    """Routing, context and sampling policies, by version or digest."""

    routing: str
    context: str
    sampling: str


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the fingerprint covers. ``adapters`` holds merged adapter digests, in order.

    ``draft`` is left out of the fingerprint where there is none, so that those from before this
    field stay.
    """

    schema_version: int = 2
    checkpoint: CheckpointIdentity
    text: TextIdentity
    adapters: tuple[str, ...] = ()
    export: ExportIdentity
    recipe: Recipe
    artifact: ArtifactIdentity
    runtime: RuntimeIdentity
    compute: ComputeIdentity
    environment: EnvironmentIdentity
    policy: PolicyIdentity
    draft: DraftIdentity | None = None

    @property
    def fingerprint(self) -> str:
        """Return the deployment fingerprint, 64 hex digits."""
        return digest_of(self.identity)

    @property
    def identity(self) -> dict[str, Any]:
        """Return the facts whose canonical JSON the fingerprint is the digest of."""
        facts: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        config = facts["compute"]["run_config"]
        # A field that came later counts where it is used: older fingerprints stay what they were.
        if config["parallel"] == 1:
            del config["parallel"]
        if facts["draft"] is None:
            del facts["draft"]
        return facts


_EVIDENCE = ("parity", "smoke", "quality", "tuning", "bench", "memory", "calibration")

# Which evidence a change in a section invalidates, and why in words.
_INVALIDATES: dict[str, tuple[tuple[str, ...], str]] = {
    "schema_version": (_EVIDENCE, "the meaning of the fields changed"),
    "checkpoint": (_EVIDENCE, "other weights"),
    "text": (("parity", "smoke", "quality", "calibration"), "the model reads other tokens"),
    "adapters": (_EVIDENCE, "other weights"),
    "export": (
        ("parity", "smoke", "quality", "bench", "memory", "calibration"),
        "another graph",
    ),
    "recipe": (_EVIDENCE, "another quantisation"),
    "artifact": (_EVIDENCE, "other bytes"),
    "runtime": (_EVIDENCE, "other kernels"),
    "compute": (
        ("parity", "smoke", "tuning", "bench", "memory", "calibration"),
        "another compute policy",
    ),
    "environment": (
        ("parity", "smoke", "tuning", "bench", "memory", "calibration"),
        "another kind of device",
    ),
    "policy": (("smoke", "quality", "calibration"), "requests are handled otherwise"),
    "draft": (("smoke", "bench", "memory"), "tokens are guessed otherwise"),
}


class Difference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One field that differs, with what it means.

    Attributes:
        field: Dotted path of the field.
        before: Its value in the first deployment, as JSON data.
        after: Its value in the second.
        meaning: In words, why the difference matters.
        invalidates: Kinds of evidence that no longer hold and must be taken anew.
    """

    field: str
    before: Any
    after: Any
    meaning: str
    invalidates: tuple[str, ...]


def diff(before: Deployment, after: Deployment) -> tuple[Difference, ...]:
    """Return what differs between two deployments, in the order of the fields."""
    old, new = _flatten(before), _flatten(after)
    found = []
    for field in [*old, *(f for f in new if f not in old)]:
        if old.get(field) != new.get(field):
            kinds, meaning = _INVALIDATES[field.split(".")[0]]
            found.append(
                Difference(
                    field=field,
                    before=old.get(field),
                    after=new.get(field),
                    meaning=meaning,
                    invalidates=kinds,
                )
            )
    return tuple(found)


def _flatten(deployment: Deployment) -> dict[str, Any]:
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    walk("", msgspec.to_builtins(deployment))
    return flat
