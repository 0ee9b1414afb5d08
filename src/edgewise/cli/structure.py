"""Options that say what an answer has to look like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from edgewise.core.structure import Structure, StructureKind
from edgewise.errors import InputError
from edgewise.store.regular import read_regular

__all__ = ["structure_from", "structure_options"]

F = TypeVar("F", bound=Callable[..., Any])

_FILE_BYTES_MAX = 1 << 20


def structure_options(function: F) -> F:
    """Add the options; they exclude each other."""
    options = [
        click.option("--schema", metavar="FILE", help="Answer in JSON by this JSON Schema."),
        click.option("--regex", metavar="PATTERN", help="Answer with what this pattern matches."),
        click.option(
            "--choice", multiple=True, metavar="TEXT", help="Answer with one of these; repeatable."
        ),
        click.option("--grammar", metavar="FILE", help="Answer by a grammar: .lark or .gbnf."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def structure_from(options: dict[str, Any]) -> Structure | None:
    """Return what the options ask for, and take them out.

    Raises:
        InputError: two of them are given, or a file cannot be read.
    """
    schema, regex = options.pop("schema"), options.pop("regex")
    choices, grammar = options.pop("choice"), options.pop("grammar")
    given = [value for value in (schema, regex, choices, grammar) if value]
    if len(given) > 1:
        raise InputError(
            "structure-contradiction",
            "an answer has one structure, and several were asked for",
            hint="give one of --schema, --regex, --choice and --grammar",
        )
    if schema:
        return Structure(kind=StructureKind.JSON_SCHEMA, source=_read(schema))
    if regex:
        return Structure(kind=StructureKind.REGEX, source=regex)
    if choices:
        return Structure(kind=StructureKind.CHOICE, choices=tuple(choices))
    if grammar:
        gbnf = Path(grammar).suffix == ".gbnf"
        kind = StructureKind.GBNF if gbnf else StructureKind.LARK
        return Structure(kind=kind, source=_read(grammar))
    return None


def _read(name: str) -> str:
    try:
        return read_regular(Path(name), limit_bytes=_FILE_BYTES_MAX).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "structure-unreadable",
            f"{name} cannot be read: {error}",
            hint="name a UTF-8 text file of at most 1 MiB",
        ) from error
