"""The evidence of a calibration, and whether it still stands.

A threshold is good for the deployment, the prompt template and the kind of requests it was
learned on. A change of any of them asks for a new calibration; nothing is carried over.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

import msgspec

from edgewise.core.canonical import digest_of
from edgewise.core.evidence import Evidence
from edgewise.core.fingerprint import Deployment
from edgewise.errors import InputError
from edgewise.route.calibrate.score import ScoreDefinition
from edgewise.route.calibrate.thresholds import Refusal

__all__ = [
    "EVIDENCE_KIND",
    "MAX_AGE_DAYS",
    "EscalationEvidence",
    "SliceThreshold",
    "Standing",
    "age_reasons",
    "read_evidence",
    "sections_of",
    "stands",
]

EVIDENCE_KIND: Final = "calibration"
MAX_AGE_DAYS: Final = 180  # a default: how quickly requests drift is the application's to know
_VERSION: Final = 1
_SKEW: Final = dt.timedelta(days=1)


class SliceThreshold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The threshold of one slice, or why there is none.

    Attributes:
        slice: Its value; ``all`` where cases are not sliced.
        cases: Cases of the slice that were calibrated on.
        wrong: Those of them that are wrong.
        share: Share of all cases that are of this slice.
        threshold: Largest score that is kept; ``None``: escalation on confidence is off here.
        kept: Calibration cases that it keeps.
        kept_wrong: Those of them that are wrong.
        delta: Chance that the bound does not hold for this slice.
        refusals: Why it is off.
    """

    slice: str
    cases: int
    wrong: int
    share: float
    threshold: float | None = None
    kept: int = 0
    kept_wrong: int = 0
    delta: float
    refusals: tuple[Refusal, ...] = ()

    def __post_init__(self) -> None:
        name = f"the slice {self.slice[:80]!r}"
        counts = 0 <= self.kept_wrong <= self.kept <= self.cases and 0 <= self.wrong <= self.cases
        _require(counts, f"{name} has counts that contradict one another")
        _require(0 <= self.share <= 1, f"{name} has a share of {self.share}")
        _require(0 <= self.delta <= 1, f"{name} has a delta of {self.delta}")
        in_range = self.threshold is None or 0 <= self.threshold <= 1
        _require(in_range, f"{name} has a threshold of {self.threshold}")


class EscalationEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a calibration proved.

    Attributes:
        target_error: Bound on the error rate of kept answers, in each enabled slice.
        confidence: That all of the slices' bounds hold together, at least (Bonferroni).
        slice_by: Key that cases were sliced by; ``None``: one bound for the mixture as it was.
        score: The score that is compared with the thresholds; ``None`` where none was learned.
        thresholds: Of every slice.
        method: How they were learned.
        dataset_sha256: Digest of the cases.
        n_fit: Cases the score and the candidates come from.
        n_calibrate: Cases the bounds come from.
        seed: Of the split.
        prompt_sha256: Digest of what all prompts share; empty when nobody noted it.
        sections: Digest of each section of the deployment, to say later what changed; empty when
            only its fingerprint is known.
    """

    schema_version: int = _VERSION
    target_error: float
    confidence: float
    slice_by: str | None = None
    score: ScoreDefinition | None
    thresholds: tuple[SliceThreshold, ...]
    method: str = "learn-then-test, fixed sequence, exact binomial tails, Bonferroni over slices"
    dataset_sha256: str
    n_fit: int
    n_calibrate: int
    seed: int
    prompt_sha256: str = ""
    sections: dict[str, str] = {}

    def __post_init__(self) -> None:
        _require(self.schema_version == _VERSION, f"its form has the version {self.schema_version}")
        _require(0 < self.target_error < 1, f"its target is {self.target_error}")
        _require(0.5 <= self.confidence < 1, f"its confidence is {self.confidence}")
        _require(self.n_fit >= 0 and self.n_calibrate >= 0, "it has fewer than no cases")
        names = [one.slice for one in self.thresholds]
        _require(len(set(names)) == len(names), "a slice comes twice")

    @property
    def enabled(self) -> bool:
        """Return whether any slice has a threshold."""
        return any(one.threshold is not None for one in self.thresholds)


class Standing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a calibration stands for a deployment.

    Attributes:
        stands: Whether it does.
        reasons: Why not; empty when it does.
        needed: What has to be done then: ``recalibration``; empty when it stands.
    """

    stands: bool
    reasons: tuple[str, ...] = ()
    needed: str = ""


def sections_of(deployment: Deployment) -> dict[str, str]:
    """Return the digest of each section of a deployment, by name."""
    return {name: digest_of(value) for name, value in deployment.identity.items()}


def read_evidence(piece: Evidence) -> EscalationEvidence | None:
    """Return the calibration in a piece of evidence; ``None`` where it holds none that is sound."""
    if piece.kind != EVIDENCE_KIND:
        return None
    try:
        return msgspec.convert(piece.figures, EscalationEvidence)
    except (msgspec.ValidationError, InputError):  # of another form, or numbers that are none
        return None


def stands(
    piece: Evidence,
    deployment: Deployment,
    *,
    now: dt.datetime,
    prompt_sha256: str = "",
    max_age_days: int = MAX_AGE_DAYS,
) -> Standing:
    """Return whether a calibration is good for a deployment now.

    The device does not count by itself: devices of one class have one fingerprint.

    Args:
        piece: The evidence.
        deployment: What would answer.
        now: With its time zone.
        prompt_sha256: Digest of what the prompts share now; compared where both are known.
        max_age_days: How old it may be.
    """
    found = read_evidence(piece)
    if found is None:
        why = f"evidence of the kind {piece.kind!r} holds no calibration that this version reads"
        return Standing(stands=False, reasons=(why,), needed="recalibration")
    reasons = [
        *_deployment_reasons(piece, found, deployment),
        *age_reasons(piece.created, now, max_age_days),
    ]
    if found.prompt_sha256 and prompt_sha256 and found.prompt_sha256 != prompt_sha256:
        reasons.append("the prompts have another template than those it was calibrated on")
    if not found.enabled:
        reasons.append("it proved no bound: every slice was refused")
    needed = "recalibration" if reasons else ""
    return Standing(stands=not reasons, reasons=tuple(reasons), needed=needed)


def _require(sound: bool, flaw: str) -> None:
    if not sound:
        raise InputError("calibration-invalid", flaw, hint="calibrate again")


def _deployment_reasons(
    piece: Evidence, found: EscalationEvidence, deployment: Deployment
) -> list[str]:
    fingerprint = deployment.fingerprint
    if piece.subject == fingerprint:
        return []
    was, now = found.sections, sections_of(deployment)
    changed = [name for name in now if was.get(name) != now[name]] if was else []
    what = f" (changed: {', '.join(changed)})" if changed else ""
    return [f"it is of the deployment {piece.subject[:12]}, and {fingerprint[:12]} is active{what}"]


def age_reasons(created: str, now: dt.datetime, max_age_days: int) -> list[str]:
    """Return why evidence of a date does not stand at another: too old, not yet, or no date."""
    try:
        taken = dt.datetime.fromisoformat(created)
    except ValueError:
        taken = None
    if taken is None or taken.tzinfo is None:
        return [f"its date {created[:40]!r} is none"]
    age = now - taken
    if age < -_SKEW:
        return [f"it is dated {created}, which is in the future of this device's clock"]
    if age > dt.timedelta(days=max_age_days):
        return [f"it is {age.days} days old, and {max_age_days} are allowed"]
    return []
