"""``edgewise compare``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from edgewise.cli.options import json_option
from edgewise.cli.output import StepPrinter, print_json, print_table, say, show
from edgewise.core.quantity import Quantity, Unknown

if TYPE_CHECKING:
    from edgewise.workflow.comparing import Comparison, Row

__all__ = ["compare"]

HEADERS = [
    "artifact",
    "MiB",
    "build s",
    "peak MiB",
    "TTFT ms",
    "tok/s",
    "KL nats",
    "top-1",
    "gate",
    "ops",
    "fallbacks",
]


@click.command()
@click.argument("model", required=False)
@click.option("--measure", is_flag=True, help="Take the figures that are missing, here and now.")
@click.option("--again", is_flag=True, help="With --measure: also those that are there.")
@click.option(
    "--for", "runtimes", multiple=True, metavar="RUNTIME[,RUNTIME…]", help="Only these runtimes."
)
@click.option(
    "--windows",
    type=click.IntRange(1, 4096),
    default=4,
    show_default=True,
    help="Parity: stretches.",
)
@click.option(
    "--window-tokens",
    type=click.IntRange(2, 4096),
    default=64,
    show_default=True,
    help="Parity: tokens of each stretch.",
)
@click.option(
    "--text",
    "text_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Parity: text to score on. [default: WikiText-2 below EDGEWISE_EVAL_DATA]",
)
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@json_option
def compare(
    model: str | None,
    *,
    measure: bool,
    again: bool,
    runtimes: tuple[str, ...],
    windows: int,
    window_tokens: int,
    text_file: str | None,
    markdown: bool,
    as_json: bool,
) -> int:
    """Compare everything built from MODEL, from evidence.

    Size, build time and placement come from build receipts; memory, speed and parity from
    measurements on this device. `--measure` takes what is missing; keep the machine quiet then.
    """
    from edgewise.workflow.building import require_names
    from edgewise.workflow.comparing import CompareRequest
    from edgewise.workflow.comparing import compare as run_compare
    from edgewise.workflow.context import Context

    printer = StepPrinter()
    request = CompareRequest(
        model=model,
        measure=measure,
        again=again,
        runtimes=require_names(runtimes) if runtimes else (),
        windows=windows,
        window_tokens=window_tokens,
        text_file=text_file,
    )
    comparison = run_compare(Context(report=printer), request)
    printer.clear()
    if as_json:
        print_json(comparison)
    elif markdown:
        show(as_markdown(comparison))
    else:
        print_table(HEADERS, [cells(row) for row in comparison.rows])
        _notes(comparison)
    return 0


def as_markdown(comparison: Comparison) -> str:
    """Return the table in Markdown."""
    lines = ["| " + " | ".join(HEADERS) + " |", "|" + "---|" * len(HEADERS)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in comparison.rows]
    return "\n".join(lines)


def cells(row: Row) -> list[str]:
    """Return one row of the table; a figure nobody has taken is a question mark."""
    gate = row.gate
    verdict = "?"
    if gate is not None:
        verdict = {True: "pass", False: "FAIL", None: "not judged"}[gate.passed]
    return [
        row.label + (" (double)" if row.double_quantised else ""),
        f"{row.size_bytes / (1 << 20):.1f}",
        _number(row.build_seconds, "{:.1f}"),
        _number(row.peak_resident_bytes, "{:.0f}", scale=1 / (1 << 20)),
        _number(row.ttft_ms, "{:.0f}"),
        _number(row.decode_tok_s, "{:.1f}"),
        _number(row.kl_mean_nats, "{:.4f}"),
        _number(row.top1_agreement, "{:.3f}"),
        verdict,
        "?" if row.delegated is None else str(row.delegated),
        "?" if row.fallback_count is None else f"{row.fallback_count}",
    ]


def _number(quantity: Quantity, form: str, *, scale: float = 1.0) -> str:
    if isinstance(quantity, Unknown):
        return "?"
    return form.format(float(quantity.number) * scale)


def _notes(comparison: Comparison) -> None:
    if not comparison.rows:
        say("nothing has been built from this checkpoint: edgewise build --for all --recipe int8")
    for row in comparison.rows:
        say(f"{row.label}: {row.formats}")
        if row.fallbacks:
            say(f"  fell back: {', '.join(row.fallbacks)}")
        for reason in row.gate.reasons if row.gate is not None else ():
            say(f"  gate {row.gate.gate.name if row.gate else ''}: {reason}")
        for problem in row.problems:
            say(f"  {problem}")
    if any(row.double_quantised for row in comparison.rows):
        say("(double): the checkpoint was quantised already, so this damage is counted twice")
