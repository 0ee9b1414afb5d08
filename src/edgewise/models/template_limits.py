"""What a chat template may make: sizes checked before an operation runs, and added up.

Every check here runs before an operation that could take long or grow without bound in C, where
nothing can interrupt it. Nothing here knows how a template is compiled or run; that is
:mod:`edgewise.models.template_sandbox`.

This module imports jinja2 at its top; it is imported only when a template is rendered.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable
from string import Formatter
from typing import Any, Final

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

__all__ = [
    "FILTER_CHECKS",
    "METHOD_CHECKS",
    "TooLargeError",
    "check_format",
    "check_int",
    "check_percent",
    "check_value",
    "concat",
    "count_made",
    "joinable",
    "metered",
    "start_meter",
    "str_join",
    "tojson",
    "weight",
]

# Characters and elements in one value, and made in one render. A long conversation is some
# hundred thousand; templates that build their output by appending make it a few times over.
VALUE_LIMIT: Final = 4_000_000
RENDER_LIMIT: Final = 64_000_000
# Elements of one value, nested ones included: each is looked at in Python.
ELEMENT_LIMIT: Final = 400_000
# Collections inside collections; tool schemas are about ten deep.
DEPTH_LIMIT: Final = 100
# Bits of a whole number: arithmetic beyond it is an attack.
INT_BITS_LIMIT: Final = 2048
# Width, indentation and precision in a format.
WIDTH_LIMIT: Final = 1000

# The only ``%`` conversions allowed: a short name, flags, a width below 1000, a short precision.
_PERCENT_PLAIN: Final = re.compile(
    r"%(?:%|(?:\(\w{1,64}\))?[#0\- +]{0,5}\d{0,3}(?:\.\d{0,2})?[hlL]?[diouxXeEfFgGcrsa])"
)


class TooLargeError(Exception):
    """An operation would make more than a template may."""


_METER: Final = threading.local()
_COLLECTIONS: Final = (dict, list, tuple, Namespace)


def start_meter() -> None:
    """Begin counting what this thread makes."""
    _METER.made = 0


def count_made(count: int) -> None:
    """Add to the account of this render."""
    if count > VALUE_LIMIT:
        message = f"a value of {count} characters or elements; at most {VALUE_LIMIT} are allowed"
        raise TooLargeError(message)
    _METER.made = getattr(_METER, "made", 0) + count
    if _METER.made > RENDER_LIMIT:
        message = f"more than {RENDER_LIMIT} characters were made on the way"
        raise TooLargeError(message)


def weight(value: Any) -> int:
    """Return how many characters and elements the text of a value stands for.

    Shared parts count as often as they would be written. Iterative, and stops at the limit.

    Raises:
        TooLargeError: the value is too large or nested too deeply.
    """
    total = seen = 0
    stack: list[tuple[Any, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        seen += 1
        if isinstance(item, str):
            total += len(item) + 1
        elif isinstance(item, _COLLECTIONS):
            if isinstance(item, Namespace):
                item = object.__getattribute__(item, "_Namespace__attrs")
            total += len(item) + 1
            if depth >= DEPTH_LIMIT:
                message = f"a value nested more than {DEPTH_LIMIT} deep"
                raise TooLargeError(message)
            if seen + len(stack) + len(item) > ELEMENT_LIMIT:
                message = f"a value of more than {ELEMENT_LIMIT} elements"
                raise TooLargeError(message)
            if total <= VALUE_LIMIT:
                inner: Iterable[Any] = item
                if isinstance(item, dict):
                    inner = [*item.keys(), *item.values()]
                stack.extend((part, depth + 1) for part in inner)
        else:
            total += 1
        if total > VALUE_LIMIT:
            message = f"a value of more than {VALUE_LIMIT} characters or elements"
            raise TooLargeError(message)
    return total


def metered(value: Any) -> Any:
    """Return the value itself once it has been weighed and counted."""
    if isinstance(value, str):
        count_made(len(value))
    elif isinstance(value, _COLLECTIONS):
        count_made(weight(value))
    return value


def _width(value: Any) -> None:
    if isinstance(value, int | float) and abs(value) > WIDTH_LIMIT:
        message = f"a width or precision beyond {WIDTH_LIMIT}"
        raise TooLargeError(message)
    if isinstance(value, str):
        count_made(len(value))


def joinable(parts: Iterable[Any], separator: str = "") -> list[Any]:
    """Return the parts as a list that may be joined."""
    kept: list[Any] = []
    total = 0
    for part in parts:
        total += weight(part) + len(separator)
        if total > VALUE_LIMIT:
            message = "a join would be too large"
            raise TooLargeError(message)
        kept.append(part)
    count_made(total)
    return kept


def concat(parts: Iterable[str]) -> str:
    """Return the parts as one text, as jinja2's ``concat``."""
    return "".join(joinable(parts))


def str_join(parts: Iterable[Any]) -> str:
    """Return what the parts read as, as one text: the ``~`` operator."""
    return "".join(map(str, joinable(parts)))


# Checks before a call: (value, *args, **kwargs) -> value to use instead.
def _check_width(value: Any, *args: Any, **kwargs: Any) -> Any:
    for argument in (*args, *kwargs.values()):
        _width(argument)
    return metered(value)


def _check_indent(value: Any, width: Any = 4, *_args: Any, **_kwargs: Any) -> Any:
    _width(width)
    text = str(metered(value))
    count_made(
        len(text) + (text.count("\n") + 1) * (len(width) if isinstance(width, str) else width)
    )
    return value


def _check_replace(value: Any, old: Any, new: Any, count: Any = None, **_kwargs: Any) -> Any:
    text, old, new = str(metered(value)), str(old), str(new)
    times = text.count(old)
    if isinstance(count, int) and count >= 0:
        times = min(times, count)
    count_made(len(text) + times * max(0, len(new) - len(old)))
    return value


def _check_join(value: Any, d: Any = "", attribute: Any = None) -> Any:
    del attribute
    return joinable(value, str(d))


def _check_numbers(value: Any, attribute: Any = None, start: Any = 0) -> Any:
    kept = list(value)
    if not isinstance(start, int | float) or (
        attribute is None and not all(isinstance(item, int | float) for item in kept)
    ):
        message = "only numbers are summed"
        raise TypeError(message)
    if attribute is not None:
        message = "summing by attribute is not available"
        raise TypeError(message)
    return kept


def _check_groups(value: Any, count: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(count, int):
        count_made(abs(count))
    del args, kwargs
    return value


def _check_strip(value: Any, chars: Any = None) -> Any:
    # Each character of the text is looked up in all of these, in one long call.
    if isinstance(chars, str) and len(chars) > WIDTH_LIMIT:
        message = f"more than {WIDTH_LIMIT} characters to strip"
        raise TooLargeError(message)
    return metered(value)


def _check_format(value: Any, *args: Any, **kwargs: Any) -> Any:
    check_percent(str(metered(value)), kwargs or args)
    return value


def check_value(value: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Return the value once it has been weighed: for filters without a check of their own."""
    return metered(value)


FILTER_CHECKS: Final[dict[str, Callable[..., Any]]] = {
    "batch": _check_groups,
    "center": _check_width,
    "format": _check_format,
    "indent": _check_indent,
    "join": _check_join,
    "replace": _check_replace,
    "round": _check_width,
    "slice": _check_groups,
    "sum": _check_numbers,
    "trim": _check_strip,
}
METHOD_CHECKS: Final[dict[str, Callable[..., Any]]] = {
    "center": _check_width,
    "ljust": _check_width,
    "lstrip": _check_strip,
    "replace": _check_replace,
    "rjust": _check_width,
    "rstrip": _check_strip,
    "strip": _check_strip,
    "zfill": _check_width,
}


def tojson(
    value: Any,
    indent: int | None = None,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as chat templates expect it: not escaped for HTML, unlike jinja2's own."""
    _width(indent)
    size = weight(value)
    count_made(size * (1 + (int(indent) if isinstance(indent, int) else 0)))
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def check_percent(text: str, values: Any) -> None:
    """Check a ``%`` format before it runs."""
    count_made(len(text))
    rest, count = _PERCENT_PLAIN.subn("", text)
    if "%" in rest:
        message = "a conversion with a large or computed width in a format"
        raise TooLargeError(message)
    count_made(len(text) + count * (WIDTH_LIMIT + weight(values)))


def check_format(text: str, values: Any) -> None:
    """Check a ``str.format`` before it runs: it may place values, without layout or attributes."""
    count = 0
    for _, field, layout, conversion in Formatter().parse(text):
        count += 1
        if layout or conversion or not (not field or field.isidentifier() or field.isdecimal()):
            message = "str.format with layout, conversion or attributes"
            raise SecurityError(message)
    count_made(len(text) + count * weight(values))


def check_int(operator: str, left: int, right: int) -> None:
    """Check an operation on whole numbers before it runs."""
    bits = left.bit_length()
    if operator == "*":
        bits += right.bit_length()
    elif operator == "**":
        bits *= max(right, 1)
    if bits > INT_BITS_LIMIT:
        message = f"a whole number of more than {INT_BITS_LIMIT} bits"
        raise TooLargeError(message)
