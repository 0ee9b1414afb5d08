"""What is asked of a calibration, and what it found."""

from __future__ import annotations

import msgspec

from edgewise.errors import InputError
from edgewise.route.calibrate.evidence import EscalationEvidence
from edgewise.route.calibrate.thresholds import Refusal, Step

__all__ = ["CalibrateSettings", "CalibrationReport", "CurveReport", "SignalReport"]


class CalibrateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to calibrate.

    Attributes:
        target_error: Largest error rate of kept answers, between 0 and 1.
        confidence: How sure that is to be, from 0.5 to below 1.
        slice_by: Key of the slices that each get a threshold; ``None`` for one threshold.
        signals: Which signals the score may use; empty: all but those that begin with ``self_``,
            which cost a second question.
        fit_share: Share of the cases that the score is fitted on, between 0.1 and 0.9.
        seed: Of the split and of resampling.
        bootstrap_rounds: Resamples behind each interval; 0 for none.
    """

    target_error: float = 0.1
    confidence: float = 0.95
    slice_by: str | None = None
    signals: tuple[str, ...] = ()
    fit_share: float = 0.4
    seed: int = 0
    bootstrap_rounds: int = 1000

    def __post_init__(self) -> None:
        _require(0 < self.target_error < 1, "target_error", self.target_error, "between 0 and 1")
        _require(0.5 <= self.confidence < 1, "confidence", self.confidence, "0.5 to below 1")
        _require(0.1 <= self.fit_share <= 0.9, "fit_share", self.fit_share, "0.1 to 0.9")
        _require(0 <= self.seed < 2**53, "seed", self.seed, "0 to 2^53 - 1")
        _require(
            0 <= self.bootstrap_rounds <= 100_000,
            "bootstrap_rounds",
            self.bootstrap_rounds,
            "0 to 100,000",
        )


class SignalReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much one signal tells.

    Attributes:
        signal: Its name.
        auroc: How well it tells wrong from right answers by itself, on cases that nothing was
            fitted on; 0.5 is chance. Its direction was learned on the others.
        low: Lower limit of the 95% interval (DeLong).
        high: Upper limit.
        above_chance: Whether that interval is above 0.5.
        weight: What one standard deviation adds to the score's log-odds of being wrong.
        aurc_without: How much AURC rises when the score is fitted without it.
    """

    signal: str
    auroc: float
    low: float
    high: float
    above_chance: bool
    weight: float
    aurc_without: float


class CurveReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One risk-coverage curve, on the cases that nothing was fitted on.

    Attributes:
        name: ``combined``, ``entropy-only``, ``self-assessment``, ``random`` or ``oracle``.
        aurc: Area under it.
        aurc_interval: Its 95% interval over resamples of the cases, where it was taken.
        e_aurc: What of the area is above the oracle's.
        excess_interval: 95% interval of what it is above the combined score's, case by case the
            same resamples; wholly above 0: the combined score is better.
        risk_at: Error rate of the kept, by the share that is kept.
        points: The curve: share kept and error rate.
    """

    name: str
    aurc: float
    aurc_interval: tuple[float, float] | None = None
    e_aurc: float
    excess_interval: tuple[float, float] | None = None
    risk_at: dict[str, float]
    points: tuple[tuple[float, float], ...]


class CalibrationReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a calibration found.

    Attributes:
        enabled: Whether any slice has a threshold.
        settings: What was asked.
        evidence: What was proved; this is what is stored.
        cases: How many there are.
        wrong: How many of them are wrong.
        refusals: Why nothing at all is enabled, where the reason is not a slice's.
        signals: How much each signal tells, the most telling first.
        curves: Risk-coverage curves.
        steps: Thresholds that were tested, by slice.
        notes: What a reader should know.
        recorded: Where the signals were recorded in this run, its file.
    """

    schema_version: int = 1
    enabled: bool
    settings: CalibrateSettings
    evidence: EscalationEvidence
    cases: int
    wrong: int
    refusals: tuple[Refusal, ...] = ()
    signals: tuple[SignalReport, ...] = ()
    curves: tuple[CurveReport, ...] = ()
    steps: dict[str, tuple[Step, ...]] = {}
    notes: tuple[str, ...] = ()
    recorded: str | None = None


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise InputError(
            "calibration-invalid",
            f"{name} is {value!r}; allowed is {allowed}",
            context={"field": name},
            hint=f"set {name} within that range, or leave it out",
        )
