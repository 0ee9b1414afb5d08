"""The steps of reading calls: each takes a text and a place, and returns what comes next."""

from __future__ import annotations

import re
from typing import Any, Final

from edgewise.core import strict_json

__all__ = [
    "ARGUMENTS_DEPTH_MAX",
    "BrokenError",
    "NoCallError",
    "json_at",
    "mark_at",
    "name_at",
    "skip",
    "skip_space",
]

# Within what a template takes back (64), and far above any function's arguments.
ARGUMENTS_DEPTH_MAX: Final = 48

_SPACE: Final = re.compile(r"\s*")
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


class BrokenError(Exception):
    """The text is no well-formed call, for the reason given."""


class NoCallError(BrokenError):
    """The text is sound and something else than a call."""


def skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the place behind what a pattern matches, if it does."""
    found = pattern.match(text, at)
    return at if found is None else found.end()


def skip_space(text: str, at: int) -> int:
    """Return the place of the next character that is no space."""
    return skip(_SPACE, text, at)


def name_at(text: str, at: int) -> tuple[str, int]:
    """Return the name of a tool, and where it ends.

    Raises:
        BrokenError: there is none.
    """
    name = _NAME.match(text, at)
    if name is None:
        raise BrokenError("no name follows the mark of a call")
    return name.group(), name.end()


def mark_at(text: str, at: int, mark: str) -> int:
    """Return where a mark ends; space around it does not count.

    Raises:
        BrokenError: it is not there.
    """
    at = skip_space(text, at)
    mark = mark.strip()
    if not text.startswith(mark, at):
        raise BrokenError(f"{mark!r} does not follow the name of a call")
    return at + len(mark)


def json_at(text: str, at: int) -> tuple[Any, int]:
    """Return the object or list that begins at a place, and where it ends.

    Raises:
        BrokenError: none does, or it is no strict JSON.
    """
    if at >= len(text) or text[at] not in "{[":
        raise BrokenError("no JSON follows the mark of a call")
    try:
        end = strict_json.end_of_value(text, at, depth_max=ARGUMENTS_DEPTH_MAX)
        return strict_json.parse(text[at:end], depth_max=ARGUMENTS_DEPTH_MAX), end
    except strict_json.StrictJsonError as error:
        raise BrokenError(f"the JSON is malformed: {error.message}") from error
