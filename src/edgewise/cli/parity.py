"""``edgewise parity``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from edgewise.cli.options import json_option
from edgewise.cli.output import (
    StepPrinter,
    paint,
    print_json,
    print_table,
    say,
    show,
    show_quantity,
)
from edgewise.errors import ExitCode

if TYPE_CHECKING:
    from edgewise.qualify.parity import ParityReport

__all__ = ["parity"]


@click.command()
@click.argument("first")
@click.argument("second")
@click.option(
    "--text",
    "text_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Text to score on. [default: WikiText-2 below EDGEWISE_EVAL_DATA]",
)
@click.option(
    "--windows", type=click.IntRange(1, 4096), default=4, show_default=True, help="Stretches."
)
@click.option(
    "--window-tokens",
    type=click.IntRange(2, 4096),
    default=64,
    show_default=True,
    help="Tokens of each stretch.",
)
@json_option
def parity(
    first: str,
    second: str,
    *,
    text_file: str | None,
    windows: int,
    window_tokens: int,
    as_json: bool,
) -> int:
    """Say how far the build SECOND is from FIRST, and whether that is within its limits.

    A build is RUNTIME, RUNTIME/FORMAT, or the beginning of a digest; `source` is the checkpoint
    itself in F32. Compared are token ids on hard texts, rendered prompts, next-token
    distributions along a given text, perplexity, how answers end, and greedy text.
    """
    from edgewise.workflow.context import Context
    from edgewise.workflow.parity import ParityRequest, check_parity

    printer = StepPrinter()
    request = ParityRequest(
        first=first,
        second=second,
        text_file=text_file,
        windows=windows,
        window_tokens=window_tokens,
    )
    report, _ = check_parity(Context(report=printer), request)
    printer.clear()
    if as_json:
        print_json(report)
    else:
        _print(report)
    return int(ExitCode.NEGATIVE if report.gate.passed is False else ExitCode.OK)


def _print(report: ParityReport) -> None:
    rows = [
        ["tokenizer", f"{report.tokenizer_texts} texts, {len(report.tokenizer_differs)} differ"],
        ["text", report.material],
    ]
    distance = report.distance
    if distance is not None:
        rows += [
            ["positions", str(distance.positions)],
            ["top-1 agreement", show_quantity(distance.top1_agreement)],
            ["… without near-ties", show_quantity(distance.top1_without_near_ties)],
            ["KL mean", show_quantity(distance.kl_mean_nats, "nats")],
            ["KL 99th percentile", show_quantity(distance.kl_p99_nats, "nats")],
            ["KL largest", show_quantity(distance.kl_max_nats, "nats")],
            [f"perplexity {report.first}", show_quantity(distance.perplexity)],
            [f"perplexity {report.second}", show_quantity(distance.other_perplexity)],
        ]
    reading = report.reading
    if reading is not None:
        rows += [
            ["read at once", f"{reading.places} places, up to {reading.longest_tokens} tokens"],
            ["… KL mean to itself", show_quantity(reading.kl_mean_nats, "nats")],
            ["… KL largest", show_quantity(reading.kl_max_nats, "nats")],
        ]
    print_table(["compared", f"{report.second} against {report.first}"], rows)
    for text in report.tokenizer_differs:
        say(f"tokenised differently: {text!r}")
    for answer in report.answers:
        agree = "" if answer.agreeing_tokens is None else f"{answer.agreeing_tokens} tokens agree; "
        prompt = "" if answer.same_prompt else "the prompts differ; "
        show(f"\n{answer.question}  [{prompt}{agree}{answer.finish} / {answer.other_finish}]")
        show(f"  {report.first}: {answer.text!r}")
        show(f"  {report.second}: {answer.other_text!r}")
    for why in report.missing:
        say(f"not compared: {why}")
    words = {True: ("pass", "green"), False: ("fail", "red"), None: ("not judged", "yellow")}
    verdict, colour = words[report.gate.passed]
    say(f"gate {report.gate.gate.name}: {paint(verdict, colour)}")
    for reason in report.gate.reasons:
        say(f"  {reason}")
