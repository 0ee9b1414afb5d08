"""``edgewise build``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from edgewise.cli.options import json_option, model_size, parse_overrides
from edgewise.cli.output import StepPrinter, print_json, print_table, say, show_quantity
from edgewise.core.formats import Activation
from edgewise.core.recipe import KvType
from edgewise.errors import ExitCode, error_from_dict

if TYPE_CHECKING:
    from edgewise.core.recipe import Recipe
    from edgewise.workflow.building import BuildReport, Built

__all__ = ["build"]


@click.command()
@click.argument("model", required=False)
@click.option(
    "--for",
    "runtimes",
    multiple=True,
    required=True,
    metavar="RUNTIME[,RUNTIME…]",
    help="Runtimes to build for; `all` stands for every one that can export here.",
)
@click.option(
    "--recipe",
    default="as-is",
    show_default=True,
    help="What the weights become: f16, int8, int4-g32-sym, w4a8, a runtime's own name, as-is.",
)
@click.option("--embedding", help="Format of the token embedding.")
@click.option("--head", help="Format of the output matrix.")
@click.option(
    "--activation",
    type=click.Choice([str(a) for a in Activation]),
    help="How activations enter the matrix products.",
)
@click.option("--method", help="Calibration method: rtn, imatrix, awq, gptq, hqq, static, ….")
@click.option(
    "--calibration",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Text to calibrate with, a sample per line.",
)
@click.option(
    "--override",
    multiple=True,
    metavar="PATTERN=TYPE",
    help="Type for the tensors whose name matches; repeatable.",
)
@click.option(
    "--kv",
    "kv_type",
    type=click.Choice([str(k) for k in KvType]),
    help="KV cache format, for runtimes that fix it when they export.",
)
@click.option(
    "--context",
    "context_length",
    type=click.IntRange(min=1),
    help="Longest context, for runtimes that fix it when they export.",
)
@click.option("--memory-limit", metavar="SIZE", help="Most memory an exporter may take, e.g. 4GiB.")
@click.option("--again", is_flag=True, help="Build also what has been built before.")
@click.option("--offline", is_flag=True, help="Use no network.")
@json_option
def build(model: str | None, *, runtimes: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Build MODEL for one runtime or several, by one recipe.

    What the recipe leaves open is the runtime's choice, and the receipt names it. A recipe that
    a runtime cannot honour is refused with the nearest one it can; the other runtimes are built
    all the same.
    """
    from edgewise.workflow.building import BuildRequest, build_for, require_names
    from edgewise.workflow.context import Context

    printer = StepPrinter()
    request = BuildRequest(
        model=model,
        runtimes=require_names(runtimes),
        recipe=_recipe(options),
        calibration=options["calibration"],
        again=options["again"],
        offline=options["offline"],
        memory_limit_bytes=model_size(options["memory_limit"]),
    )
    report = build_for(Context(report=printer), request)
    printer.clear()
    if as_json:
        print_json(report)
    else:
        _print(report)
    return max((_exit_code(result) for result in report.results), default=0)


def _exit_code(result: Built) -> int:
    """Return the code of a runtime's own error; under ``all`` none for one that cannot export."""
    if result.error is None or result.status == "skipped":
        return int(ExitCode.OK)
    return int(error_from_dict(result.error).exit_code)


def _recipe(options: dict[str, Any]) -> Recipe:
    from edgewise.core.recipe import Recipe

    weights = options["recipe"].strip().lower()
    return Recipe(
        name="as-shipped" if weights == "as-is" else weights,
        weights=weights,
        embedding=options["embedding"],
        output=options["head"],
        activation=None if options["activation"] is None else Activation(options["activation"]),
        method=options["method"],
        kv=None if options["kv_type"] is None else KvType(options["kv_type"]),
        context_length=options["context_length"],
        overrides=parse_overrides(options["override"]),
    )


def _print(report: BuildReport) -> None:
    print_table(
        ["runtime", "result", "format", "MiB", "seconds", "peak", "artifact"],
        [_row(result) for result in report.results],
    )
    for result in report.results:
        error = result.error or {}
        if error:
            say(f"{result.runtime}: {error.get('code')}: {error.get('message')}")
            if error.get("hint"):
                say(f"  hint: {error['hint']}")
        if result.receipt is not None and result.receipt.deviations:
            count = len(result.receipt.deviations)
            say(
                f"{result.runtime}: {count} tensors have another type than asked; --json names them"
            )


def _row(result: Built) -> list[str]:
    receipt = result.receipt
    if receipt is None:
        return [result.runtime, result.status, "", "", "", "", ""]
    return [
        result.runtime,
        result.status,
        "as it was" if receipt.resolved is None else receipt.resolved.name,
        f"{receipt.size_bytes / (1 << 20):.1f}",
        show_quantity(receipt.seconds),
        show_quantity(receipt.peak_memory_bytes, "bytes"),
        receipt.sha256[:12],
    ]
