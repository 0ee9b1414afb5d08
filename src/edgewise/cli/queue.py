"""``edgewise queue add | drain | list | show | retry | cancel | receipts | erase``."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli.options import json_option
from edgewise.cli.output import StepPrinter, paint, print_json, print_table, say
from edgewise.cli.queue_sending import add, drain
from edgewise.core import shown
from edgewise.errors import ExitCode

if TYPE_CHECKING:
    from edgewise.route.offline import Change, Entry, OfflineQueue

__all__ = ["queue"]

_BEFORE = click.DateTime(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])


@click.group(no_args_is_help=True)
def queue() -> None:
    """See what waits for the cloud, and decide about what cannot go on by itself."""


queue.add_command(add)
queue.add_command(drain)


@queue.command("list")
@click.option("--all", "everything", is_flag=True, help="Also what has ended.")
@json_option
def list_command(*, everything: bool, as_json: bool) -> int:
    """List the operations that wait or need somebody to decide, oldest first.

    Payloads and answers are never printed here.
    """
    from edgewise.route.offline import State

    opened = _open()
    quiet = {State.APPLIED, State.CANCELLED, State.EXPIRED, State.DECLINED, State.INCOMPATIBLE}
    entries = opened.entries(None if everything else set(State) - quiet)
    now = opened.now()
    if as_json:
        print_json({"operations": entries, "clock": now})
        return 0
    if now.skewed:
        say(f"the clock of this device is {now.skew_s:.0f} s behind what the queue has seen")
    if not entries:
        say("the queue is empty")
        return 0
    print_table(
        ["operation", "kind", "to", "state", "attempts", "expires", "why"],
        [
            [
                entry.operation.operation_id,
                entry.operation.kind,
                entry.operation.destination,
                entry.state,
                str(entry.attempts),
                _when(entry.operation.expires_s),
                _why(entry),
            ]
            for entry in entries
        ],
        whole={"operation"},
    )
    _tell_unknown(entries)
    return 0


@queue.command("show")
@click.argument("operation")
@click.option("--answer", is_flag=True, help="Print the stored answer and nothing else.")
@json_option
def show_command(operation: str, *, answer: bool, as_json: bool) -> int:
    """Show one OPERATION, by its identifier or the beginning of one."""
    opened = _open()
    entry = opened.entry(operation)
    if answer:
        return _print_answer(opened, entry, as_json=as_json)
    if as_json:
        print_json(entry)
        return 0
    told = entry.operation
    rows = [
        ["operation", told.operation_id],
        ["kind", told.kind],
        ["state", entry.state],
        ["why", _why(entry)],
        ["destination", told.destination],
        ["deduplicates", "yes" if told.deduplicates else "no"],
        ["feature, purpose", f"{told.feature}, {told.purpose}"],
        ["data class", told.data_class],
        ["priority", str(told.priority)],
        ["attempts", _attempts(entry)],
        ["at the server", _happened(entry)],
        ["queued", _when(told.created_s)],
        ["not before", _when(entry.not_before_s) if entry.not_before_s else ""],
        ["expires", _when(told.expires_s)],
        ["document", told.document.document_id if told.document else ""],
        ["apply to", told.apply_to or ""],
        ["payload", f"{told.payload_bytes} bytes, sha256 {told.payload_sha256}"],
        ["answer", f"sha256 {entry.answer_sha256}" if entry.answer_sha256 else ""],
    ]
    print_table(["", ""], [row for row in rows if row[1]])
    _tell_unknown((entry,))
    return 0


def _attempts(entry: Entry) -> str:
    """Say how often it was tried; which tries count is of interest while it is not answered."""
    if entry.answer_sha256 or not entry.attempts:
        return str(entry.attempts)
    return f"{entry.attempts}, {entry.tries} of them count against the most that are made"


def _happened(entry: Entry) -> str:
    if entry.answer_sha256:
        return "it happened, and was answered"
    if entry.may_have_happened or entry.state == "sending":
        return "it may have happened"
    return "nothing happened"


@queue.command("retry")
@click.argument("operation")
@click.option(
    "--accept-duplicate",
    is_flag=True,
    help="Send it although it may have happened, and can then happen twice.",
)
@json_option
def retry_command(operation: str, *, accept_duplicate: bool, as_json: bool) -> int:
    """Put a failed, declined or unknown OPERATION back into the queue.

    It is authorised anew before it is sent, like every other.
    """
    change = _open().retry(operation, accept_duplicate=accept_duplicate)
    return _print_change(change, "it is queued again", as_json=as_json)


@queue.command("cancel")
@click.argument("operation")
@json_option
def cancel_command(operation: str, *, as_json: bool) -> int:
    """End an OPERATION that waits."""
    change = _open().cancel(operation)
    return _print_change(change, f"it is {change.entry.state}", as_json=as_json)


@queue.command("receipts")
@json_option
def receipts_command(*, as_json: bool) -> int:
    """List the receipts of what servers did, oldest first."""
    found = _open().receipts()
    if as_json:
        print_json(found)
        return 0
    if not found:
        say("there are no receipts")
        return 0
    print_table(
        ["received", "kind", "by", "status", "operation", "request", "answer"],
        [
            [
                _when(receipt.received_s),
                receipt.kind,
                receipt.destination,
                str(receipt.status),
                receipt.operation_id,
                receipt.request_id,
                receipt.answer_sha256[:12],
            ]
            for receipt in found
        ],
        whole={"operation", "request"},
    )
    return 0


@queue.command("erase")
@click.argument("operations", nargs=-1)
@click.option("--ended", is_flag=True, help="Every operation that has ended.")
@click.option(
    "--receipts-before", type=_BEFORE, metavar="DATE", help="Receipts older than this, in UTC."
)
@json_option
def erase_command(
    operations: tuple[str, ...],
    *,
    ended: bool,
    receipts_before: dt.datetime | None,
    as_json: bool,
) -> int:
    """Erase ended OPERATIONS with their payloads and answers, or old receipts.

    The receipt of an operation stays until it is erased by its date. That a key was used stays
    known, as a digest, so that nothing is sent twice.
    """
    if not operations and not ended and receipts_before is None:
        raise click.UsageError("name operations, or give --ended or --receipts-before")
    opened = _open()
    names = list(operations)
    if ended:
        names += [e.operation.operation_id for e in opened.entries() if e.final]
    changes = [opened.erase(name) for name in dict.fromkeys(names)]
    gone = 0
    if receipts_before is not None:
        gone = opened.erase_receipts(before_s=receipts_before.replace(tzinfo=dt.UTC).timestamp())
    refused = [change for change in changes if not change.done]
    if as_json:
        print_json(
            {
                "erased": [c.entry.operation.operation_id for c in changes if c.done],
                "refused": refused,
                "receipts": gone,
            }
        )
    else:
        say(f"{len(changes) - len(refused)} operations and {gone} receipts are erased")
        for change in refused:
            _say_refused(change)
    return int(ExitCode.NEGATIVE if refused else ExitCode.OK)


def _open() -> OfflineQueue:
    from edgewise.route.offline import OfflineQueue
    from edgewise.workflow.context import Context

    return OfflineQueue(Context(report=StepPrinter()).home)


def _print_answer(opened: OfflineQueue, entry: Entry, *, as_json: bool) -> int:
    kept = opened.answer(entry.operation.operation_id)
    if as_json:
        print_json({"answer": None if kept is None else kept.decode("utf-8", "replace")})
    elif kept is None:
        say("no answer of it is stored")
    else:
        click.echo(shown.answer(_text_of(entry, kept)))
    return int(ExitCode.NEGATIVE if kept is None else ExitCode.OK)


def _text_of(entry: Entry, kept: bytes) -> str:
    """Return what the model said; the bytes as they are where they are another's answer."""
    from edgewise.errors import IntegrityError
    from edgewise.workflow.late_answers import read_late_answer

    try:
        late = read_late_answer(entry.operation, kept)
    except IntegrityError:
        return kept.decode("utf-8", "replace")
    for event in late.events:
        say(f"{paint('note', 'yellow')}: {event.code}: {event.message}")
    return late.text


def _print_change(change: Change, done: str, *, as_json: bool) -> int:
    if as_json:
        print_json(change)
    elif change.done:
        say(f"{change.entry.operation.operation_id}: {done}")
    else:
        _say_refused(change)
    return int(ExitCode.OK if change.done else ExitCode.NEGATIVE)


def _say_refused(change: Change) -> None:
    why = change.reason.words if change.reason else ""
    say(f"{paint('no', 'yellow')}: {change.entry.operation.operation_id}: {why}")


def _tell_unknown(entries: tuple[Entry, ...]) -> None:
    for entry in entries:
        if entry.state != "unknown":
            continue
        told = entry.operation
        how = "retry it: the server acts once per key, or erase it"
        if not told.deduplicates:
            how = "check there, then erase it, or retry it with --accept-duplicate"
        say(
            f"{paint('look', 'red')}: {told.operation_id} may have happened at "
            f"{told.destination}, and is not sent again by itself; {how}"
        )


def _why(entry: Entry) -> str:
    waiting = f"waits for {entry.hold}" if entry.hold else ""
    return "; ".join(part for part in (waiting, entry.reason) if part)


def _when(time_s: float) -> str:
    try:
        when: Any = dt.datetime.fromtimestamp(time_s, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_s:.0f} s"
    return str(when.isoformat(timespec="seconds").replace("+00:00", "Z"))
