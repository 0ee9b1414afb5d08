"""``edgewise plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from edgewise.cli.options import context_options, json_option, model_size
from edgewise.cli.output import (
    StepPrinter,
    paint,
    print_json,
    print_table,
    say,
    show,
    show_quantity,
)
from edgewise.core.recipe import KvType
from edgewise.core.units import mib
from edgewise.errors import ExitCode

if TYPE_CHECKING:
    from edgewise.planner import Plan

__all__ = ["plan"]


@click.command()
@click.argument("model", required=False)
@click.option(
    "--tier",
    default="this-device",
    show_default=True,
    help="Device class to plan for; --tier list names them.",
)
@context_options
@click.option("--draft", metavar="REF", help="Draft model beside it, which guesses tokens ahead.")
@click.option("--app", metavar="SIZE", help="Share of the hosting application, e.g. 64MiB.")
@click.option("--offline", is_flag=True, help="Use no network.")
@click.option(
    "--measure", is_flag=True, help="Also load the model here, fill its context, and compare."
)
@json_option
def plan(
    model: str | None,
    *,
    tier: str,
    context_length: int,
    kv_type: str | None,
    draft: str | None,
    app: str | None,
    offline: bool,
    measure: bool,
    as_json: bool,
) -> int:
    """Say whether MODEL fits TIER, what would make it fit, and how fast it can be.

    The answer is one of: fits, fits-with-changes, does-not-fit, unknown. The exit code is 0 for
    the first and 10 for the others.
    """
    from edgewise.planner import Verdict, tier_names
    from edgewise.workflow.context import Context
    from edgewise.workflow.planning import PlanRequest, plan_model

    if tier == "list":
        for name in ("this-device", *tier_names()):
            show(name)
        return 0
    printer = StepPrinter()
    context = Context(report=printer)
    request = PlanRequest(
        model=model,
        tier=tier,
        context_length=context_length,
        kv_type=KvType(kv_type or "f16"),
        app_bytes=model_size(app),
        offline=offline,
        draft=draft,
    )
    result = plan_model(context, request)
    measured = None
    if measure:
        from edgewise.workflow.measuring import measure_memory

        measured = measure_memory(context, request, result)
    printer.clear()
    if as_json:
        print_json(_document(result, measured))
    else:
        _show(result)
        if measured is not None:
            _show_measured(measured)
    return int(ExitCode.OK if result.verdict is Verdict.FITS else ExitCode.NEGATIVE)


def _document(result: Plan, measured: object) -> dict[str, object]:
    import msgspec

    data: dict[str, object] = msgspec.to_builtins(result)
    memory = msgspec.to_builtins(result.memory)
    memory["peak_bytes"] = msgspec.to_builtins(result.memory.peak_bytes)
    data["memory"] = memory
    if measured is not None:
        data["measured"] = msgspec.to_builtins(measured)
    return data


def _show(result: Plan) -> None:
    from edgewise.planner import Verdict

    colour = {Verdict.FITS: "green", Verdict.FITS_WITH_CHANGES: "yellow"}.get(result.verdict, "red")
    import sys

    show(
        f"{paint(result.verdict, colour, stream=sys.stdout)}  {result.model['name']} on "
        f"{result.tier.title}"
    )
    for reason in result.reasons:
        show(f"  {reason}")
    for change in result.changes:
        show(
            f"  change {change.setting}: {change.before} -> {change.after}, "
            f"saves {mib(change.saves_bytes)}"
        )
    memory = result.memory
    lines = {**memory.lines, "peak_bytes": memory.peak_bytes, "budget_bytes": memory.budget_bytes}
    rows = [
        [
            name.removesuffix("_bytes").replace("_", " "),
            show_quantity(line, "bytes"),
            getattr(line, "source", ""),
        ]
        for name, line in lines.items()
    ]
    decode, prefill = result.decode, result.prefill
    rows += [
        [name, show_quantity(value, unit), getattr(value, "source", "")]
        for name, value, unit in (
            ("bandwidth", decode.bandwidth_bytes_s, "bytes/s"),
            ("decode, at most", decode.ceiling_tok_s, "tok/s"),
            ("  context full", decode.ceiling_full_context_tok_s, "tok/s"),
            ("prefill, at most", prefill.ceiling_tok_s, "tok/s"),
        )
    ]
    print_table(["", "value", "source"], rows)
    if result.tier.notes:
        say(f"note: {result.tier.notes.strip()}")


def _show_measured(measured: object) -> None:
    import msgspec

    data = msgspec.to_builtins(measured)
    show(
        f"measured peak {mib(data['peak_bytes']['value'])} with the context full, "
        f"planned {mib(data['planned_bytes'])}: "
        f"{data['planned_over_measured_ratio']:.3f}"
    )
