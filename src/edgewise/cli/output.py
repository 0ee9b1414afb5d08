"""What the command line prints: steps and errors on standard error, results on standard output."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from edgewise.core.shown import visible
from edgewise.core.units import mib

if TYPE_CHECKING:
    from collections.abc import Collection

    from edgewise.core.quantity import Quantity
    from edgewise.errors import EdgewiseError
    from edgewise.workflow.context import Step

__all__ = [
    "StepPrinter",
    "paint",
    "print_error",
    "print_json",
    "print_table",
    "say",
    "show",
    "show_quantity",
]

_OWN_COLOURS = re.compile(r"\x1b\[(?:0|31|32|33|2|1)m")
_HEARTBEAT_S = 10.0
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}


def paint(text: str, colour: str, *, stream: Any = None) -> str:
    """Return the text in a colour, if the stream is a terminal that wants colours.

    ``NO_COLOR`` counts when it is set and not empty, as no-color.org says.
    """
    stream = stream or sys.stderr
    if not stream.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def say(text: str = "") -> None:
    """Print a line on standard error; colours of our own pass, what acts or hides does not.

    A standard error that cannot be written is nobody's answer: it is ignored.
    """
    with contextlib.suppress(OSError, ValueError):
        print(_safe(text), file=sys.stderr, flush=True)


def show(text: str = "") -> None:
    """Print a line of the result on standard output, as :func:`say` does elsewhere."""
    print(_safe(text), flush=True)


def _safe(text: str) -> str:
    parts = _OWN_COLOURS.split(text)
    colours = [*_OWN_COLOURS.findall(text), ""]
    return "".join(visible(part) + colour for part, colour in zip(parts, colours, strict=True))


def _one_line(text: str) -> str:
    """Return a text for a cell, which has no colours of ours: none of others' pass either."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def print_json(value: Any) -> None:
    """Print a value as indented JSON on standard output."""
    data = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(data.decode("utf-8") + "\n")
    sys.stdout.flush()


def print_error(error: EdgewiseError, *, as_json: bool) -> None:
    """Print an error for a person, and as one JSON object when the caller asked for JSON."""
    if as_json:
        sys.stdout.write(json.dumps({"error": error.to_dict()}, indent=2, default=str) + "\n")
        sys.stdout.flush()
    say(f"{paint('error', 'red')}: {error.code}: {error.message}")
    for line in error.context.get("native_log", [])[-3:]:
        say(f"  native: {line}")
    if error.hint:
        say(f"{paint('hint', 'yellow')}: {error.hint}")


def print_table(headers: list[str], rows: list[list[str]], *, whole: Collection[str] = ()) -> None:
    """Print a table on standard output, columns aligned; no cell can make up a row.

    ``whole`` names columns whose cells are never broken: identifiers, which are copied.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        kept = header in whole
        widest = max((len(row[headers.index(header)]) for row in rows), default=0) if kept else None
        table.add_column(_one_line(header), overflow="fold", no_wrap=kept, min_width=widest)
    for row in rows:
        table.add_row(*map(_one_line, row))
    # Off a terminal a line is as long as it needs to be: a wrapped figure cannot be grepped.
    width = None if sys.stdout.isatty() else 200
    Console(file=sys.stdout, highlight=False, markup=False, width=width).print(table)


def show_quantity(quantity: Quantity, unit: str = "") -> str:
    """Return a quantity with its unit and its kind, e.g. ``93.8 MiB (estimated)``."""
    kind = type(quantity).__name__.lower()
    value = getattr(quantity, "value", None)
    if value is None:
        return f"unknown: {getattr(quantity, 'reason', '')}"
    if unit == "bytes":
        text = mib(value)
    elif unit == "bytes/s":
        text = f"{value / 1e9:,.1f} GB/s"
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, int | float):
        text = f"{value:,.10g} {unit}".strip()
    elif isinstance(value, tuple):
        text = " ".join(value)
    else:
        text = str(value)
    return f"{text} ({kind})"


class StepPrinter:
    """Shows a workflow's steps as lines, and progress in place when on a terminal."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._open = False
        self._last = time.monotonic()

    def __call__(self, step: Step) -> None:
        """Show one step."""
        if step.status == "progress":
            self._progress(step)
            return
        self.clear()
        self._last = time.monotonic()
        mark = {"done": paint("ok", "green"), "reused": paint("ok", "green"), "note": "--"}
        again = " (already there)" if step.status == "reused" else ""
        sign = mark.get(step.status, "..")
        say(f"{sign} {step.stage:<9} {step.message}{again}")

    def clear(self) -> None:
        """Remove the progress line."""
        if self._open:
            sys.stderr.write("\r\x1b[K")
            self._open = False

    def _progress(self, step: Step) -> None:
        if not self._live and time.monotonic() - self._last < _HEARTBEAT_S:
            return
        amount = f"{step.done}/{step.total}" if step.total else ""
        if step.unit == "bytes":
            amount = mib(step.done) + (f" of {mib(step.total)}" if step.total else "")
        line = f"   {step.stage:<9} {step.message} {amount}"
        if not self._live:  # a sign of life, for a log
            say(line.rstrip())
            self._last = time.monotonic()
            return
        line = visible(line).replace("\n", "\\n")
        sys.stderr.write("\r\x1b[K" + line[: max(20, _columns() - 1)])
        sys.stderr.flush()
        self._open = True


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns
