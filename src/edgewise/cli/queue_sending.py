"""``edgewise queue add | drain``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli.options import contacts_option, json_option, policy_option, read_prompt
from edgewise.cli.output import StepPrinter, paint, print_json, say
from edgewise.core.state import LinkState
from edgewise.errors import ExitCode

if TYPE_CHECKING:
    from edgewise.core.request import Request
    from edgewise.route.offline import (
        DocumentVersion,
        DrainReport,
        Entry,
        Queued,
        Refused,
    )
    from edgewise.workflow.late_answers import FileApplied

__all__ = ["add", "drain"]


@click.command()
@click.argument("prompt", required=False)
@click.option("--task", required=True, metavar="TEXT", help="Task class; it must be delay-safe.")
@click.option("--data-class", required=True, metavar="TEXT", help="How far the content may travel.")
@click.option("--to", "destination", metavar="NAME", help="Destination. Default: the task's first.")
@click.option(
    "--document", type=click.Path(path_type=Path), help="Text file that the question is about."
)
@click.option(
    "--apply-to",
    type=click.Path(path_type=Path),
    help="File for the answer: a new one, or the document itself.",
)
@click.option("--system", metavar="TEXT", help="System message.")
@click.option("--max-tokens", type=int, help="Most tokens to generate. [default: 512]")
@click.option(
    "--expires", type=float, default=86400.0, show_default=True, help="Seconds it may wait."
)
@click.option(
    "--priority", type=int, default=4, show_default=True, help="0 to 9, the greatest first."
)
@click.option("--key", metavar="TEXT", help="Idempotency key; made when absent.")
@contacts_option
@click.option(
    "--accept-placeholders",
    is_flag=True,
    help="Queue it although its answer keeps the placeholders of what is replaced.",
)
@policy_option
@json_option
def add(prompt: str | None, *, as_json: bool, policy: Path | None, **options: Any) -> int:
    """Queue PROMPT, or what is piped in, for a destination, to be sent when it may be.

    What leaves is minimised before it is written down. Nothing is sent now, and no consent is
    needed yet. Ends with exit code 10 when it may not wait.
    """
    from edgewise.core.request import Message, Request
    from edgewise.route.minimise import default_detectors
    from edgewise.route.offline import Queued
    from edgewise.workflow.contacts import read_contacts
    from edgewise.workflow.context import Context
    from edgewise.workflow.draining import enqueue_request
    from edgewise.workflow.routing import open_router

    context = Context(report=StepPrinter())
    router = open_router(context, policy)
    text, document, target = _asked_about(prompt, options["document"], options["apply_to"])
    messages = [Message(role="user", content=text)]
    if options["system"]:
        messages.insert(0, Message(role="system", content=options["system"]))
    request = Request(
        messages=tuple(messages),
        max_tokens=options["max_tokens"],
        task=options["task"],
        data_class=options["data_class"],
    )
    found = enqueue_request(
        context,
        router,
        request,
        options["destination"] or _first(router, request),
        default_detectors(contacts=read_contacts(context, options["contacts"])),
        document=document,
        apply_to=target,
        idempotency_key=options["key"],
        expires_s=options["expires"],
        priority=options["priority"],
        accept_placeholders=options["accept_placeholders"],
    )
    _show_added(found, as_json=as_json)
    return int(ExitCode.OK if isinstance(found, Queued) else ExitCode.NEGATIVE)


@click.command()
@policy_option
@click.option("--limit", type=click.IntRange(min=1), help="Most operations to handle.")
@click.option("--wake", is_flag=True, help="Also what waits for the link, at once.")
@click.option(
    "--link",
    type=click.Choice([str(state) for state in LinkState]),
    help="State of the network to assume. [default: what the interfaces say]",
)
@contacts_option
@json_option
def drain(
    *,
    policy: Path | None,
    limit: int | None,
    wake: bool,
    link: str | None,
    contacts: Path | None,
    as_json: bool,
) -> int:
    """Send what is due, each operation once, and put answers into their files.

    Each is routed anew, is read for identifiers again, needs its consent now, and is sent to the
    destination it was queued for and to no other. Ends with exit code 10 when something was not
    sent, not answered or not applied.
    """
    from edgewise.device.link import read_link
    from edgewise.route.minimise import default_detectors
    from edgewise.workflow.contacts import read_contacts
    from edgewise.workflow.context import Context
    from edgewise.workflow.draining import drain_queue, open_drain, open_queue
    from edgewise.workflow.late_answers import apply_to_files

    context = Context(report=StepPrinter())
    router, client = open_drain(context, policy)
    queue = open_queue(context, router.policy)
    if wake:
        queue.wake()
    assumed = None if link is None else LinkState(link)
    report = drain_queue(
        context,
        router,
        client,
        link=read_link if assumed is None else lambda: assumed,
        limit=limit,
        queue=queue,
        detectors=default_detectors(contacts=read_contacts(context, contacts)),
    )
    applied = apply_to_files(queue)
    if as_json:
        print_json({"report": report, "applied": applied})
    else:
        _show_drained(report, applied, policy)
    well = all(entry.state == "answered" for entry in report.handled) and not report.links
    well = well and all(one.result == "applied" for one in applied)
    return int(ExitCode.OK if well else ExitCode.NEGATIVE)


def _asked_about(
    prompt: str | None, document: Path | None, target: Path | None
) -> tuple[str, DocumentVersion | None, Path | None]:
    """Return the question with the document's text, the document's version, and the target."""
    from edgewise.route.offline import DocumentVersion
    from edgewise.workflow.documents import read_document, real_place, require_free

    text = read_prompt(prompt)
    found, path = None, None
    if document is not None:
        path = real_place(document)
        content, version = read_document(path)
        text = f"{text}\n\n{content}"
        found = DocumentVersion(document_id=str(path), version=version)
    if target is None:
        return text, found, None
    place = real_place(target)
    require_free(place, path)
    return text, found, place


def _first(router: Any, request: Request) -> str:
    """Return the destination that a task names first; one that does not exist is told later."""
    rule = router.policy.by_task.get(request.task)
    return str(rule.destinations[0]) if rule is not None and rule.destinations else "?"


def _show_added(found: Queued | Refused, *, as_json: bool) -> None:
    from edgewise.route.offline import Queued

    if as_json:
        print_json(found)
        return
    if not isinstance(found, Queued):
        for reason in found.reasons:
            say(f"{paint('no', 'yellow')}: {reason.code}: {reason.words}")
        return
    told = found.entry.operation
    again = " (it was there already)" if found.again else ""
    click.echo(told.operation_id)
    say(f"it waits to be sent to {told.destination}, {told.payload_bytes} bytes{again}")


def _show_drained(
    report: DrainReport, applied: tuple[FileApplied, ...], policy: Path | None
) -> None:
    for name, met in report.links.items():
        say(f"{paint('--', 'yellow')} {name}: {met}")
    for entry in report.handled:
        _show_handled(entry, policy)
    for one in applied:
        target = one.entry.operation.apply_to
        name = one.entry.operation.operation_id
        if one.result == "applied":
            say(f"{paint('ok', 'green')} {name}: the answer is in {target}")
        else:
            say(f"{paint('look', 'red')}: {name}: {one.result}: {one.reason}")
            say(f"   its answer is kept: edgewise queue show {name} --answer")
        for event in one.events:
            say(f"{paint('note', 'yellow')}: {event.code}: {event.message}")
    if not report.handled and not report.links:
        say("nothing is due")
    if report.next_due_s is not None:
        say(f"the next may be tried in {report.next_due_s:.0f} s")
        if not report.handled and not report.links:
            say("   to try one now: edgewise queue retry OPERATION, and drain again")


def _show_handled(entry: Entry, policy: Path | None) -> None:
    from edgewise.cli.routed import grant_command
    from edgewise.workflow.queue_rules import scope_of

    told = entry.operation
    if entry.state == "answered":
        say(f"{paint('ok', 'green')} {told.operation_id}: {told.destination} answered")
        return
    why = f"waits for {entry.hold}: {entry.reason}" if entry.hold else entry.reason
    say(f"{paint('--', 'yellow')} {told.operation_id}: {entry.state}: {why}")
    if entry.hold == "consent":
        say(f"   to agree for one use, and drain again: {grant_command(scope_of(told), policy)}")
