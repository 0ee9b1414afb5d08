"""Options that several commands share, and the request they make."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from edgewise.core.recipe import KvType
from edgewise.core.request import ContextPolicy, DataClass, Message, Request, Sampling
from edgewise.core.structure import Structure
from edgewise.errors import InputError

__all__ = [
    "TASK_HELP",
    "contacts_option",
    "context_options",
    "generation_defaults",
    "generation_options",
    "json_option",
    "model_size",
    "parse_overrides",
    "policy_option",
    "read_prompt",
    "request_from",
    "require_active",
]

F = TypeVar("F", bound=Callable[..., Any])

TASK_HELP = "Task class; auto: the classifier that the policy trusts says it."

contacts_option = click.option(
    "--contacts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Names to replace in what leaves, one a line. Default: contacts.txt in the home, if any.",
)

policy_option = click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="Policy that routes it. Default: the home's, else the one that keeps everything here.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def context_options(function: F) -> F:
    """Add the options of the context: its length and the format of its KV cache."""
    context = click.option(
        "--context",
        "context_length",
        type=int,
        default=2048,
        show_default=True,
        help="Tokens of context to reserve.",
    )
    kv = click.option(
        "--kv",
        "kv_type",
        type=click.Choice([str(k) for k in KvType]),
        show_default="the runtime's own",
        help="KV cache format.",
    )
    return context(kv(function))


def generation_options(function: F) -> F:
    """Add the options of a request."""
    options = [
        click.option("--system", metavar="TEXT", help="System message."),
        click.option(
            "--max-tokens", type=int, help="Most tokens to generate. [default: up to 512]"
        ),
        click.option(
            "--temperature",
            type=float,
            default=0.0,
            show_default="0, greedy",
            help="How freely tokens are drawn.",
        ),
        click.option(
            "--top-k", type=int, default=0, show_default="0, all", help="Keep the K most likely."
        ),
        click.option(
            "--top-p", type=float, default=1.0, show_default=True, help="Nucleus sampling."
        ),
        click.option(
            "--min-p",
            type=float,
            default=0.0,
            show_default=True,
            help="Least relative probability.",
        ),
        click.option("--seed", type=int, help="Seed of the sampler."),
        click.option("--stop", multiple=True, help="Text that ends the answer; repeatable."),
        click.option("--deadline", type=float, metavar="SECONDS", help="Cut the answer off then."),
        click.option(
            "--data-class",
            default=str(DataClass.LOCAL_ONLY),
            show_default=True,
            help="How far the content may travel: public, personal, sensitive, local-only, or a "
            "class of the policy's own.",
        ),
        click.option("--task", default="chat", show_default=True, help=TASK_HELP),
        click.option(
            "--context-policy",
            type=click.Choice([str(c) for c in ContextPolicy]),
            default=str(ContextPolicy.REJECT),
            show_default=True,
            help="What happens to a conversation that does not fit.",
        ),
        click.option("--no-speculation", is_flag=True, help="Do not guess tokens ahead."),
        click.option(
            "--fingerprint", metavar="PREFIX", help="Use this bundle, not the active one."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def generation_defaults() -> dict[str, Any]:
    """Return what the generation options are when nobody sets one."""
    return {
        "max_tokens": None,
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": None,
        "stop": (),
        "deadline": None,
        "data_class": str(DataClass.LOCAL_ONLY),
        "task": "chat",
        "context_policy": str(ContextPolicy.REJECT),
        "no_speculation": False,
    }


def request_from(
    messages: tuple[Message, ...], options: dict[str, Any], structure: Structure | None = None
) -> Request:
    """Return the request that the options describe.

    Raises:
        InputError: an option is out of its range or contradicts another.
    """
    return Request(
        messages=messages,
        max_tokens=options["max_tokens"],
        sampling=Sampling(
            temperature=options["temperature"],
            top_k=options["top_k"],
            top_p=options["top_p"],
            min_p=options["min_p"],
            seed=options["seed"],
        ),
        stop=tuple(options["stop"]),
        deadline_s=options["deadline"],
        data_class=options["data_class"],
        task=options["task"],
        context_policy=ContextPolicy(options["context_policy"]),
        speculate=not options["no_speculation"],
        structure=structure,
    )


def require_active(fingerprint: str | None) -> None:
    """Refuse a bundle of one's own under a policy.

    Raises:
        InputError: there is one.
    """
    if fingerprint is not None:
        raise InputError(
            "request-contradiction",
            "a policy routes to the active deployment, and --fingerprint names another",
            hint="leave one of the two out",
        )


def read_prompt(argument: str | None) -> str:
    """Return the prompt from the argument, or from standard input when it is absent or ``-``.

    Raises:
        InputError: standard input is closed or a terminal, or not valid UTF-8.
    """
    if argument is not None and argument != "-":
        return argument
    if sys.stdin is None or (argument is None and sys.stdin.isatty()):  # None: it was closed
        raise InputError(
            "prompt-missing",
            "there is no prompt",
            hint='give one: edgewise run "Hello", or pipe it in; `edgewise chat` talks with you',
        )
    data = sys.stdin.buffer.read()
    try:
        # A pipe ends in a line feed that nobody typed as part of the prompt.
        return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InputError(
            "stdin-not-utf8",
            f"standard input is not valid UTF-8: byte {data[error.start]:#04x} at offset "
            f"{error.start}",
            context={"offset_bytes": error.start},
            hint="convert it first, e.g. with iconv -t UTF-8",
        ) from error


def parse_overrides(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return ``PATTERN=TYPE`` texts as pairs.

    Raises:
        InputError: a text is no such pair.
    """
    overrides = []
    for text in texts:
        pattern, separator, name = text.rpartition("=")
        if not separator or not pattern:
            raise InputError(
                "override-invalid",
                f"{text!r} is no override",
                hint="write PATTERN=TYPE, such as 'ffn_down=q8_0'",
            )
        overrides.append((pattern, name.lower()))
    return tuple(overrides)


def model_size(text: str | None) -> int | None:
    """Return a size such as ``64MiB`` or ``1.5GiB`` in bytes.

    Raises:
        InputError: it is no size.
    """
    if text is None:
        return None
    units = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
    number = text.strip().lower()
    if number == "0":
        return 0
    for unit, factor in sorted(units.items(), key=lambda item: -len(item[0])):
        if number.endswith(unit):
            try:
                size = float(number.removesuffix(unit)) * factor
            except ValueError:
                break
            if 0 <= size < 2**53:
                return int(size)
            break
    raise InputError("size-invalid", f"{text!r} is no size", hint="write it like 64MiB or 1.5GiB")
