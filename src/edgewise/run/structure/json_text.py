"""Reading JSON strictly: what two readers could understand differently is refused.

A repeated key, ``NaN``, a number that no double holds and half a surrogate pair are all let
through by common readers, each in its own way.
"""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["parse"]

# Python's own limit for reading integers (sys.int_info.default_max_str_digits) is 4300.
_INTEGER_DIGITS_MAX = 309


def parse(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is no JSON, or readers would differ about it; the message says where.
    """
    try:
        text.encode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_integer,
        )
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds a lone surrogate at {error.start}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg} at {error.pos}") from error
    if "\\" in text:
        _refuse_surrogates(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} is there twice in one object")
    return made


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not in JSON")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:20]} is larger than a double holds")
    return value


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > _INTEGER_DIGITS_MAX or not math.isfinite(float(digits)):
        raise ValueError(f"the number {digits[:20]}… is larger than a double holds")
    return int(digits)


def _refuse_surrogates(value: Any) -> None:
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            pending += [*one, *one.values()]
        elif isinstance(one, list):
            pending += one
        elif isinstance(one, str):
            try:
                one.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError("it spells a lone surrogate") from error
