"""``edgewise minimise``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli.options import contacts_option, json_option, read_prompt
from edgewise.cli.output import print_json, print_table, say
from edgewise.core import shown
from edgewise.errors import InputError

if TYPE_CHECKING:
    from edgewise.route.minimise import Minimised

__all__ = ["minimise"]

_FILE_MAX_BYTES = 64 << 20
_NOT_ALL = "not everything can be found: --caveats lists what is not"


@click.command()
@click.argument("text", required=False)
@click.option("--file", "file", metavar="FILE", help="Read the text from a file.")
@contacts_option
@click.option(
    "--region", "regions", multiple=True, metavar="CODE", help="Read this region's phone numbers."
)
@click.option("--reveal", is_flag=True, help="Show the values, too.")
@click.option("--caveats", is_flag=True, help="List what is not found or not guaranteed.")
@json_option
def minimise(
    text: str | None,
    *,
    file: str | None,
    contacts: Path | None,
    regions: tuple[str, ...],
    reveal: bool,
    caveats: bool,
    as_json: bool,
) -> int:
    """Show what of TEXT would leave this device, and what would be replaced.

    TEXT is `-` or absent for standard input. Nothing is sent and nothing is stored.
    """
    from edgewise.route.minimise import PlaceholderMap, default_detectors
    from edgewise.route.minimise import minimise as run_minimise
    from edgewise.route.minimise.phones import DEFAULT_REGIONS
    from edgewise.workflow.contacts import read_contacts
    from edgewise.workflow.context import Context

    if file is not None and text is not None:
        raise InputError(
            "minimise-source-contradiction",
            "a text and a file are given",
            hint="give one of the two",
        )
    source = _read(file) if file is not None else read_prompt(text)
    detectors = default_detectors(
        contacts=read_contacts(Context(), contacts),
        regions=tuple(r.upper() for r in regions) or DEFAULT_REGIONS,
    )
    kept = PlaceholderMap()
    done = run_minimise({"text": source}, ["text"], detectors, kept)
    values = {r.placeholder: source[r.start : r.end] for r in done.replacements}
    if as_json:
        print_json(_as_data(done, values if reveal else {}))
    else:
        _show(done, values if reveal else {}, caveats=caveats)
    return 0


def _read(path: str) -> str:
    from edgewise.store.regular import read_regular

    try:
        return read_regular(Path(path), limit_bytes=_FILE_MAX_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(
            "minimise-unreadable",
            f"{path} cannot be read: {error}",
            context={"path": path},
            hint="name a UTF-8 text file of at most 64 MiB",
        ) from error


def _as_data(done: Minimised, values: dict[str, str]) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(done)
    for replacement in data["replacements"]:
        if values:
            replacement["value"] = values[replacement["placeholder"]]
    return data


def _show(done: Minimised, values: dict[str, str], *, caveats: bool) -> None:
    print(shown.answer(str(done.fields["text"])))
    if done.replacements:
        say()
        headers = ["placeholder", "at", "checked by", "confidence", *(["value"] if values else [])]
        rows = [
            [
                r.placeholder,
                f"{r.start}-{r.end}",
                r.checked_by,
                str(r.confidence),
                *([values[r.placeholder]] if values else []),
            ]
            for r in done.replacements
        ]
        print_table(headers, rows)
    for event in done.events:
        say(f"{event.code}: {event.message}")
    say("not guaranteed:" if caveats else _NOT_ALL)
    for words in done.not_guaranteed if caveats else ():
        say(f"  - {words}")
