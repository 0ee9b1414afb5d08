"""``edgewise policy keygen | sign | accept | marks``."""

from __future__ import annotations

import base64
import datetime as dt
import os
import secrets
from pathlib import Path

import click

from edgewise.cli.options import json_option
from edgewise.cli.output import StepPrinter, print_json, print_table, say, show
from edgewise.errors import InputError, ResourceError

__all__ = ["accept", "keygen", "marks", "sign"]

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("name")
@click.option("--key", type=_FILE, required=True, help="Where the private key goes.")
@click.option(
    "--replace", is_flag=True, help="Trust the new key in place of the one called NAME so far."
)
@json_option
def keygen(name: str, key: Path, *, replace: bool, as_json: bool) -> int:
    """Make a key to sign policies with, and trust it in this home under NAME."""
    from edgewise.route.policy_file import public_key
    from edgewise.workflow.context import Context
    from edgewise.workflow.policies import keys_folder

    if not name.isidentifier():
        raise InputError(
            "policy-key-invalid",
            f"{name!r} is no name for a key",
            hint="use letters, digits and underscores",
        )
    context = Context(report=StepPrinter())
    trusted = keys_folder(context) / f"{name}.pub"
    private = secrets.token_bytes(32)
    public = public_key(private)
    with context.home.lock("policy-keys"):
        known = os.path.lexists(trusted)
        if known and not replace:
            raise _taken(name, trusted)
        _write_private(key, private)
        context.home.write(trusted, base64.b64encode(public) + b"\n")
    if as_json:
        print_json({"private_key": str(key), "trusted": str(trusted), "replaced": known})
        return 0
    show(f"{key}: the private key; whoever has it decides what leaves")
    show(f"{trusted}: this home trusts it; put the same file into other homes")
    if known:
        show("the key that was called so is trusted no more; policies it signed are to be resigned")
    return 0


@click.command()
@click.argument("file", type=_FILE)
@click.option("--key", type=_FILE, required=True, help="The private key.")
@json_option
def sign(file: Path, key: Path, *, as_json: bool) -> int:
    """Sign FILE; the signature goes into FILE.sig."""
    from edgewise.route.policy_file import parse_policy, private_key, sign_policy

    found = parse_policy(file)
    line = sign_policy(found, private_key(key))
    beside = file.with_name(f"{file.name}.sig")
    try:
        beside.write_text(line + "\n", encoding="ascii")
    except OSError as error:
        raise ResourceError(
            "policy-signature-unwritable",
            f"the signature {beside} cannot be written: {error.strerror or error}",
            context={"path": str(beside)},
            hint="sign a copy in a folder that can be written",
        ) from error
    if as_json:
        print_json({"signature": str(beside), "policy": found.version})
        return 0
    show(f"{beside}: the signature of {found.version}")
    return 0


@click.command()
@click.argument("file", type=_FILE)
@json_option
def accept(file: Path, *, as_json: bool) -> int:
    """Let the signed policy FILE be in force here, though a newer one of its name was.

    It says what it goes back from and to, and leaves a mark that is never removed.
    """
    from edgewise.workflow.context import Context
    from edgewise.workflow.policies import accept_policy

    before, after = accept_policy(Context(report=StepPrinter()), file)
    if as_json:
        print_json({"before": before, "after": after})
        return 0
    if before == after:
        show(f"{after.name}: {after.version} is in force here already")
    elif before is None:
        show(f"{after.name}: {after.version}; none of its name was in force here before")
    else:
        way = "back" if after.revision < before.revision else "on"
        show(f"{after.name}: {way} from {before.version} to {after.version}")
    return 0


@click.command()
@json_option
def marks(*, as_json: bool) -> int:
    """List which signed policies were in force here, oldest first; the last of a name holds."""
    from edgewise.route.policy_marks import PolicyMarks
    from edgewise.store import Home

    found = PolicyMarks(Home()).all()
    if as_json:
        print_json(found)
    elif found:
        rows = [
            [_time(one.at_ms), one.event, one.name, str(one.revision), one.digest[:12], one.key]
            for one in found
        ]
        print_table(["time (UTC)", "event", "policy", "revision", "SHA-256", "key"], rows)
    else:
        say("no signed policy was in force here yet")
    return 0


def _time(at_ms: int) -> str:
    return f"{dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC):%Y-%m-%d %H:%M}"


def _write_private(path: Path, private: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(base64.b64encode(private) + b"\n")
    except OSError as error:
        raise _unwritable(path, error) from error


def _taken(name: str, trusted: Path) -> InputError:
    return InputError(
        "policy-key-exists",
        f"this home trusts a key called {name} already",
        context={"path": str(trusted)},
        hint="take another name; with --replace, what the old key signed is trusted no more",
    )


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        "policy-key-invalid",
        f"{path} cannot be written: {error.strerror or error}",
        context={"path": str(path)},
        hint="name a new file in a folder that can be written",
    )
