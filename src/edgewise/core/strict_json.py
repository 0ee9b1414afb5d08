"""JSON read strictly: what two readers could understand differently is refused.

A repeated key, ``NaN``, a number that no double holds and half a surrogate pair are let through
by common readers, each in its own way. Every bound is here: nesting is the caller's to set, a
number's digits are fixed.

Invariants: the work is linear in the text, and no text, however deep or long, raises anything
else than :class:`StrictJsonError`.
"""

from __future__ import annotations

import json
import math
import re
from enum import StrEnum
from typing import Any, Final

__all__ = ["DEPTH_MAX", "Flaw", "StrictJsonError", "end_of_value", "number", "parse"]

# Below where Python's own reader gives up, which depends on how deep the caller is.
DEPTH_MAX: Final = 500
# No double is longer; Python's own limit for reading integers (4300) can be changed.
_INTEGER_DIGITS_MAX: Final = 309
_QUOTED_MAX: Final = 80

_WHOLE: Final = re.compile(r"-?[0-9]+")
# A text, closed or not, or a bracket. The text that never closes runs to the end, so that no
# part of it is looked at twice.
_STRUCTURE: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)


class Flaw(StrEnum):
    """What is wrong with a text."""

    SYNTAX = "it is no JSON"
    KEY_TWICE = "an object has a key twice"
    NUMBER = "a number is none that a double holds"
    SURROGATE = "a text holds half of a surrogate pair"
    DEPTH = "it is nested too deeply"


class StrictJsonError(ValueError):
    """A text is no strict JSON.

    Attributes:
        flaw: What is wrong with it.
        message: The same in words, with the place.
        key: The repeated key.
    """

    def __init__(self, flaw: Flaw, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.flaw = flaw
        self.message = message
        self.key = key


def parse(text: str, *, depth_max: int = DEPTH_MAX) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The text, nothing but one value and space around it.
        depth_max: How many objects and lists may stand in each other.

    Raises:
        StrictJsonError: it is no JSON, readers would differ about it, or it is too deep.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_integer,
        )
    except RecursionError as error:
        raise _too_deep(depth_max) from error
    except json.JSONDecodeError as error:
        said = error.msg.removesuffix(" at")
        why = f"{said[0].lower()}{said[1:]} at character {error.pos}"
        raise StrictJsonError(Flaw.SYNTAX, why) from error
    _require_depth(value, depth_max)
    _require_whole_characters(text, value)
    return value


def end_of_value(text: str, start: int, *, depth_max: int) -> int:
    """Return where the object or list that begins at a place ends, by its brackets alone.

    Raises:
        StrictJsonError: none begins there, it does not end, or it is too deep.
    """
    if start >= len(text) or text[start] not in "{[":
        raise StrictJsonError(Flaw.SYNTAX, f"no object or list begins at character {start}")
    depth = 0
    for found in _STRUCTURE.finditer(text, start):
        sign = text[found.start()]
        if sign in "{[":
            depth += 1
            if depth > depth_max:
                raise _too_deep(depth_max)
        elif sign in "}]":
            depth -= 1
            if depth == 0:
                return found.end()
    raise StrictJsonError(Flaw.SYNTAX, f"what begins at character {start} does not end")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        why = f"the key {twice[:_QUOTED_MAX]!r} is there twice in one object"
        raise StrictJsonError(Flaw.KEY_TWICE, why, key=twice)
    return made


def _constant(name: str) -> Any:
    raise StrictJsonError(Flaw.NUMBER, f"{name} is not in JSON")


def number(digits: str) -> int | float:
    """Return the number that JSON's digits spell.

    Raises:
        StrictJsonError: no double holds it.
    """
    return _integer(digits) if _WHOLE.fullmatch(digits) else _float(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _too_large(digits)
    return value


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > _INTEGER_DIGITS_MAX or not math.isfinite(float(digits)):
        raise _too_large(digits)
    return int(digits)


def _too_large(digits: str) -> StrictJsonError:
    why = f"the number {digits[:20]}… is larger than a double holds"
    return StrictJsonError(Flaw.NUMBER, why)


def _too_deep(depth_max: int) -> StrictJsonError:
    return StrictJsonError(Flaw.DEPTH, f"it is nested more than {depth_max} levels deep")


def _require_depth(value: Any, depth_max: int) -> None:
    level, depth = [value], 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        if depth > depth_max:
            raise _too_deep(depth_max)
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]


def _require_whole_characters(text: str, value: Any) -> None:
    try:
        text.encode()
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise StrictJsonError(Flaw.SURROGATE, Flaw.SURROGATE.value) from error
