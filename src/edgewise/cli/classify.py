"""``edgewise classify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgewise.cli.options import json_option, read_prompt
from edgewise.cli.output import StepPrinter, paint, print_json, print_table, say, show
from edgewise.errors import ExitCode

if TYPE_CHECKING:
    from edgewise.route.classify import ClassifierEvidence
    from edgewise.route.facts import ClassifiedTask

__all__ = ["classify"]

_evidence_option = click.option(
    "--evidence", metavar="PREFIX", help="Use the classifier of this evidence, not the newest."
)


@click.group()
def classify() -> None:
    """Learn to tell the task of a request from its text."""


@classify.command("learn")
@click.argument("cases", type=click.Path(path_type=Path))
@click.option(
    "--target-error",
    type=float,
    default=0.1,
    show_default=True,
    help="Largest error rate of what is taken for a task.",
)
@click.option(
    "--confidence", type=float, default=0.95, show_default=True, help="How sure that is to be."
)
@click.option(
    "--fit-share",
    type=float,
    default=0.5,
    show_default=True,
    help="Share of cases the model is fitted on; all figures come from the others.",
)
@click.option("--split-seed", type=int, default=0, show_default=True, help="Seed of the split.")
@json_option
def learn_command(
    cases: Path,
    *,
    target_error: float,
    confidence: float,
    fit_share: float,
    split_seed: int,
    as_json: bool,
) -> int:
    """Learn a classifier from CASES and say what can be shown of it.

    CASES is a file of JSON lines, {"prompt": TEXT, "task": NAME}. Each task gets the score from
    which on what is taken for it is seldom of another. Ends with exit code 10 where that cannot be
    shown for any.
    """
    from edgewise.route.classify import LearnSettings
    from edgewise.workflow.classifying import learn_classifier
    from edgewise.workflow.context import Context

    settings = LearnSettings(
        target_error=target_error, confidence=confidence, fit_share=fit_share, seed=split_seed
    )
    printer = StepPrinter()
    report, digest = learn_classifier(Context(report=printer), cases, settings)
    printer.clear()
    if as_json:
        print_json({"report": report, "evidence": digest})
    else:
        _print(report.evidence, digest)
        for refusal in report.refusals:
            say(f"{paint('refused', 'yellow')}: {refusal.code}: {refusal.message}")
    return int(ExitCode.OK if report.enabled else ExitCode.NEGATIVE)


@classify.command("show")
@_evidence_option
@json_option
def show_command(evidence: str | None, *, as_json: bool) -> int:
    """Show what was shown of a classifier, and what a policy says to trust it."""
    from edgewise.workflow.classifying import find_classifier
    from edgewise.workflow.context import Context

    found = find_classifier(Context(report=StepPrinter()), evidence)
    if as_json:
        print_json(found)
    else:
        _print(found.evidence, found.digest)
    return 0


@classify.command("ask")
@click.argument("text", required=False)
@_evidence_option
@json_option
def ask_command(text: str | None, *, evidence: str | None, as_json: bool) -> int:
    """Say which task a classifier takes TEXT for, or what is piped in.

    No policy is asked, nor how old the evidence is: `edgewise route --task auto` does that. Ends
    with exit code 10 where the classifier is not sure enough.
    """
    from edgewise.route.classify import classified
    from edgewise.workflow.classifying import find_classifier, load_model
    from edgewise.workflow.context import Context

    context = Context(report=StepPrinter())
    found = find_classifier(context, evidence)
    model = load_model(context, found.evidence.model_sha256)
    said = classified(model, found.evidence, found.digest, read_prompt(text))
    sure = said.score is not None and said.threshold is not None and said.score >= said.threshold
    if as_json:
        print_json({**_plain(said), "sure": sure})
    else:
        needed = "nothing was shown" if said.threshold is None else f"{said.threshold:g} is needed"
        score = "" if said.score is None else f" ({said.score:g}, {needed})"
        show(f"{'' if sure else 'not sure: '}{said.task or 'no task'}{score}")
        if said.reason:
            say(said.reason)
    return int(ExitCode.OK if sure else ExitCode.NEGATIVE)


def _plain(said: ClassifiedTask) -> dict[str, object]:
    return {
        "task": said.task,
        "score": said.score,
        "threshold": said.threshold,
        "evidence": said.evidence,
        "reason": said.reason,
    }


def _print(evidence: ClassifierEvidence, digest: str) -> None:
    rows = [
        [
            one.task,
            str(one.cases),
            str(one.said),
            f"{one.right / one.said:.1%}" if one.said else "-",
            f"{one.precision_low:.1%}",
            "off" if one.threshold is None else f"{one.threshold:.4f}",
            str(one.kept),
            str(one.kept_wrong),
        ]
        for one in evidence.tasks
    ]
    print_table(["task", "cases", "said", "right", "at least", "score", "kept", "wrong"], rows)
    held = evidence.n_held
    say(
        f"fitted on {evidence.n_fit} cases; of {held} others {evidence.right} are right "
        f"(accuracy at least {evidence.accuracy_low:.1%}), and {evidence.kept} are sure enough, "
        f"{evidence.kept_wrong} of them wrong"
    )
    if evidence.duplicates:
        say(f"{evidence.duplicates} cases were left out: others are the same to a classifier")
    for one in evidence.tasks:
        for refusal in one.refusals:
            say(f"{paint('off', 'yellow')}: {one.task}: {refusal.code}: {refusal.message}")
    if not evidence.enabled:
        say(f"{paint('not enabled', 'yellow')}: no policy can trust it")
        return
    say(
        f"{paint('enabled', 'green')}: of what is taken for a task at most "
        f"{evidence.target_error:.1%} are of another, at {evidence.confidence:.1%} confidence, for "
        "requests like these; a policy trusts it with"
    )
    show(f'[classifier]\nevidence = "{digest}"')
    show(f"minimum_accuracy = {1 - evidence.target_error:g}")
    if evidence.confidence < 0.95:
        show(f"minimum_confidence = {evidence.confidence:g}")
