"""The limits that parity is judged by: which apply to an artifact, and whether they hold.

An artifact that claims to carry its source's numbers (floats, or a file taken over as it is) is
held to rounding. One that quantises is held to what its bits were measured to cost; beyond 8 bits
that says little about answers, so 4-bit artifacts are only caught when they are broken, and task
quality has to decide.

Where the limits come from (SmolLM2 135M, teacher-forced, mean KL in nats / top-1): the same
weights on two instruction sets 0.003 to 0.007 / 0.95 to 0.99; float exports of three runtimes
below 0.004 / 0.96 against 8-bit activations, and 1e-6 / 1.0 among floats; int8 0.005 to 0.008;
4-bit over 4-bit 0.3 to 0.4 / 0.66 to 0.72; Q4_1 read with a rounded zero point 0.30 / 0.73.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from edgewise.core.formats import OfferedFormat
from edgewise.core.quantity import Quantity, Unknown

if TYPE_CHECKING:
    from edgewise.qualify.parity import SideBySide
    from edgewise.qualify.parity_messages import Distance, Reading

__all__ = ["GATES", "Gate", "GateResult", "gate_for", "judge"]


class Gate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on parity. ``None`` leaves a figure unjudged."""

    name: str
    kl_mean_nats: float | None = None
    top1_agreement: float | None = None
    same_tokens: bool = True
    reading_kl_mean_nats: float | None = None


class GateResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gate and what it found. ``passed`` is ``None`` when nothing could be judged."""

    gate: Gate
    passed: bool | None
    reasons: tuple[str, ...]


# How an engine reads a prompt is its own doing, whatever the weights.
_READING = 0.03
GATES = {
    name: Gate(name=name, kl_mean_nats=kl, top1_agreement=top1, reading_kl_mean_nats=_READING)
    for name, kl, top1 in (
        ("float", 0.005, 0.99),
        ("as-shipped", 0.03, 0.90),
        ("int8", 0.05, 0.88),
        ("int4", 1.0, 0.5),
    )
}


def gate_for(resolved: OfferedFormat | None, *, same_weights: bool) -> Gate:
    """Return the gate for an artifact.

    Args:
        resolved: The formats it was built with.
        same_weights: Whether it claims to carry its source's numbers unchanged.
    """
    if same_weights or resolved is None:
        return GATES["as-shipped"]
    bits = min(part.bits for part in (resolved.weights, resolved.embedding, resolved.output))
    if resolved.weights.kind == "float" and resolved.activation == "float":
        return GATES["float"] if bits >= 32 else GATES["as-shipped"]
    return GATES["int8"] if bits >= 8 else GATES["int4"]


def judge(
    gate: Gate,
    distance: Distance | None,
    tokenizer_differs: Sequence[str],
    answers: Sequence[SideBySide],
    *,
    reading: Reading | None = None,
) -> GateResult:
    """Return whether the limits hold, with every limit that does not."""
    reasons = []
    if gate.same_tokens and tokenizer_differs:
        reasons.append(f"{len(tokenizer_differs)} texts are tokenised differently")
    unlike = sum(not answer.same_prompt for answer in answers)
    if gate.same_tokens and unlike:
        reasons.append(f"{unlike} of {len(answers)} prompts are rendered to different tokens")
    if distance is None:
        why = "there are no logits to compare; only tokens and text were looked at"
        return GateResult(gate=gate, passed=False if reasons else None, reasons=(*reasons, why))
    kl, top1 = distance.kl_mean_nats, distance.top1_agreement
    if gate.kl_mean_nats is not None and _number(kl) > gate.kl_mean_nats:
        reasons.append(f"mean KL {_number(kl):.4f} nats is above {gate.kl_mean_nats:g}")
    if gate.top1_agreement is not None and _number(top1) < gate.top1_agreement:
        reasons.append(f"top-1 agreement {_number(top1):.3f} is below {gate.top1_agreement:g}")
    lost = 0.0 if reading is None else _number(reading.kl_mean_nats)
    if gate.reading_kl_mean_nats is not None and not lost <= gate.reading_kl_mean_nats:
        reasons.append(
            f"read at once, a prompt leaves it {lost:.4f} nats from itself token by token, "
            f"above {gate.reading_kl_mean_nats:g}"
        )
    return GateResult(gate=gate, passed=not reasons, reasons=tuple(reasons))


def _number(quantity: Quantity) -> float:
    return float("nan") if isinstance(quantity, Unknown) else float(quantity.number)
