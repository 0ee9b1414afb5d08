"""The ``edgewise`` object of every answer: where it came from, why, and how long it took."""

from __future__ import annotations

import msgspec

from edgewise.core.outcome import Completed, Event, Speculation, Timings
from edgewise.core.quantity import Measured, Quantity

__all__ = ["About", "about"]


class About(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Edgewise says about an answer.

    Attributes:
        route: Where it was made.
        reasons: Why there.
        fingerprint: The deployment that answered.
        waited_ms: In this server's queue, before the timings below begin.
        timings: Times of the answer, each with its kind.
        events: What happened on the way and was not asked for.
    """

    route: str
    reasons: tuple[str, ...]
    fingerprint: str
    runtime: str
    device: str
    template: str
    policy_version: str
    waited_ms: Quantity
    timings: Timings
    seed: int | None = None
    memory_peak_bytes: dict[str, Quantity] = {}
    speculation: Speculation | None = None
    events: tuple[Event, ...] = ()


def about(outcome: Completed, waited_s: float) -> About:
    """Return what is to be said about an answer."""
    provenance = outcome.provenance
    return About(
        route=str(provenance.route.route),
        reasons=provenance.route.reasons,
        fingerprint=provenance.fingerprint,
        runtime=provenance.runtime,
        device=provenance.device,
        template=provenance.template,
        policy_version=provenance.policy_version,
        waited_ms=Measured(value=round(waited_s * 1e3, 3), source="server clock"),
        timings=outcome.timings,
        seed=provenance.seed,
        memory_peak_bytes=outcome.memory_peak_bytes,
        speculation=outcome.speculation,
        events=outcome.events,
    )
