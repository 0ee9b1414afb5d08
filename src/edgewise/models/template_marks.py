"""Marks around the caller's texts, by which a rendered prompt tells them from the template's own.

A conversation is rendered a second time with two characters that occur nowhere in it around each
of the caller's texts. Which texts that are: the content of messages, the calls in them, and the
definitions of tools. Words that cannot act as a control token by themselves and that templates
compare (``"string"``, ``"required"``, ids) stay bare, so that a template takes the same way both
times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

__all__ = ["mark_message", "mark_tool", "split_marked", "unused_marks"]

Marks: TypeAlias = tuple[str, str]

_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9_.\- ]*")


def unused_marks(*texts: str) -> Marks | None:
    """Return two private-use characters that appear in none of the texts."""
    used = set().union(*texts)
    free = [chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in used]
    return (free[0], free[1]) if len(free) >= 2 else None


def mark_message(message: Mapping[str, Any], marks: Marks) -> dict[str, Any]:
    """Return a message with marks around its texts."""
    marked = dict(message)
    for key, value in message.items():
        if key == "role":
            continue
        if key == "content":
            marked[key] = _mark_content(value, marks)
        elif key == "tool_calls" and isinstance(value, list):
            marked[key] = [mark_tool(call, marks) for call in value]
        elif key == "name" and isinstance(value, str):
            marked[key] = _wrap(value, marks)
        else:
            marked[key] = _mark_value(value, marks)
    return marked


def mark_tool(tool: Any, marks: Marks) -> Any:
    """Return a tool's definition, or a call of it, with marks around its texts."""
    marked = _mark_value(tool, marks)
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if isinstance(function, Mapping) and isinstance(function.get("name"), str):
        marked["function"]["name"] = _wrap(function["name"], marks)
    return marked


def split_marked(marked: str, marks: Marks) -> list[tuple[str, bool]] | None:
    """Return the parts of a marked prompt and whether each is the caller's.

    ``None`` when the marks are not in pairs.
    """
    start, end = marks
    parts: list[tuple[str, bool]] = []
    outside, *pieces = marked.split(start)
    if end in outside:
        return None
    if outside:
        parts.append((outside, False))
    for piece in pieces:
        inside, *rest = piece.split(end)
        if len(rest) != 1:
            return None
        parts.append((inside, True))
        if rest[0]:
            parts.append((rest[0], False))
    return parts


def _wrap(text: str, marks: Marks) -> str:
    # White space stays outside, so that a template that trims finds it.
    core = text.strip()
    if not core:
        return text
    at = text.index(core)
    return f"{text[:at]}{marks[0]}{core}{marks[1]}{text[at + len(core) :]}"


def _mark_content(content: Any, marks: Marks) -> Any:
    if isinstance(content, str):
        return _wrap(content, marks)
    if not isinstance(content, list):
        return content
    return [
        {**part, "text": _wrap(part["text"], marks)}
        if isinstance(part, dict) and isinstance(part.get("text"), str)
        else _wrap(part, marks)
        if isinstance(part, str)
        else part
        for part in content
    ]


def _mark_value(value: Any, marks: Marks) -> Any:
    """Return a value with marks around every text in it that is more than a plain word."""
    if isinstance(value, str):
        return value if _PLAIN_WORD.fullmatch(value) else _wrap(value, marks)
    if isinstance(value, Mapping):
        return {_mark_value(k, marks): _mark_value(v, marks) for k, v in value.items()}
    if isinstance(value, Sequence):
        return [_mark_value(item, marks) for item in value]
    return value
