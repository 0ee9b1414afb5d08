"""``edgewise egress``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli.options import json_option, policy_option, require_active
from edgewise.cli.output import paint, print_json, say, show
from edgewise.errors import ExitCode

if TYPE_CHECKING:
    from edgewise.testing.egress import EgressReport

__all__ = ["ask_locally", "egress"]

_QUESTION = "Repeat these words, please: "


@click.group()
def egress() -> None:
    """Check that what should stay on this device does."""


@egress.command("check")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--max-tokens",
    type=click.IntRange(1, 4096),
    default=16,
    show_default=True,
    help="Most tokens of the answer.",
)
@click.option("--fingerprint", metavar="PREFIX", help="Ask this bundle, not the active one.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Kill what runs then.",
)
@policy_option
@json_option
def check(
    command: tuple[str, ...],
    *,
    max_tokens: int,
    fingerprint: str | None,
    timeout_s: float,
    policy: Path | None,
    as_json: bool,
) -> int:
    """Run a request inside walls and say what left it: sockets, names, files, output, dumps.

    Without COMMAND a local-only question goes the way that `edgewise run` takes, by the policy.
    With one, that runs instead, such as `edgewise egress check -- edgewise run`; it gets the words
    that are searched for afterwards on its standard input, and its own standard output may repeat
    them.

    The exit code is 0 only when everything was verified.
    """
    from edgewise.testing.egress import Canary, EgressVerdict, run_isolated
    from edgewise.workflow.context import Context
    from edgewise.workflow.policies import has_policy

    context = Context()
    canary = Canary.mint()
    said: dict[str, bytes] = {}
    common: dict[str, Any] = {
        "canary": canary,
        "home": context.home.root,
        "timeout_s": timeout_s,
        "on_output": said.__setitem__,
    }
    if command:
        if policy is not None:
            raise click.UsageError("--policy is for the question; name the command's own behind it")
        report = run_isolated(command, stdin=canary.text.encode(), answer_on_stdout=True, **common)
        outcome = None
    else:
        path = None if policy is None else str(policy.resolve())
        if path is not None or has_policy(context):
            require_active(fingerprint)
        bundle = context.bundles.active() if fingerprint is None else None
        wanted = bundle.fingerprint if bundle is not None else fingerprint
        report = run_isolated(ask_locally, canary.text, wanted, max_tokens, path, **common)
        outcome = _outcome(said.get("stdout", b""))
    if as_json:
        import msgspec

        data = {"verdict": str(report.verdict), "outcome": outcome}
        print_json({**data, "report": msgspec.to_builtins(report)})
    else:
        _print(report, outcome, canary.mask(said.get("stderr", b"").decode("utf-8", "replace")))
    proven = report.verdict is EgressVerdict.PASS
    return int(ExitCode.OK if proven else ExitCode.NEGATIVE)


def ask_locally(
    text: str, fingerprint: str | None, max_tokens: int, policy: str | None = None
) -> int:
    """Ask a local-only question in this process, by a policy where there is one, as `run` does.

    Prints how it went, without content.
    """
    from edgewise.core.outcome import Completed, Failed
    from edgewise.core.request import DataClass, Message, Request
    from edgewise.workflow.context import Context
    from edgewise.workflow.opening import open_session
    from edgewise.workflow.policies import has_policy

    request = Request(
        messages=(Message(role="user", content=_QUESTION + text),),
        max_tokens=max_tokens,
        data_class=DataClass.LOCAL_ONLY,
    )
    context = Context()
    if policy is not None or has_policy(context):
        from edgewise.workflow.hybrid import open_hybrid

        with open_hybrid(context, None if policy is None else Path(policy)) as hybrid:
            outcome = hybrid.ask(request)
    else:
        with open_session(context, fingerprint) as session:
            outcome = session.ask(request)
    told: dict[str, Any] = {"outcome": type(outcome).__name__.lower()}
    told["route"] = str(outcome.provenance.route.route)
    told["policy"] = outcome.provenance.policy_version
    if isinstance(outcome, Failed):
        told["code"] = outcome.error["code"]
    print(json.dumps(told))
    return int(ExitCode.OK if isinstance(outcome, Completed) else ExitCode.NEGATIVE)


def _outcome(stdout: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(stdout)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _print(report: EgressReport, outcome: dict[str, Any] | None, stderr: str) -> None:
    colours = {"pass": "green", "fail": "red", "unverified": "yellow"}
    show(report.text())
    if outcome is not None:
        say("the request: " + ", ".join(f"{key} {value}" for key, value in outcome.items()))
    if report.exit_status:
        say(f"what ran ended with {report.exit_status}")
        for line in stderr.splitlines()[-5:]:
            say(f"  {line}")
    say(f"verdict: {paint(str(report.verdict), colours[report.verdict])}")
