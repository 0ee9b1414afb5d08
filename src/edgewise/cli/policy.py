"""``edgewise policy``."""

from __future__ import annotations

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

    Unreachable rules, contradictions, and destinations without a basis, a purpose or declared
    fields are errors and end with exit code 10.
    """
    from edgewise.route.policy_lint import Finding, Severity, lint_policy
    from edgewise.workflow.context import Context
    from edgewise.workflow.policies import inspect_policy

    loaded, refused = inspect_policy(Context(report=StepPrinter()), file)
    findings = list(lint_policy(loaded.policy))
    if refused is not None:
        findings.insert(
            0,
            Finding(
                code=refused.code,
                severity=Severity.WARNING,
                place="revision",
                message=f"{refused.message}; it is refused here",
            ),
        )
    wrong = any(found.severity is Severity.ERROR for found in findings)
    if as_json:
        print_json(
            {
                "policy": loaded.policy.version,
                "sha256": loaded.policy.digest,
                "trust": loaded.trust,
                "trust_reason": loaded.reason,
                "findings": findings,
                "passed": not wrong,
            }
        )
    else:
        show(f"{loaded.policy.version}: {loaded.trust}, {loaded.reason}")
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
