"""From the results of the stages to a deployment with its fingerprint, and to a bundle."""

from __future__ import annotations

from edgewise.build import BuildReceipt
from edgewise.core.bundle import Bundle, TextSettings
from edgewise.core.canonical import digest_of
from edgewise.core.fingerprint import (
    ArtifactIdentity,
    ComputeIdentity,
    Deployment,
    EnvironmentIdentity,
    ExportIdentity,
    PolicyIdentity,
    RuntimeIdentity,
    TextIdentity,
)
from edgewise.core.ledger import MemoryLedger
from edgewise.core.quantity import Quantity, Unknown
from edgewise.core.recipe import RunConfig
from edgewise.device import DeviceProfile
from edgewise.route import DEFAULT_POLICY
from edgewise.run.messages import RuntimeFacts
from edgewise.runtimes.reports import PartitionReport
from edgewise.workflow.checkpoints import Checkpoint, Description
from edgewise.workflow.draft_setup import Draft

__all__ = ["make_bundle", "make_deployment"]


def make_deployment(
    device: DeviceProfile,
    *,
    checkpoint: Checkpoint,
    description: Description,
    text: TextSettings,
    receipt: BuildReceipt,
    run_config: RunConfig,
    partition: PartitionReport,
    runtime: RuntimeFacts,
    draft: Draft | None = None,
) -> Deployment:
    """Return the deployment that these parts make on this device."""
    return Deployment(
        checkpoint=checkpoint.identity,
        text=TextIdentity(
            tokenizer_sha256=description.tokenizer.digest,
            special_tokens_sha256=text.special_tokens_sha256,
            template_name=text.template_name,
            template_sha256=text.template_sha256,
        ),
        export=ExportIdentity(
            exporter=receipt.exporter,
            version=receipt.exporter_version,
            graph=str(description.file.metadata.get("general.architecture")),
        ),
        recipe=receipt.recipe,
        artifact=ArtifactIdentity(
            format=receipt.format, sha256=receipt.sha256, size_bytes=receipt.size_bytes
        ),
        runtime=RuntimeIdentity(
            name=runtime.name, version=runtime.version, operators=runtime.operators
        ),
        compute=ComputeIdentity(
            backend=partition.requested,
            partition_sha256=digest_of(partition),
            fallbacks=partition.fallbacks,
            precision=partition.precision,
            run_config=run_config,
        ),
        environment=EnvironmentIdentity(
            os_build=f"{_text(device.os.name)} {_text(device.os.build)}",
            abi=_text(device.abi.triple),
            device_class=f"{_text(device.cpu.model)} [{_text(device.cpu.instruction_sets)}]",
        ),
        policy=PolicyIdentity(
            routing=DEFAULT_POLICY.version, context="reject", sampling="per-request"
        ),
        draft=None if draft is None else draft.identity,
    )


def make_bundle(
    deployment: Deployment,
    *,
    checkpoint: Checkpoint,
    description: Description,
    text: TextSettings,
    memory: MemoryLedger,
    evidence: tuple[str, ...],
    draft: Draft | None = None,
) -> Bundle:
    """Return the bundle of a deployment, with its licence notices."""
    metadata = description.file.metadata
    name = str(metadata.get("general.name") or checkpoint.reference)
    licence = checkpoint.licence or metadata.get("general.license")
    notice = (
        f"{name}\nfrom {checkpoint.reference} ({checkpoint.revision})\n"
        f"licence: {licence or 'the source states none'}\n"
    )
    if draft is not None:
        source = draft.checkpoint
        notice += f"\ndraft model from {source.reference} ({source.revision})\n"
        notice += f"licence: {draft.licence}\n"
    return Bundle(
        model=name,
        deployment=deployment,
        text=text,
        memory=memory,
        artifact_name=f"model.{deployment.artifact.format}",
        notice=notice,
        evidence=evidence,
        draft_name="" if draft is None else f"draft.{draft.identity.artifact.format}",
    )


def _text(quantity: Quantity) -> str:
    if isinstance(quantity, Unknown):
        return "unknown"
    return " ".join(quantity.value) if isinstance(quantity.value, tuple) else str(quantity.value)
