"""Calibration of escalation: from judged cases to thresholds with a bound on the error rate."""

from edgewise.route.calibrate.cases import (
    UNSLICED,
    Case,
    Lines,
    note_id,
    parse_cases,
    read_lines,
    reserved_slice,
)
from edgewise.route.calibrate.checkers import CheckKind, check_reference, is_correct
from edgewise.route.calibrate.enough import require_enough
from edgewise.route.calibrate.entry import calibrate_cases, require_numpy
from edgewise.route.calibrate.evidence import (
    EVIDENCE_KIND,
    MAX_AGE_DAYS,
    EscalationEvidence,
    SliceThreshold,
    Standing,
    read_evidence,
    sections_of,
    stands,
)
from edgewise.route.calibrate.judging import judge
from edgewise.route.calibrate.plots import plots
from edgewise.route.calibrate.report import (
    CalibrateSettings,
    CalibrationReport,
    CurveReport,
    SignalReport,
)
from edgewise.route.calibrate.score import ScoreDefinition, Term, never_kept
from edgewise.route.calibrate.thresholds import Refusal, Step

__all__ = [
    "EVIDENCE_KIND",
    "MAX_AGE_DAYS",
    "UNSLICED",
    "CalibrateSettings",
    "CalibrationReport",
    "Case",
    "CheckKind",
    "CurveReport",
    "EscalationEvidence",
    "Lines",
    "Refusal",
    "ScoreDefinition",
    "SignalReport",
    "SliceThreshold",
    "Standing",
    "Step",
    "Term",
    "calibrate_cases",
    "check_reference",
    "is_correct",
    "judge",
    "never_kept",
    "note_id",
    "parse_cases",
    "plots",
    "read_evidence",
    "read_lines",
    "require_enough",
    "require_numpy",
    "reserved_slice",
    "sections_of",
    "stands",
]
