"""``edgewise policy``."""

from __future__ import annotations

import base64
import os
import secrets
import sys
from pathlib import Path

import click

from edgewise.cli.options import json_option
from edgewise.cli.output import StepPrinter, paint, print_json, show
from edgewise.cli.policy_records import diff, records
from edgewise.errors import ExitCode, InputError

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
    from edgewise.route.policy_lint import Severity, lint_policy
    from edgewise.workflow.context import Context
    from edgewise.workflow.routing import load_policy

    loaded = load_policy(Context(report=StepPrinter()), file)
    findings = lint_policy(loaded.policy)
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


@policy.command("keygen")
@click.argument("name")
@click.option("--key", type=_FILE, required=True, help="Where the private key goes.")
@json_option
def keygen_command(name: str, key: Path, *, as_json: bool) -> int:
    """Make a key to sign policies with, and trust it in this home under NAME."""
    from edgewise.route.policy_file import public_key
    from edgewise.workflow.context import Context
    from edgewise.workflow.routing import keys_folder

    if not name.isidentifier():
        raise InputError(
            "policy-key-invalid",
            f"{name!r} is no name for a key",
            hint="use letters, digits and underscores",
        )
    private = secrets.token_bytes(32)
    public = public_key(private)
    try:
        descriptor = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InputError(
            "policy-key-invalid",
            f"{key} cannot be written: {error.strerror}",
            hint="name a new file",
        ) from error
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(base64.b64encode(private) + b"\n")
    context = Context(report=StepPrinter())
    trusted = keys_folder(context) / f"{name}.pub"
    context.home.write(trusted, base64.b64encode(public) + b"\n")
    if as_json:
        print_json({"private_key": str(key), "trusted": str(trusted)})
        return 0
    show(f"{key}: the private key; whoever has it decides what leaves")
    show(f"{trusted}: this home trusts it; put the same file into other homes")
    return 0


@policy.command("sign")
@click.argument("file", type=_FILE)
@click.option("--key", type=_FILE, required=True, help="The private key.")
@json_option
def sign_command(file: Path, key: Path, *, as_json: bool) -> int:
    """Sign FILE; the signature goes into FILE.sig."""
    from edgewise.route.policy_file import parse_policy, private_key, sign_policy

    found = parse_policy(file)
    beside = file.with_name(f"{file.name}.sig")
    beside.write_text(sign_policy(found, private_key(key)) + "\n", encoding="ascii")
    if as_json:
        print_json({"signature": str(beside), "policy": found.version})
        return 0
    show(f"{beside}: the signature of {found.version}")
    return 0


policy.add_command(diff)
policy.add_command(records)
