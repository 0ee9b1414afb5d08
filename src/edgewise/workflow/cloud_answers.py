"""A destination's answer as an outcome, with its placeholders restored.

What a destination does not say is unknown. Its failure is a failure; nobody else is asked.
"""

from __future__ import annotations

from collections.abc import Callable

from edgewise.core.outcome import (
    Completed,
    Event,
    Failed,
    Outcome,
    Provenance,
    Timings,
    TokenCounts,
)
from edgewise.core.quantity import Quantity, Unknown
from edgewise.route.cloud import CloudAnswer, CloudFailure
from edgewise.route.outgoing import Outgoing
from edgewise.route.permits import CloudPermit
from edgewise.workflow.asking import Asking

__all__ = ["ask_destination"]

_ELSEWHERE = "it ran at the destination, which does not say"


def ask_destination(
    asking: Asking,
    permit: CloudPermit,
    provenance: Provenance,
    *,
    on_text: Callable[[str], None] | None,
) -> Outcome:
    """Send what a permit was given for; return the answer, or the failure with what was shown."""
    outgoing = asking.outgoing
    restorer, shown = outgoing.restorer(), []

    def show(piece: str) -> None:
        if piece:
            shown.append(piece)
            if on_text is not None:
                on_text(piece)

    found = asking.ask(permit, lambda piece: show(restorer.feed(piece)))
    show(restorer.flush())
    events = (*outgoing.minimised.events, *found.events, *restorer.events)
    if isinstance(found, CloudFailure):
        return Failed(
            error=found.error,
            partial_text="".join(shown),
            provenance=provenance,
            events=events,
        )
    return _completed(found, "".join(shown), outgoing, provenance, events)


def _completed(
    found: CloudAnswer,
    text: str,
    outgoing: Outgoing,
    provenance: Provenance,
    events: tuple[Event, ...],
) -> Completed:
    unknown = Unknown(reason=_ELSEWHERE)
    calls, happened = outgoing.restored_calls(found.tool_calls)
    return Completed(
        text=text,
        finish=found.finish,
        tokens=TokenCounts(
            prompt=_count(found.usage.prompt_tokens),
            reused=0,
            completion=_count(found.usage.completion_tokens),
        ),
        timings=Timings(
            queue_ms=unknown,
            prefill_ms=unknown,
            ttft_ms=found.timings.ttft_ms,
            decode_ms=unknown,
            total_ms=found.timings.total_ms,
            decode_tok_s=unknown,
        ),
        provenance=provenance,
        events=(*events, *happened),
        tool_calls=calls,
    )


def _count(quantity: Quantity) -> int | None:
    return None if isinstance(quantity, Unknown) else int(quantity.number)
