"""The ``edgewise`` object of every answer: where it came from, why, how long it took, how sure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from edgewise.core.outcome import Completed, Event, Speculation, Timings
from edgewise.core.quantity import Measured, Quantity
from edgewise.core.signals import Escalation, Signals

__all__ = ["VERIFICATION", "About", "Telling", "verification"]

VERIFICATION: Final = "x-edgewise-verification"
_WORST_FIRST: Final[tuple[str, ...]] = ("unverified", "unjudged", "kept")


class About(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Edgewise says about an answer.

    Attributes:
        outcome: What became of the request; errors have this field too.
        route: Where it was made.
        reasons: Why there.
        destination: Where it was asked; left out of what was answered here.
        fingerprint: The deployment that answered; empty for a destination's answer.
        waited_ms: In this server's queue, before the timings below begin.
        timings: Times of the answer, each with its kind.
        events: What happened on the way and was not asked for.
        signals: How sure the model was, where the request asked for it.
        escalation: What a calibration makes of an answer whose task the policy escalates.
    """

    outcome: Literal["completed"]
    route: str
    reasons: tuple[str, ...]
    fingerprint: str
    runtime: str
    device: str
    template: str
    policy_version: str
    waited_ms: Quantity
    timings: Timings
    destination: str = ""
    seed: int | None = None
    memory_peak_bytes: dict[str, Quantity] = {}
    speculation: Speculation | None = None
    events: tuple[Event, ...] = ()
    signals: Signals | None = None
    escalation: Escalation | None = None


class Telling:
    """How the answers to one HTTP request are told.

    Args:
        with_signals: Whether the request asked for signals; they may be taken without that.
        remember: Called with an answer's id before the answer is told.
    """

    def __init__(
        self,
        *,
        with_signals: bool = False,
        remember: Callable[[str, Completed], None] = lambda _id, _outcome: None,
    ) -> None:
        self._with_signals = with_signals
        self._remember = remember

    def about(self, answer_id: str, outcome: Completed, waited_s: float) -> About:
        """Return what is to be said about an answer."""
        self._remember(answer_id, outcome)
        provenance = outcome.provenance
        return About(
            outcome="completed",
            route=str(provenance.route.route),
            reasons=provenance.route.reasons,
            fingerprint=provenance.fingerprint,
            runtime=provenance.runtime,
            device=provenance.device,
            template=provenance.template,
            policy_version=provenance.policy_version,
            waited_ms=Measured(value=round(waited_s * 1e3, 3), source="server clock"),
            timings=outcome.timings,
            destination=provenance.route.destination,
            seed=provenance.seed,
            memory_peak_bytes=outcome.memory_peak_bytes,
            speculation=outcome.speculation,
            events=outcome.events,
            signals=outcome.signals if self._with_signals else None,
            escalation=outcome.escalation,
        )


def verification(outcomes: Iterable[Completed]) -> list[tuple[str, str]]:
    """Return the header that says whether answers may be taken as they are; the worst one counts.

    There is none where nothing judges answers.
    """
    found = {_word(one.escalation) for one in outcomes if one.escalation is not None}
    return [(VERIFICATION, word) for word in _WORST_FIRST if word in found][:1]


def _word(escalation: Escalation) -> str:
    if not escalation.judged:
        return "unjudged"
    return "unverified" if escalation.suggested else "kept"
