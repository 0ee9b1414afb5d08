"""``edgewise fingerprint`` and ``edgewise diff``."""

from __future__ import annotations

import click

from edgewise.cli.options import json_option
from edgewise.cli.output import print_json, print_table

__all__ = ["diff_command", "fingerprint"]


@click.command()
@click.argument("prefix", required=False)
@json_option
def fingerprint(prefix: str | None, *, as_json: bool) -> int:
    """Show the fingerprint of the active deployment, or of PREFIX, and all that it covers."""
    import msgspec

    from edgewise.workflow.context import Context

    bundles = Context().bundles
    bundle = bundles.active() if prefix is None else bundles.get(prefix)
    if as_json:
        print_json({"fingerprint": bundle.fingerprint, "deployment": bundle.deployment})
        return 0
    print(bundle.fingerprint)
    rows: list[list[str]] = []
    for section, value in msgspec.to_builtins(bundle.deployment).items():
        if isinstance(value, dict):
            rows += [[section, key, _flat(inner)] for key, inner in value.items()]
        else:
            rows.append([section, "", _flat(value)])
    print_table(["section", "field", "value"], rows)
    return 0


@click.command("diff")
@click.argument("before")
@click.argument("after", required=False)
@json_option
def diff_command(before: str, after: str | None, *, as_json: bool) -> int:
    """Say how deployment BEFORE differs from AFTER (by default the active one).

    For each field: both values, what the difference means, and which evidence it invalidates.
    """
    from edgewise.core.fingerprint import diff
    from edgewise.workflow.context import Context

    bundles = Context().bundles
    first = bundles.get(before)
    second = bundles.active() if after is None else bundles.get(after)
    found = diff(first.deployment, second.deployment)
    if as_json:
        print_json({"before": first.fingerprint, "after": second.fingerprint, "differences": found})
        return 0
    if not found:
        print("the same deployment")
        return 0
    print_table(
        ["field", "before", "after", "meaning", "take anew"],
        [
            [d.field, _flat(d.before), _flat(d.after), d.meaning, ", ".join(d.invalidates)]
            for d in found
        ],
    )
    return 0


def _flat(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= 72 else text[:69] + "..."
