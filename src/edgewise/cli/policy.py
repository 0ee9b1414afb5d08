"""``edgewise policy``."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

import click

from edgewise.cli.options import json_option
from edgewise.cli.output import StepPrinter, paint, print_json, show
from edgewise.cli.policy_records import diff, records
from edgewise.cli.policy_signing import accept, keygen, marks, sign
from edgewise.errors import ExitCode

__all__ = ["policy"]

_FILE = click.Path(path_type=Path)
_COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}


@click.group()
def policy() -> None:
    """Check, sign and compare routing policies."""


@policy.command("check")
@click.argument("file", type=_FILE)
@json_option
def check_command(file: Path, *, as_json: bool) -> int:
    """Read FILE and say what is wrong with it.

    Unreachable rules, contradictions, an end that is over, and destinations without a basis, a
    purpose or declared fields are errors and end with exit code 10.
    """
    from edgewise.route.policy_lint import Finding, Severity, lint_policy, lint_trust
    from edgewise.route.policy_standing import standing
    from edgewise.workflow.context import Context
    from edgewise.workflow.policies import inspect_policy

    loaded, refused = inspect_policy(Context(report=StepPrinter()), file)
    now = dt.datetime.now(dt.UTC)
    told = standing(loaded, now)
    findings = [*lint_trust(loaded), *lint_policy(loaded.policy, now)]
    if refused is not None:
        why = f"it is refused here: {refused.message}"
        findings.insert(
            0,
            Finding(code=refused.code, severity=Severity.WARNING, place="revision", message=why),
        )
    wrong = any(found.severity is Severity.ERROR for found in findings)
    if as_json:
        print_json({"policy": told, "findings": findings, "passed": not wrong})
    else:
        show(f"{told.why}")
        for found in findings:
            said = paint(found.severity, _COLOURS[found.severity], stream=sys.stdout)
            show(f"{said} {found.place}: {found.message} ({found.code})")
        if not findings:
            show("nothing is wrong with it")
    return int(ExitCode.NEGATIVE if wrong else ExitCode.OK)


@policy.command("schema")
@json_option
def schema_command(*, as_json: bool) -> int:
    """Print the JSON Schema of policies, with --json or without."""
    del as_json
    from edgewise.route.policy_file import policy_schema

    print_json(policy_schema())
    return 0


for _command in (keygen, sign, accept, marks, diff, records):
    policy.add_command(_command)
