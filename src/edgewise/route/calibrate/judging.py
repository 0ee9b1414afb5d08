"""From an answer's signals to what is suggested about it. Pure; nothing is sent anywhere."""

from __future__ import annotations

from collections.abc import Mapping

from edgewise.core.signals import Escalation, Signals
from edgewise.route.calibrate.cases import UNSLICED
from edgewise.route.calibrate.evidence import EscalationEvidence, Standing
from edgewise.route.calibrate.score import never_kept

__all__ = ["judge"]


def judge(
    signals: Signals | None,
    evidence: EscalationEvidence | None,
    *,
    digest: str = "",
    standing: Standing | None = None,
    slice_value: str | None = None,
    more: Mapping[str, float] | None = None,
) -> Escalation:
    """Return what a calibration says of a finished answer.

    Without a calibration that stands the answer is unjudged: nothing is suggested on the ground
    of confidence. With one, an answer that cannot be scored or was cut is offered, never kept.

    Args:
        signals: The answer's.
        evidence: The calibration.
        digest: Its digest.
        standing: Whether it stands; unknown counts as no.
        slice_value: The request's slice; ``None`` where nobody knows it, which is enough only for a
            calibration that is not sliced.
        more: Further signals by name that the score uses.
    """
    if not digest or (evidence is None and standing is None):
        return _unjudged("no calibration of this deployment is at hand")
    if standing is None or not standing.stands:
        why = "nobody checked" if standing is None else "; ".join(standing.reasons)
        return _unjudged(f"the calibration {digest[:12]} does not stand: {why}")
    if evidence is None:
        return _unjudged("no calibration of this deployment is at hand")
    if evidence.slice_by is not None and slice_value in (None, UNSLICED):
        return _unjudged(
            f"the calibration is by {evidence.slice_by[:80]!r}, and nobody said the request's slice"
        )
    slice_value = UNSLICED if slice_value is None else slice_value
    found = next((one for one in evidence.thresholds if one.slice == slice_value), None)
    if found is None:
        return _unjudged(f"the calibration has no cases of the slice {slice_value[:80]!r}")
    if found.threshold is None or evidence.score is None:
        why = "; ".join(refusal.message for refusal in found.refusals)
        return _unjudged(f"the calibration proved nothing for this slice: {why}")
    features = {**(signals.features() if signals is not None else {}), **(more or {})}
    risk = evidence.score.risk(features)
    why = never_kept(features) or "a signal that the score needs is missing"
    kept = risk is not None and risk <= found.threshold
    if risk is not None:
        relation = "is at most" if kept else "is above"
        why = (
            f"its score {risk:.3f} {relation} {found.threshold:.3f}; below that the error rate is "
            f"at most {evidence.target_error:.1%} at {evidence.confidence:.0%} confidence"
        )
    return Escalation(
        judged=True,
        suggested=not kept,
        reasons=(why,),
        score=risk,
        threshold=found.threshold,
        slice=slice_value,
        target_error=evidence.target_error,
        confidence=evidence.confidence,
        evidence=digest,
    )


def _unjudged(why: str) -> Escalation:
    return Escalation(judged=False, suggested=False, reasons=(why,))
