"""``edgewise policy diff`` and ``edgewise policy records list | export | clear``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from edgewise.cli.options import json_option
from edgewise.cli.output import print_json, print_table, say, show
from edgewise.errors import ExitCode, ResourceError

if TYPE_CHECKING:
    from edgewise.route.policy_diff import PolicyDiff, Tally
    from edgewise.route.records import RecordStore

__all__ = ["diff", "records"]

_FILE = click.Path(path_type=Path)
_UNNAMED = "(not named)"


@click.command("diff")
@click.argument("old", type=_FILE)
@click.argument("new", type=_FILE)
@click.option(
    "--records",
    type=_FILE,
    help="Exported records, JSON Lines. Default: those of the home.",
)
@json_option
def diff(old: Path, new: Path, *, records: Path | None, as_json: bool) -> int:
    """Say which recorded decisions NEW makes otherwise than OLD.

    Ends with exit code 10 when there are any, or when a record does not tell.
    """
    from edgewise.route.policy_diff import policy_diff, read_records
    from edgewise.route.policy_file import parse_policy

    before, after = parse_policy(old), parse_policy(new)
    lost = 0
    if records is None:
        held = _store().read()
        found, lost = held.records, held.lost
    else:
        found = read_records(records)
    told = policy_diff(before, after, found)
    if as_json:
        print_json({**msgspec.to_builtins(told), "lost": lost})
    else:
        _show(told, lost)
    same = not told.changed and not told.undecided
    return int(ExitCode.OK if same else ExitCode.NEGATIVE)


@click.group(no_args_is_help=True)
def records() -> None:
    """See and erase what is recorded of decisions; it holds no content."""


@records.command("list")
@json_option
def list_command(*, as_json: bool) -> int:
    """List what is recorded, by day, task, data and route; with --json, each record."""
    held = _store().read()
    if as_json:
        print_json(held)
        return 0
    groups: dict[tuple[str, ...], list[float]] = {}
    for record in held.records:
        where = f"{record.route} {record.destination}".strip()
        key = (record.day, record.task or _UNNAMED, record.data_class or _UNNAMED, where)
        groups.setdefault(key, []).append(record.weight)
    if groups:
        print_table(
            ["day", "task", "data", "route", "records", "stand for"],
            [
                [*key, str(len(found)), f"{sum(found):.10g}"]
                for key, found in sorted(groups.items())
            ],
        )
    else:
        say("nothing is recorded")
    _tell_lost(held.lost)
    return 0


@records.command("export")
@click.argument("file", type=_FILE)
@json_option
def export_command(file: Path, *, as_json: bool) -> int:
    """Write the records to FILE, a new one, as JSON Lines."""
    held = _store().read()
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            for record in held.records:
                stream.write(msgspec.json.encode(record) + b"\n")
    except OSError as error:
        raise ResourceError(
            "route-records-unwritable",
            f"{file} cannot be written: {error.strerror or error}",
            context={"path": str(file)},
            hint="name a new file in a folder that can be written",
        ) from error
    if as_json:
        print_json({"file": str(file), "records": len(held.records), "lost": held.lost})
        return 0
    show(f"{file}: {_count(len(held.records))}")
    _tell_lost(held.lost)
    return 0


@records.command("clear")
@json_option
def clear_command(*, as_json: bool) -> int:
    """Erase all records; their bytes are overwritten."""
    done = _store().clear()
    if as_json:
        print_json(done)
        return 0
    show(f"{_count(done.records)} erased")
    if not done.log_emptied:
        say("another process reads the database: its log keeps the records until that ends")
    return 0


def _store() -> RecordStore:
    from edgewise.route.records import RecordStore
    from edgewise.store import Home

    return RecordStore(Home())


def _show(told: PolicyDiff, lost: int) -> None:
    if told.changed:
        print_table(
            ["requests", "task", "data", "before", "after", "rules that say otherwise"],
            [
                [
                    _amount(one.tally),
                    _task(one.task, one.queued_for),
                    one.data_class or _UNNAMED,
                    str(one.before),
                    str(one.after),
                    ", ".join(one.rules),
                ]
                for one in told.changed
            ],
        )
    if told.undecided:
        show("cannot be told:")
        print_table(
            ["requests", "task", "data", "before", "after", "depends on"],
            [
                [
                    _amount(one.tally),
                    _task(one.task, one.queued_for),
                    one.data_class or _UNNAMED,
                    " or ".join(map(str, one.before)),
                    " or ".join(map(str, one.after)),
                    ", ".join(one.because),
                ]
                for one in told.undecided
            ],
        )
    total = f"{_count(told.all.records)} from {told.since} to {told.until}"
    show(f"{total}, for {_amount(told.all)} requests; {_amount(told.unchanged)} stay")
    if told.otherwise:
        say(f"{_count(told.otherwise)} say another decision than OLD makes now")
    _tell_lost(lost)


def _task(task: str | None, queued_for: str) -> str:
    name = task or _UNNAMED
    return f"{name} (queued for {queued_for})" if queued_for else name


def _amount(tally: Tally) -> str:
    """Return how many requests; with the standard error where they were drawn by chance."""
    number = tally.requests.number
    if not tally.standard_error:
        return f"{number:.10g}"
    return f"about {number:.0f} ± {tally.standard_error:.0f}"


def _count(number: int) -> str:
    return "1 record" if number == 1 else f"{number} records"


def _tell_lost(lost: int) -> None:
    if lost:
        say(f"{_count(lost)} of these days could not be written and are missing")
