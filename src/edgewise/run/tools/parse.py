"""Calls out of what a model wrote: all of them, whole and well formed, or a reason why not.

Pure. Whether a tool exists and takes the arguments is :mod:`edgewise.run.tools.validate`'s.
Invariants: the work is linear in the text; no text, however deep or long, raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from edgewise.run.tools.formats import RawCall, ToolFormat
from edgewise.run.tools.parse_spellings import looks_like_python, marked_call, python_calls
from edgewise.run.tools.reading import (
    ARGUMENTS_DEPTH_MAX,
    BrokenError,
    NoCallError,
    json_at,
    mark_at,
    name_at,
    skip,
    skip_space,
)

__all__ = ["ARGUMENTS_DEPTH_MAX", "ParsedCalls", "looks_like_bare_call", "parse_calls"]

_JOIN: Final = re.compile(r"[\s,;]*")
_ID: Final = re.compile(r"[\w.\-:]{0,64}")
_FIRST_KEY: Final = re.compile(r'\s*\[?\s*\{\s*"([^"\\]*)"\s*:')
_BEFORE_FIRST_KEY: Final = re.compile(r'\s*(?:\[\s*)?(?:\{\s*(?:"[^"\\]*(?:"\s*)?)?)?')
_UNDECIDED_CHARACTERS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCalls:
    """What a text holds.

    Attributes:
        text: What stands outside of calls.
        calls: Name and arguments of each call, in order; empty when there is a problem.
        problem: Why the calls cannot be used, if they cannot.
    """

    text: str
    calls: tuple[RawCall, ...] = ()
    problem: str | None = None


def parse_calls(text: str, form: ToolFormat) -> ParsedCalls:
    """Return the calls in a text that a model has finished.

    Either every call in it is well formed, or there are none and a problem. A bare JSON value
    that has not the keys of a call is text.
    """
    bare = form.bare and not any(mark in text for mark in form.starts)
    if bare and not looks_like_bare_call(text, form):
        return ParsedCalls(text=text)
    try:
        return _Reader(text, form).read()
    except NoCallError:
        return ParsedCalls(text=text)
    except BrokenError as broken:
        return ParsedCalls(text=text, problem=str(broken))


def looks_like_bare_call(text: str, form: ToolFormat) -> bool | None:
    """Return whether JSON at the start of an answer may be a call; ``None``: not known yet."""
    if form.python is not None:
        return looks_like_python(text)
    first = _FIRST_KEY.match(text)
    if first is not None:
        known = {form.name_key, form.arguments_key, "type", "function", "id"}
        return first.group(1) in known
    if len(text) <= _UNDECIDED_CHARACTERS_MAX and _BEFORE_FIRST_KEY.fullmatch(text):
        return None
    return False


class _Reader:
    """Reads one answer from front to back."""

    def __init__(self, text: str, form: ToolFormat) -> None:
        self._text = text
        self._form = form
        self._at = 0
        self._outside: list[str] = []
        self._calls: list[RawCall] = []
        self._marked = False

    def read(self) -> ParsedCalls:
        if self._form.bare:
            self._read_bare()
        while (found := self._next_mark()) is not None:
            at, mark = found
            self._outside.append(self._text[self._at : at])
            self._at = at + len(mark)
            self._marked = True
            self._read_call()
        self._outside.append(self._text[self._at :])
        outside = self._text_outside()
        stray = next((mark for mark in self._form.held if mark in outside), None)
        if self._calls and stray is not None:
            raise BrokenError(f"{stray!r} stands outside of a call")
        if not self._calls and self._marked:
            raise BrokenError("a call begins and there is none")
        return ParsedCalls(text=outside, calls=tuple(self._calls))

    def _next_mark(self) -> tuple[int, str] | None:
        found = [(self._text.find(mark, self._at), mark) for mark in self._form.opens]
        # The longest of several that begin at the same place.
        return min(
            ((at, mark) for at, mark in found if at >= 0),
            key=lambda pair: (pair[0], -len(pair[1])),
            default=None,
        )

    def _text_outside(self) -> str:
        """Return what is no call, without what only holds calls together."""
        form = self._form
        text = "".join(self._outside)
        for holder in (form.before_all.strip(), form.after_all.strip()):
            if holder and holder in text:
                self._marked = True
                text = text.replace(holder, "")
        if self._calls and not text.strip(" \t\r\n,;"):
            return ""
        return text

    def _read_bare(self) -> None:
        """Read calls at the very start."""
        if self._form.python is not None:
            at = self._past_space()
            self._calls, self._at = python_calls(self._text, at, self._form.python)
            return
        while True:
            at = skip(_JOIN, self._text, self._at) if self._calls else self._past_space()
            if at >= len(self._text) or self._text[at] not in "{[":
                return
            self._at = at
            self._take_json()

    def _read_call(self) -> None:
        """Read one section, from behind the mark that begins it."""
        form = self._form
        self._at = self._past_space()
        if form.python is not None:
            calls, self._at = python_calls(self._text, self._at, form.python)
            self._calls += calls
        elif form.marked is not None:
            call, self._at = marked_call(self._text, self._at, form, form.marked)
            self._calls.append(call)
        elif form.separator is None:
            self._take_json()
        else:
            self._take_named(form.separator)
        end = form.end.strip()
        at = self._past_space()
        if not end or at >= len(self._text):
            return
        if not self._text.startswith(end, at):
            raise BrokenError(f"{end!r} does not follow the arguments")
        self._at = at + len(end)

    def _take_json(self) -> None:
        value = self._value()
        items = value if isinstance(value, list) else [value]
        if not items:
            raise BrokenError("the list of calls is empty")
        self._calls += [self._call(item) for item in items]

    def _call(self, item: Any) -> RawCall:
        form = self._form
        # Bare JSON is a call only when it has everything that a call has.
        broken = NoCallError if form.bare and not self._marked and not self._calls else BrokenError
        if isinstance(item, dict) and isinstance(item.get("function"), dict):
            item = item["function"]
        if not isinstance(item, dict) or not isinstance(item.get(form.name_key), str):
            raise broken(f"a call has no {form.name_key!r}")
        keys = (form.arguments_key, "arguments", "parameters")
        key = next((key for key in keys if key in item), None)
        if key is None and broken is NoCallError:
            raise broken(f"a call has no {form.arguments_key!r}")
        return item[form.name_key], self._arguments({} if key is None else item[key])

    def _take_named(self, separator: tuple[str, ...]) -> None:
        name, self._at = name_at(self._text, self._at)
        for index, piece in enumerate(separator):
            if index:
                self._at = skip(_ID, self._text, self._past_space())
            self._at = mark_at(self._text, self._at, piece)
        self._at = self._past_space()
        self._calls.append((name, self._arguments(self._value())))

    def _arguments(self, value: Any) -> Mapping[str, Any]:
        if isinstance(value, str) and self._form.text_arguments:
            value, _ = json_at(value, skip_space(value, 0))
        if not isinstance(value, dict):
            raise BrokenError("the arguments are not an object")
        return value

    def _value(self) -> Any:
        value, self._at = json_at(self._text, self._at)
        return value

    def _past_space(self) -> int:
        return skip_space(self._text, self._at)
