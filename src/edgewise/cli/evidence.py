"""``edgewise evidence``."""

from __future__ import annotations

import click

from edgewise.cli.options import json_option
from edgewise.cli.output import StepPrinter, print_json, print_table, say

__all__ = ["evidence"]


@click.group()
def evidence() -> None:
    """List evidence, or open a piece of it."""


@evidence.command("list")
@click.option("--kind", help="Only this kind, e.g. smoke.")
@click.option("--subject", help="Only about the fingerprint or digest that begins so.")
@json_option
def list_command(kind: str | None, subject: str | None, *, as_json: bool) -> int:
    """List all evidence of the home, oldest first."""
    from edgewise.workflow.context import Context

    found = Context(report=StepPrinter()).evidence.find(kind=kind, subject=subject)
    if as_json:
        print_json(
            [
                {
                    "digest": digest,
                    "kind": piece.kind,
                    "subject": piece.subject,
                    "device": piece.device,
                    "created": piece.created,
                }
                for digest, piece in found
            ]
        )
        return 0
    if not found:
        say("no evidence matches" if kind or subject else "there is no evidence yet")
        return 0
    print_table(
        ["evidence", "kind", "about", "device", "created"],
        [
            [digest[:12], piece.kind, piece.subject[:12], piece.device[:12], piece.created]
            for digest, piece in found
        ],
    )
    return 0


@evidence.command("show")
@click.argument("digest")
@json_option
def show_command(digest: str, *, as_json: bool) -> int:
    """Print the piece of evidence whose digest begins with DIGEST, after verifying it.

    Evidence is JSON, with --json or without.
    """
    del as_json
    from edgewise.workflow.context import Context

    found, piece = Context(report=StepPrinter()).evidence.get(digest)
    print_json({"digest": found, "evidence": piece})
    return 0
