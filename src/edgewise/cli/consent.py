"""``edgewise consent list | grant | deny | revoke | export | erase | verify | trust-clock``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgewise.cli.dates import moment_of, shown_date
from edgewise.cli.options import json_option
from edgewise.cli.output import StepPrinter, paint, print_json, print_table, say
from edgewise.errors import EdgewiseError, ExitCode, InputError

if TYPE_CHECKING:
    from edgewise.route.consent import ConsentLedger, ConsentScope, LedgerEntry
    from edgewise.route.coverage import Coverage
    from edgewise.route.policy import Policy

__all__ = ["consent"]

F = TypeVar("F", bound=Callable[..., Any])
_SCOPE = ("feature", "data_class", "destination", "purpose")
_policy_option = click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="Policy that declares the destination. Default: the home's.",
)


@click.group(no_args_is_help=True)
def consent() -> None:
    """See, give, refuse and take back consent to send data off this device.

    A consent is for one feature, data class, destination and purpose, named in full. It is for
    one use, unless the policy allows more and you say so.
    """


def _scope_options(*, required: bool) -> Callable[[F], F]:
    helps = {
        "feature": "The feature that asks.",
        "data_class": "The class of its data, such as personal.",
        "destination": "The destination, by its name in the policy.",
        "purpose": "Why data goes there, in the policy's words.",
    }

    def add(function: F) -> F:
        for name in reversed(_SCOPE):
            option = f"--{name.replace('_', '-')}"
            function = click.option(
                option, name, metavar="TEXT", required=required, help=helps[name]
            )(function)
        return function

    return add


@consent.command("list")
@click.option("--in-force", is_flag=True, help="Only what stands now.")
@_policy_option
@json_option
def list_command(*, in_force: bool, policy: Path | None, as_json: bool) -> int:
    """List every decision, oldest first, and what became of it.

    An agreement stands and covers nothing once the policy declares its destination otherwise.
    """
    found = [entry for entry in _ledger().entries() if entry.in_force or not in_force]
    covered = _covered(found, policy)
    if as_json:
        print_json([_told(entry, covered.get(entry.id)) for entry in found])
    elif found:
        headers = ["decision", "state", "use", "feature", "data class", "destination", "purpose"]
        rows = [_row(entry, covered.get(entry.id)) for entry in found]
        print_table(headers, rows, whole={"decision"})
        for name, one in covered.items():
            if one.covers is False:
                say(f"{paint('look', 'yellow')}: {name} covers nothing now: {one.reason}")
    else:
        say("no consent stands" if in_force else "nothing was decided yet")
    return 0


@consent.command()
@_scope_options(required=True)
@click.option("--until", metavar="DATE", help="When it ends: a day, or a time in ISO 8601.")
@click.option("--standing", is_flag=True, help="For every use until then, if the policy allows.")
@_policy_option
@json_option
def grant(
    *, until: str | None, standing: bool, policy: Path | None, as_json: bool, **scope: str
) -> int:
    """Agree, for one use, to the destination as the policy declares it now.

    A day counts to its end, in this device's time zone.
    """
    from edgewise.route.consent import Origin
    from edgewise.route.coverage import require_asked

    wanted = _scope(scope)
    ends = None if until is None else moment_of(until)
    declared = _policy(policy)
    given = _ledger().grant(
        wanted,
        require_asked(declared, wanted),
        origin=Origin.CLI,
        once=not standing,
        expires_at=ends,
        standing_allowed=standing and _standing_allowed(declared, wanted, ends),
    )
    if as_json:
        print_json(given)
    else:
        how = "every use" if standing else "one use"
        end = "" if given.expires_at is None else f", until {shown_date(given.expires_at)}"
        print(f"agreed for {how}{end}; take it back with: edgewise consent revoke {given.id}")
    return 0


@consent.command()
@_scope_options(required=True)
@_policy_option
@json_option
def deny(*, policy: Path | None, as_json: bool, **scope: str) -> int:
    """Refuse what some request under the policy asks for. What was agreed to before ends."""
    from edgewise.route.consent import Origin
    from edgewise.route.coverage import require_asked

    wanted = _scope(scope)
    require_asked(_policy(policy), wanted)
    decision = _ledger().deny(wanted, origin=Origin.CLI)
    if as_json:
        print_json({"decision": decision})
    else:
        print(f"refused; take it back with: edgewise consent revoke {decision}")
    return 0


@consent.command()
@click.argument("decision", required=False)
@_scope_options(required=False)
@json_option
def revoke(decision: str | None, *, as_json: bool, **scope: str | None) -> int:
    """Take back a DECISION, or all that stand for a scope. A refusal is taken back too.

    A decision is named by its identifier or the beginning of one.
    """
    from edgewise.route.consent import Origin

    named = any(text is not None for text in scope.values())
    if named is (decision is not None):
        raise InputError(
            "consent-scope-invalid",
            "it is not said what to take back",
            hint="name a decision, or a scope by its four options",
        )
    ledger = _ledger()
    what = _scope(scope) if decision is None else ledger.find(decision)
    ended = ledger.revoke(what, origin=Origin.CLI)
    if as_json:
        print_json({"ended": ended})
    else:
        print(f"{_decisions(ended)} taken back" if ended else "nothing stood")
    return 0


@consent.command()
@json_option
def export(*, as_json: bool) -> int:
    """Print all that the ledger holds, as JSON, with --json or without."""
    del as_json
    print_json(_ledger().export())
    return 0


@consent.command()
@_scope_options(required=False)
@click.option("--all", "everything", is_flag=True, help="All scopes.")
@json_option
def erase(*, everything: bool, as_json: bool, **scope: str | None) -> int:
    """Remove what the ledger knows about a scope, and end what stands for it.

    That something was decided and erased stays in the audit; what it was about does not.
    """
    from edgewise.route.consent import Origin

    named = any(text is not None for text in scope.values())
    if named is everything:
        raise InputError(
            "consent-scope-invalid",
            "it is not said what to erase",
            hint="name a scope by its four options, or give --all",
        )
    done = _ledger().erase(None if everything else _scope(scope), origin=Origin.CLI)
    if as_json:
        print_json(done)
        return 0
    scopes = "1 scope" if done.scopes == 1 else f"{done.scopes} scopes"
    print(f"{scopes} erased, {_decisions(done.ended)} ended" if done.scopes else "nothing is known")
    if not done.log_emptied:
        say("another process reads the database: its log keeps the texts until that ends")
    return 0


@consent.command()
@click.option("--head", metavar="SEQ:DIGEST", help="A head kept earlier, to hold against it.")
@json_option
def verify(*, head: str | None, as_json: bool) -> int:
    """Say whether the audit is whole, and all else follows from it."""
    from edgewise.core.shown import plain

    found = _ledger().verify(head)
    if as_json:
        print_json(found)
    else:
        rows = "1 row" if found.rows == 1 else f"{found.rows} rows"
        print(f"{'intact' if found.intact else 'damaged'}: {rows}, head {plain(found.head)}")
        for problem in found.problems:
            say(f"  {plain(problem)}")
    return int(ExitCode.OK if found.intact else ExitCode.NEGATIVE)


@consent.command("trust-clock")
@json_option
def trust_clock(*, as_json: bool) -> int:
    """Take the clock as right again after it was wrong.

    Every consent with a date ends, so that none comes to life again by it.
    """
    from edgewise.route.consent import Origin

    ended = _ledger().trust_clock(origin=Origin.CLI)
    if as_json:
        print_json({"ended": ended})
    else:
        print(f"the clock is trusted again; {_decisions(ended)} with a date ended")
    return 0


def _ledger() -> ConsentLedger:
    from edgewise.route.consent import ConsentLedger
    from edgewise.store import Home

    return ConsentLedger(Home())


def _policy(path: Path | None) -> Policy:
    from edgewise.workflow.context import Context
    from edgewise.workflow.policies import load_policy

    return load_policy(Context(report=StepPrinter()), path).policy


def _standing_allowed(policy: Policy, scope: ConsentScope, ends: dt.datetime | None) -> bool:
    """Whether a policy lets a consent of this scope stand until a date."""
    days = policy.asks(scope.data_class, scope.destination).standing_days
    if not days:
        return False
    return ends is None or ends <= dt.datetime.now(dt.UTC) + dt.timedelta(days=days)


def _covered(entries: list[LedgerEntry], path: Path | None) -> dict[str, Coverage]:
    """Return what each grant in force covers under a policy; nothing where none can be read."""
    from edgewise.route.coverage import coverage

    try:
        declared = _policy(path)
    except EdgewiseError as error:
        if path is not None:
            raise
        say(f"{paint('note', 'yellow')}: what is covered cannot be told: {error.message}")
        return {}
    found = {entry.id: coverage(declared, entry) for entry in entries}
    return {name: one for name, one in found.items() if one.covers is not None}


def _told(entry: LedgerEntry, covered: Coverage | None) -> dict[str, Any]:
    import msgspec

    told: dict[str, Any] = msgspec.to_builtins(entry)
    told["covers"] = None if covered is None else covered.covers
    told["uncovered"] = "" if covered is None else covered.reason
    return told


def _scope(texts: dict[str, Any]) -> ConsentScope:
    from edgewise.route.consent import ConsentScope

    missing = [f"--{name.replace('_', '-')}" for name in _SCOPE if texts[name] is None]
    if missing:
        raise InputError(
            "consent-scope-invalid",
            f"a scope has four parts, and {', '.join(missing)} is missing",
            hint="name a feature, data class, destination and purpose",
        )
    return ConsentScope(**texts)


def _row(entry: LedgerEntry, covered: Coverage | None) -> list[str]:
    from edgewise.core.shown import plain

    scope = entry.scope
    texts = ["(erased)"] * 4 if scope is None else [getattr(scope, name) for name in _SCOPE]
    nothing = covered is not None and covered.covers is False
    state = f"{entry.state}, covers nothing" if nothing else str(entry.state)
    return [plain(entry.id), state, _use(entry), *(plain(text) for text in texts)]


def _use(entry: LedgerEntry) -> str:
    if str(entry.kind) == "deny":
        return ""
    end = "" if entry.expires_at is None else f" until {shown_date(entry.expires_at)}"
    return f"once{end}" if entry.once else f"{entry.uses} times{end}"


def _decisions(count: int) -> str:
    return "1 decision" if count == 1 else f"{count} decisions"
