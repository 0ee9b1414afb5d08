"""The pre-answer probe: read the prompt, take a few hidden tokens, and look at the signals.

What it costs is measured and reported. The prompt's KV cache stays, so that the answer that
follows in the same session reads only its last token again; the hidden tokens are generated a
second time, since nothing of them is handed out.
"""

from __future__ import annotations

import secrets
import time

import msgspec

from edgewise.core.outcome import Completed, Declined, Failed, TokenCounts
from edgewise.core.quantity import Measured, Quantity, Unknown
from edgewise.core.request import Request
from edgewise.core.signals import Signals
from edgewise.errors import InputError
from edgewise.run.session import Session

__all__ = ["PROBE_TOKENS", "Probe", "probe"]

PROBE_TOKENS = 4
_TOKENS_MAX = 64


class Probe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a probe found. It holds no text.

    Attributes:
        signals: Of the hidden tokens; ``None`` where there was no answer.
        request: What to ask now: the same request, with what is left of its deadline and, where
            tokens are drawn, with the seed that the probe drew with.
        tokens: Prompt, reused and hidden tokens.
        total_ms: What it cost, by the session's clock.
        prefill_ms: What of it was reading the prompt; the answer does not pay it again.
        refusal: The outcome where there was no answer: declined or failed.
    """

    signals: Signals | None
    request: Request
    tokens: TokenCounts | None
    total_ms: Quantity
    prefill_ms: Quantity
    refusal: Declined | Failed | None = None


def probe(session: Session, request: Request, *, tokens: int = PROBE_TOKENS) -> Probe:
    """Return the signals of the first tokens of an answer that nobody sees.

    Args:
        session: The one that will answer; between the two nothing else may be asked of it, or
            the prompt is read again.
        request: What will be asked. It is routed as every request is.
        tokens: Hidden tokens, 1 to 64.

    Raises:
        InputError: ``tokens`` is out of its range, or as :meth:`Session.ask`.
        IntegrityError: as :meth:`Session.ask`.
        UnsupportedError: as :meth:`Session.ask`, or the runtime gives text only.
    """
    if not 1 <= tokens <= _TOKENS_MAX:
        raise InputError(
            "request-invalid",
            f"a probe takes 1 to {_TOKENS_MAX} tokens, not {tokens!r}",
            context={"field": "tokens"},
            hint=f"a few do: {PROBE_TOKENS} by default",
        )
    started = time.perf_counter()
    if request.sampling.temperature > 0 and request.sampling.seed is None:
        seeded = msgspec.structs.replace(request.sampling, seed=secrets.randbits(63))
        request = msgspec.structs.replace(request, sampling=seeded)
    hidden = msgspec.structs.replace(
        request,
        max_tokens=tokens if request.max_tokens is None else min(tokens, request.max_tokens),
        signals=True,
        logprobs=None,
        echo=False,
        speculate=False,
    )
    outcome = session.ask(hidden)
    spent_s = time.perf_counter() - started
    total = Measured(value=round(spent_s * 1e3, 3), source="session clock")
    if request.deadline_s is not None:
        left = max(0.001, request.deadline_s - spent_s)
        request = msgspec.structs.replace(request, deadline_s=left)
    if isinstance(outcome, Completed):
        return Probe(
            signals=outcome.signals,
            request=request,
            tokens=outcome.tokens,
            total_ms=total,
            prefill_ms=outcome.timings.prefill_ms,
        )
    return Probe(
        signals=None,
        request=request,
        tokens=None,
        total_ms=total,
        prefill_ms=Unknown(reason="there was no answer"),
        refusal=outcome,
    )
