"""``edgewise convert``."""

from __future__ import annotations

import click

from edgewise.cli.options import json_option
from edgewise.cli.output import StepPrinter, print_json, say

__all__ = ["convert"]


@click.command()
@click.argument("model", required=False)
@click.option(
    "--to",
    "form",
    type=click.Choice(["hf", "gguf"]),
    required=True,
    help="A folder with config.json and safetensors, or one GGUF file.",
)
@click.option("--out", metavar="PATH", required=True, help="Where to; must not exist.")
@click.option(
    "--dtype",
    type=click.Choice(["f32", "f16", "bf16"]),
    default="f32",
    show_default=True,
    help="Number format of the matrices.",
)
@click.option("--layers", type=click.IntRange(min=1), help="Take only the first layers (to hf).")
@click.option("--offline", is_flag=True, help="Use no network.")
@json_option
def convert(
    model: str | None,
    *,
    form: str,
    out: str,
    dtype: str,
    layers: int | None,
    offline: bool,
    as_json: bool,
) -> int:
    """Convert MODEL between its two forms: GGUF and Hugging Face safetensors.

    Quantised weights are dequantised; their damage stays. Tokenizer, template and end tokens
    come along. Neither torch nor transformers is needed.
    """
    from edgewise.workflow.context import Context
    from edgewise.workflow.converting import ConvertRequest, convert_checkpoint

    printer = StepPrinter()
    report = convert_checkpoint(
        Context(report=printer),
        ConvertRequest(
            model=model, form=form, destination=out, dtype=dtype, layers=layers, offline=offline
        ),
    )
    printer.clear()
    if as_json:
        print_json(report)
        return 0
    if report.dequantised:
        say("the source was quantised; its numbers are written out as they were rounded")
    print(report.path)
    return 0
