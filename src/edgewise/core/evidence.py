"""Evidence: one statement about a subject, on a device, with its figures and what it cites.

Evidence is append-only and content-addressed: its digest is that of its canonical JSON, and a
correction is a new piece that cites the old one.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from edgewise.core.canonical import digest_of

__all__ = ["DEPLOYMENT_KINDS", "Evidence"]

# What is recorded about a deployment, and a policy can ask for.
DEPLOYMENT_KINDS: Final = (
    "activation",
    "artifact-bench",
    "calibration",
    "contract",
    "parity",
    "smoke",
)


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One piece of evidence.

    Attributes:
        kind: What it is evidence of: ``plan``, ``build``, ``tuning``, ``smoke``, ``memory``,
            ``bench``, ``activation``, ``device``.
        subject: The deployment fingerprint, or the artifact digest while no deployment exists.
        device: Digest of the device profile it was taken on.
        created: UTC time, ISO 8601 with seconds.
        producer: Package and version that wrote it.
        figures: Quantities and other JSON data, by name.
        cites: Digests of the evidence it builds on.
    """

    schema_version: int = 1
    kind: str
    subject: str
    device: str
    created: str
    producer: str
    figures: dict[str, Any]
    cites: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Return the identity of this piece, 64 hex digits."""
        return digest_of(self)
