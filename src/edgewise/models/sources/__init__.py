"""Where checkpoints come from: references, verified downloads, and the named models."""

from __future__ import annotations

from edgewise.models.sources.assemble import FetchedPart, Pins
from edgewise.models.sources.download import DownloadPolicy, DownloadResult, download
from edgewise.models.sources.fetch import FetchedCheckpoint, fetch
from edgewise.models.sources.progress import FetchCancelledError, Phase, Progress
from edgewise.models.sources.reference import CheckpointReference, parse_reference
from edgewise.models.sources.registry import RegistryModel, default_model, registry_models

__all__ = [
    "CheckpointReference",
    "DownloadPolicy",
    "DownloadResult",
    "FetchCancelledError",
    "FetchedCheckpoint",
    "FetchedPart",
    "Phase",
    "Pins",
    "Progress",
    "RegistryModel",
    "default_model",
    "download",
    "fetch",
    "parse_reference",
    "registry_models",
]
