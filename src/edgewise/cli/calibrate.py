"""``edgewise calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgewise.cli.options import json_option
from edgewise.cli.output import StepPrinter, paint, print_json, print_table, say
from edgewise.errors import ExitCode

if TYPE_CHECKING:
    from edgewise.route.calibrate import CalibrationReport

__all__ = ["calibrate"]

_CHECKS = ("exact", "number", "choice", "regex", "json", "call")
_SIGNALS_SHOWN = 8


@click.command()
@click.argument("cases", type=click.Path(dir_okay=False))
@click.option(
    "--target-error",
    type=float,
    default=0.1,
    show_default=True,
    help="Largest error rate of answers that are kept.",
)
@click.option(
    "--confidence", type=float, default=0.95, show_default=True, help="How sure that is to be."
)
@click.option("--slice-by", metavar="KEY", help="One threshold for each value of KEY.")
@click.option(
    "--signal",
    "signals",
    multiple=True,
    metavar="NAME",
    help="Use this signal; repeatable. [default: all that cost nothing]",
)
@click.option(
    "--fit-share",
    type=float,
    default=0.4,
    show_default=True,
    help="Share of cases the score is fitted on; the bound comes from the others.",
)
@click.option("--split-seed", type=int, default=0, show_default=True, help="Seed of the split.")
@click.option("--check", type=click.Choice(_CHECKS), help="How answers to prompts are checked.")
@click.option(
    "--record",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Keep recorded signals in FILE; an interrupted run goes on with it.",
)
@click.option(
    "--self-assessment", is_flag=True, help="Record what the model says of its own answers too."
)
@click.option(
    "--max-tokens", type=click.IntRange(1), default=256, show_default=True, help="Of an answer."
)
@click.option("--fingerprint", metavar="PREFIX", help="Use this bundle, not the active one.")
@click.option(
    "--plots", type=click.Path(file_okay=False), metavar="DIR", help="Write plots (SVG) to DIR."
)
@click.option(
    "--out", type=click.Path(dir_okay=False), metavar="FILE", help="Write the report to FILE too."
)
@json_option
def calibrate(
    cases: str,
    *,
    target_error: float,
    confidence: float,
    slice_by: str | None,
    signals: tuple[str, ...],
    fit_share: float,
    split_seed: int,
    check: str | None,
    record: str | None,
    self_assessment: bool,
    max_tokens: int,
    fingerprint: str | None,
    plots: str | None,
    out: str | None,
    as_json: bool,
) -> int:
    """Learn which local answers may be kept, so that few enough of them are wrong.

    CASES is a file of JSON lines: recorded signals with verdicts, or prompts with references,
    which the active model answers now. Ends with exit code 10 where nothing can be enabled.

    It takes at least 20 cases to fit on, 5 of them right and 5 wrong, and 29 to calibrate on: 49
    with the default split, target and confidence. Fewer prompts are refused before one is asked.
    """
    from edgewise.route.calibrate import CalibrateSettings, CheckKind
    from edgewise.workflow.calibrating import (
        CalibrateRequest,
        require_places,
        write_plots,
        write_report,
    )
    from edgewise.workflow.calibrating import calibrate as run_calibrate
    from edgewise.workflow.context import Context

    printer = StepPrinter()
    request = CalibrateRequest(
        cases=cases,
        settings=CalibrateSettings(
            target_error=target_error,
            confidence=confidence,
            slice_by=slice_by,
            signals=signals,
            fit_share=fit_share,
            seed=split_seed,
        ),
        check=None if check is None else CheckKind(check),
        record=record,
        fingerprint=fingerprint,
        max_tokens=max_tokens,
        self_assessment=self_assessment,
    )
    require_places(
        report=None if out is None else Path(out), plots=None if plots is None else Path(plots)
    )
    report, digest = run_calibrate(Context(report=printer), request)
    printer.clear()
    if out is not None:
        write_report(report, Path(out))
    written = write_plots(report, Path(plots)) if plots is not None else ()
    if as_json:
        print_json({"report": report, "evidence": digest, "plots": [str(p) for p in written]})
    else:
        _print(report)
        for path in written:
            say(f"plot: {path}")
        if plots is not None and not written:
            say("no plot: nothing was learned that could be drawn")
        if digest is not None:
            say(f"evidence {digest[:12]}: edgewise evidence show {digest[:12]}")
    return int(ExitCode.OK if report.enabled else ExitCode.NEGATIVE)


def _print(report: CalibrationReport) -> None:
    evidence = report.evidence
    rows = [
        [
            one.slice or "(none)",
            str(one.cases),
            f"{one.wrong / one.cases:.1%}" if one.cases else "-",
            "off" if one.threshold is None else f"{one.threshold:.4f}",
            f"{one.kept / one.cases:.1%}" if one.threshold is not None else "-",
            f"{one.kept_wrong / one.kept:.1%}" if one.kept else "-",
        ]
        for one in evidence.thresholds
    ]
    print_table(["slice", "cases", "wrong", "threshold", "kept", "wrong of kept"], rows)
    if report.curves:
        print()
        print_table(
            ["score", "AURC", "E-AURC", "at 25%", "at 50%", "at 75%", "above combined (95%)"],
            [_curve_row(one) for one in report.curves],
        )
    if report.signals:
        print()
        print_table(
            ["signal", "AUROC", "95%", "weight", "AURC without"],
            [
                [
                    one.signal,
                    f"{one.auroc:.3f}",
                    f"{one.low:.3f} to {one.high:.3f}",
                    f"{one.weight:+.3f}",
                    f"{one.aurc_without:+.4f}",
                ]
                for one in report.signals[:_SIGNALS_SHOWN]
            ],
        )
    _say_verdict(report)


def _curve_row(one: object) -> list[str]:
    from edgewise.route.calibrate import CurveReport

    assert isinstance(one, CurveReport)
    excess = one.excess_interval
    return [
        one.name,
        f"{one.aurc:.4f}",
        f"{one.e_aurc:.4f}",
        *(f"{one.risk_at[share]:.1%}" for share in ("0.25", "0.5", "0.75")),
        "-" if excess is None else f"{excess[0]:+.4f} to {excess[1]:+.4f}",
    ]


def _say_verdict(report: CalibrationReport) -> None:
    evidence = report.evidence
    for note in report.notes:
        say(f"{paint('note', 'yellow')}: {note}")
    for refusal in report.refusals:
        say(f"{paint('refused', 'yellow')}: {refusal.code}: {refusal.message}")
    for one in evidence.thresholds:
        for refusal in one.refusals:
            if refusal not in report.refusals:
                where = one.slice or "cases without a slice"
                say(f"{paint('off', 'yellow')}: {where}: {refusal.code}: {refusal.message}")
    if report.enabled:
        say(
            f"{paint('enabled', 'green')}: of kept answers at most {evidence.target_error:.1%} are "
            f"wrong, at {evidence.confidence:.1%} confidence, for requests like these"
        )
    else:
        say(f"{paint('not enabled', 'yellow')}: escalation on confidence stays off")
