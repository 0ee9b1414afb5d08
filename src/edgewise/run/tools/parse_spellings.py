"""Calls whose arguments are no JSON object: between marks each, or as Python spells them.

A value between marks ends at the first closing mark. What is read so is a call only if no value
holds a mark of calls, and if nothing but marks stands between the values: a text that could be
cut in two ways is refused, never cut in the likelier one.
"""

from __future__ import annotations

import re
from typing import Any, Final

from edgewise.core import strict_json
from edgewise.run.tools.formats import RawCall, ToolFormat
from edgewise.run.tools.python_literals import LiteralError, arguments_at
from edgewise.run.tools.reading import (
    ARGUMENTS_DEPTH_MAX,
    BrokenError,
    mark_at,
    name_at,
    skip_space,
)
from edgewise.run.tools.spellings import MarkedArguments, PythonCalls

__all__ = ["looks_like_python", "marked_call", "python_calls"]

_CALL: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}\(")
_FIRST_CALL: Final = re.compile(r"\s*\[\s*[A-Za-z0-9_.\-]{1,64}\(\s*(?:[^\W\d]\w*\s*=|\)\s*[,\]])")
_BEFORE_FIRST_CALL: Final = re.compile(
    r"\s*(?:\[\s*(?:[A-Za-z0-9_.\-]{1,64}(?:\(\s*(?:[^\W\d]\w*\s*|\)\s*)?)?)?)?"
)
_UNDECIDED_CHARACTERS_MAX: Final = 160
_NAME_CHARACTERS_MAX: Final = 512


def looks_like_python(text: str) -> bool | None:
    """Return whether an answer begins with a list of calls; ``None``: not known yet."""
    if _FIRST_CALL.match(text):
        return True
    short = len(text) <= _UNDECIDED_CHARACTERS_MAX
    return None if short and _BEFORE_FIRST_CALL.fullmatch(text) else False


def python_calls(text: str, at: int, form: PythonCalls) -> tuple[list[RawCall], int]:
    """Return one call, or several in brackets or, where they are no list, on lines.

    Raises:
        BrokenError: they are not well formed.
    """
    calls: list[RawCall] = []
    listed = text.startswith("[", at)
    at += listed
    while True:
        at = skip_space(text, at)
        if listed and text.startswith("]", at):
            return calls, at + 1
        call, at = _python_call(text, at)
        calls.append(call)
        following = skip_space(text, at)
        if listed:
            at = following
            if text.startswith(",", at):
                at += 1
            elif not text.startswith("]", at):
                raise BrokenError("neither a comma nor a bracket follows a call")
        elif not form.join or not _CALL.match(text, following):
            return calls, at


def _python_call(text: str, at: int) -> tuple[RawCall, int]:
    name, at = name_at(text, at)
    try:
        arguments, at = arguments_at(text, at, depth_max=ARGUMENTS_DEPTH_MAX)
    except LiteralError as error:
        raise BrokenError(f"the arguments of {name!r} cannot be read: {error}") from error
    return (name, arguments), at


def marked_call(
    text: str, at: int, form: ToolFormat, marked: MarkedArguments
) -> tuple[RawCall, int]:
    """Return a call with arguments between marks, and the place of the mark behind it.

    Arguments are texts, where the form does not quote them.

    Raises:
        BrokenError: it is not well formed, or could be read in two ways.
    """
    name, at = name_at(text, at)
    at = mark_at(text, at, "".join(form.separator or ()))
    # Before the first argument space is free: there is no value yet that it could belong to.
    at = skip_space(text, at)
    opening, end = marked.opening.lstrip(), form.end.lstrip()
    arguments: dict[str, Any] = {}
    while text.startswith(opening, at):
        key, value, at = _argument(text, at + len(opening), form, marked)
        if key in arguments:
            raise BrokenError(f"the argument {key[:80]!r} is there twice")
        arguments[key] = value
        opening, end = marked.opening, form.end
    if not text.startswith(end.rstrip(), at):
        raise BrokenError(f"neither {opening!r} nor {end!r} follows an argument")
    return (name, arguments), at


def _argument(
    text: str, at: int, form: ToolFormat, marked: MarkedArguments
) -> tuple[str, Any, int]:
    """Return an argument's name and value, and the place behind its closing mark.

    Space around the marks has to be as the template has it: what is left over would be part of
    the value, or the mark would be.
    """
    start = text.find(marked.middle, at, at + _NAME_CHARACTERS_MAX)
    if start < 0:
        raise BrokenError("no name of an argument follows its mark")
    key, start = text[at:start], start + len(marked.middle)
    end = text.find(marked.closing, start)
    if end < 0:
        raise BrokenError(f"{marked.closing!r} does not follow the value of {key[:80]!r}")
    value = text[start:end]
    held = next((mark for mark in form.held if mark in value or mark in key), None)
    if held is not None:
        raise BrokenError(f"the argument {key[:80]!r} holds {held!r}, a mark of calls")
    return key, _quoted(value, key) if marked.quoted else value, end + len(marked.closing)


def _quoted(text: str, key: str) -> Any:
    try:
        return strict_json.parse(text, depth_max=ARGUMENTS_DEPTH_MAX - 1)
    except strict_json.StrictJsonError as error:
        raise BrokenError(f"the argument {key[:80]!r} is no JSON: {error.message}") from error
