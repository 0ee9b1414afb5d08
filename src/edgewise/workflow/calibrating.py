"""Calibrate escalation: take cases, record signals where they have none yet, prove, store.

Recorded signals hold no content: an identifier is kept as its digest, prompts, answers and
references stay where they came from.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from pathlib import Path
from typing import Final

import msgspec

from edgewise.core.canonical import canonical_json
from edgewise.core.fingerprint import Deployment
from edgewise.core.signals import Escalation, Signals
from edgewise.errors import EdgewiseError, InputError, ResourceError
from edgewise.route.calibrate import (
    EVIDENCE_KIND,
    MAX_AGE_DAYS,
    CalibrateSettings,
    CalibrationReport,
    Case,
    CheckKind,
    EscalationEvidence,
    Lines,
    Standing,
    calibrate_cases,
    judge,
    parse_cases,
    plots,
    read_evidence,
    read_lines,
    require_enough,
    require_numpy,
    sections_of,
    stands,
)
from edgewise.store.regular import read_regular
from edgewise.workflow.context import Context, Step
from edgewise.workflow.recording import RecordRequest, prompt_cases, record

__all__ = [
    "ActiveCalibration",
    "CalibrateRequest",
    "active_calibration",
    "calibrate",
    "load_cases",
    "require_places",
    "write_plots",
    "write_report",
]

_CASES_BYTES_MAX: Final = 1 << 28
_NOBODYS: Final = (
    "nobody noted which deployment answered, so that nothing is stored: record the cases here, or "
    "name it with --fingerprint"
)


class CalibrateRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to calibrate.

    Attributes:
        cases: File of JSON lines: recorded signals, or prompts with references.
        settings: How to calibrate.
        check: How answers to prompts are checked, where a case does not say it itself.
        record: File that takes recorded signals, and that a run that was cut short goes on with.
        fingerprint: Beginning of the bundle that answers, instead of the active one.
        max_tokens: Most tokens of an answer, where a case does not say it itself.
        self_assessment: Also ask the model whether its answer is right; the baseline.
    """

    cases: str
    settings: CalibrateSettings = CalibrateSettings()
    check: CheckKind | None = None
    record: str | None = None
    fingerprint: str | None = None
    max_tokens: int = 256
    self_assessment: bool = False


def calibrate(context: Context, request: CalibrateRequest) -> tuple[CalibrationReport, str | None]:
    """Return what the cases prove, and the digest of its evidence.

    There is no evidence where nobody knows which deployment answered; the notes then say so.

    Raises:
        InputError: the file cannot be read, a line of it is no case, a setting is wrong, or there
            are too few prompts to prove anything, of which none is asked then.
        UnsupportedError: numpy is not installed, or the model gives text only.
        IntegrityError: the model's artifact is damaged.
        ResourceError: the home, or the file to record into, cannot be written.
        AdapterError: the runtime fails again and again.
    """
    require_numpy()
    lines = load_cases(Path(request.cases))
    recorded: str | None = None
    notes: tuple[str, ...] = ()
    if "signals" not in lines.objects[0][1]:
        cases, notes = _record(context, request, lines)
        recorded = request.record
        sha256 = _digest_of_cases(cases)
    else:
        cases, sha256 = parse_cases(lines), lines.sha256
        _require_key(cases, request.settings)
    deployment, fingerprint = _deployment(context, request, cases)
    total = len(cases)
    context.report(Step(stage="calibrate", status="start", message=f"{total} cases"))
    report = calibrate_cases(
        cases,
        request.settings,
        dataset_sha256=sha256,
        sections={} if deployment is None else sections_of(deployment),
    )
    if not fingerprint:
        notes = (*notes, _NOBODYS)
    report = msgspec.structs.replace(report, notes=(*notes, *report.notes), recorded=recorded)
    digest = None
    if fingerprint:
        digest = context.record(EVIDENCE_KIND, fingerprint, report.evidence)
    return report, digest


class ActiveCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """The calibration that counts for a deployment, and whether it stands.

    Attributes:
        digest: Of the evidence; empty when there is none.
        evidence: What it proved.
        standing: Whether it stands.
    """

    digest: str = ""
    evidence: EscalationEvidence | None = None
    standing: Standing = Standing(
        stands=False, reasons=("there is no calibration",), needed="recalibration"
    )

    def judge(self, signals: Signals | None, slice_value: str | None = None) -> Escalation:
        """Return what it says of a finished answer; see :func:`edgewise.route.calibrate.judge`."""
        return judge(
            signals,
            self.evidence,
            digest=self.digest,
            standing=self.standing,
            slice_value=slice_value,
        )


def active_calibration(
    context: Context,
    deployment: Deployment,
    *,
    prompt_sha256: str = "",
    now: dt.datetime | None = None,
    max_age_days: int = MAX_AGE_DAYS,
) -> ActiveCalibration:
    """Return the newest calibration of a deployment that stands now, or the newest and why not.

    One that nobody can read or that is dated in the future does not hide an older one that stands;
    a good one that proved no bound does. Where the deployment has none, that of another one is
    named with what changed since.
    """
    found = context.evidence.find(kind=EVIDENCE_KIND, subject=deployment.fingerprint)
    found = found or context.evidence.find(kind=EVIDENCE_KIND)
    newest: ActiveCalibration | None = None
    for digest, piece in reversed(found):
        standing = stands(
            piece,
            deployment,
            now=now or dt.datetime.now(dt.UTC),
            prompt_sha256=prompt_sha256,
            max_age_days=max_age_days,
        )
        one = ActiveCalibration(digest=digest, evidence=read_evidence(piece), standing=standing)
        if standing.stands or _only_refused(one):
            return one
        newest = newest or one
    return newest or ActiveCalibration()


def _only_refused(one: ActiveCalibration) -> bool:
    """Return whether a calibration is good but for having proved no bound: it ends older ones."""
    refused = one.evidence is not None and not one.evidence.enabled
    return refused and len(one.standing.reasons) == 1


def load_cases(path: Path, *, hint: str | None = None) -> Lines:
    """Return the lines of a file of cases; ``hint`` says what one is where it is not these here.

    Raises:
        InputError: it cannot be read, is not UTF-8, has a line that is no JSON object, or none.
    """
    try:
        data = read_regular(path, limit_bytes=_CASES_BYTES_MAX)
    except OSError as error:
        raise InputError(
            "cases-unreadable",
            f"{path} cannot be read: {error.strerror}",
            context={"path": str(path)},
            hint="name a file of JSON lines",
        ) from error
    return read_lines(data) if hint is None else read_lines(data, hint=hint)


def write_plots(report: CalibrationReport, folder: Path) -> tuple[Path, ...]:
    """Write a report's plots into a folder and return their paths; without any it is not made.

    Raises:
        ResourceError: they cannot be written.
    """
    drawn = plots(report)
    written = []
    try:
        if drawn:
            folder.mkdir(parents=True, exist_ok=True)
        for name, text in drawn.items():
            path = folder / name
            path.write_text(text, encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise _plots_unwritable(folder, error.strerror or "") from error
    return tuple(written)


def write_report(report: CalibrationReport, path: Path) -> None:
    """Write a report as JSON.

    Raises:
        ResourceError: it cannot be written.
    """
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    except OSError as error:
        raise _report_unwritable(path, error.strerror or "") from error


def require_places(*, report: Path | None, plots: Path | None) -> None:
    """Refuse early where a report or plots could not be written after all has been asked.

    Raises:
        ResourceError: there is no such folder, or it cannot be written.
    """
    if report is not None and (why := _why_unwritable(report.parent)):
        raise _report_unwritable(report, why)
    if plots is not None:
        there = next(folder for folder in (plots, *plots.absolute().parents) if folder.exists())
        if why := _why_unwritable(there):
            raise _plots_unwritable(plots, why)


def _why_unwritable(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is no folder"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is not writable"


def _plots_unwritable(folder: Path, why: str) -> ResourceError:
    return ResourceError(
        "plots-unwritable",
        f"the plots cannot be written to {folder}: {why}",
        context={"path": str(folder)},
        hint="name a folder that can be written",
    )


def _report_unwritable(path: Path, why: str) -> ResourceError:
    return ResourceError(
        "report-unwritable",
        f"the report cannot be written to {path}: {why}",
        context={"path": str(path)},
        hint="name a file in a folder that can be written",
    )


def _record(
    context: Context, request: CalibrateRequest, lines: Lines
) -> tuple[tuple[Case, ...], tuple[str, ...]]:
    prompts = prompt_cases(lines, check=request.check, max_tokens=request.max_tokens)
    blank = tuple(
        Case(id=one.digest, signals={}, correct=False, slices=one.case.slices) for one in prompts
    )
    _require_key(blank, request.settings)
    require_enough(blank, request.settings)
    asked = RecordRequest(
        cases=prompts,
        file=request.record,
        fingerprint=request.fingerprint,
        self_assessment=request.self_assessment,
    )
    return record(context, asked)


def _deployment(
    context: Context, request: CalibrateRequest, cases: tuple[Case, ...]
) -> tuple[Deployment | None, str]:
    """Return the deployment that answered, where the home has it, and its fingerprint."""
    noted = cases[0].fingerprint
    if not noted and request.fingerprint is None:
        return None, ""
    if request.fingerprint is not None:
        deployment = context.bundles.get(request.fingerprint).deployment
        if noted and deployment.fingerprint != noted:
            raise InputError(
                "cases-mixed",
                f"the cases are of the deployment {noted[:12]}, not of "
                f"{deployment.fingerprint[:12]}",
                hint="leave --fingerprint out, or record the cases with that bundle",
            )
        return deployment, deployment.fingerprint
    try:
        return context.bundles.get(noted).deployment, noted
    except EdgewiseError:  # recorded elsewhere; the evidence is of that deployment all the same
        return None, noted


def _require_key(cases: tuple[Case, ...], settings: CalibrateSettings) -> None:
    key = settings.slice_by
    known = sorted({name for case in cases for name in case.slices})
    if key is not None and key not in known:
        raise InputError(
            "slice-key-unknown",
            f"no case has a slice by {key[:80]!r}",
            context={"known": known},
            hint=f"known: {', '.join(known) or 'none'}",
        )


def _digest_of_cases(cases: tuple[Case, ...]) -> str:
    return hashlib.sha256(b"".join(canonical_json(case) + b"\n" for case in cases)).hexdigest()
