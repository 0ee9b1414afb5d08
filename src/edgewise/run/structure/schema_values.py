"""Keywords that speak of a value itself: its type, its bounds, what it is written with."""

from __future__ import annotations

from typing import Any, Final

from edgewise.run.structure import formats, keywords, numbers
from edgewise.run.structure.ecma import translated
from edgewise.run.structure.parts import Part, Relaxation
from edgewise.run.structure.translator import Handler, Translator

__all__ = ["VALUES"]

_ITEMS_MAX = 4096  # the library writes out every item up to maxItems
_LENGTH_MAX = 2**31  # and counts characters in 32 bits


def _count(work: Translator, part: Part, keyword: str) -> None:
    part.simple[keyword] = keywords.count(part.node[keyword])
    work.note(part, keyword, enforced=True)


def _length(work: Translator, part: Part, keyword: str) -> None:
    beside = "pattern" in part.node or "format" in part.node
    if beside and Relaxation.LENGTHS in work.relaxed:
        work.check(part, keyword)
    else:
        _bounded_count(work, part, keyword, _LENGTH_MAX)


def _items_count(work: Translator, part: Part, keyword: str) -> None:
    _bounded_count(work, part, keyword, _ITEMS_MAX)


def _bounded_count(work: Translator, part: Part, keyword: str, most: int) -> None:
    if (keywords.count(part.node[keyword]) or 0) <= most:
        _count(work, part, keyword)
    elif keyword.startswith("max"):
        work.check(part, keyword)
    else:
        raise work.unsupported(part, keyword, f"asks for more than {most}")


def _property_count(work: Translator, part: Part, keyword: str) -> None:
    if Relaxation.PROPERTY_COUNTS in work.relaxed:
        work.check(part, keyword)
    else:
        _bounded_count(work, part, keyword, _ITEMS_MAX)


def _bound(work: Translator, part: Part, keyword: str) -> None:
    if numbers.is_exact(part.node[keyword]):
        work.keep(part, keyword)
    else:
        work.check(part, keyword)


def _multiple(work: Translator, part: Part, keyword: str) -> None:
    (work.keep if work.multiples else work.check)(part, keyword)


def _literal(work: Translator, part: Part, keyword: str) -> None:
    if not part.place.silent:
        for value in part.node[keyword] if keyword == "enum" else [part.node[keyword]]:
            if not _can_be_written(value):
                raise work.unsupported(
                    part, keyword, "holds a control character or a number beyond 2^53"
                )
    part.apply(keyword, part.node[keyword])
    work.note(part, keyword, enforced=True)


def _pattern(work: Translator, part: Part, keyword: str) -> None:
    pattern = part.node[keyword]
    work.require_pattern(part, keyword, pattern)
    part.simple[keyword] = translated(pattern)
    work.note(part, keyword, enforced=True)


def _format(work: Translator, part: Part, keyword: str) -> None:
    name = part.node[keyword]
    if not formats.is_known(name):
        known = ", ".join(formats.names())
        raise work.unsupported(part, keyword, f"is {name!r}", hint=f"these are known: {known}")
    pattern = formats.as_pattern(name)
    if pattern is not None:
        part.apply("allOf", [{"pattern": translated(pattern)}])
    else:
        part.simple[keyword] = name
    work.note(part, keyword, enforced=formats.is_exact(name))


def _can_be_written(value: Any) -> bool:
    """Whether the grammar has a spelling for a constant, and the right one."""
    if isinstance(value, dict):
        return all(_can_be_written(one) for one in value.values())
    if isinstance(value, list):
        return all(map(_can_be_written, value))
    if isinstance(value, str):
        return all((one >= " " and one != "\x7f") or one in "\b\f\n\r\t" for one in value)
    return value is None or numbers.is_exact(value)


VALUES: Final[dict[str, Handler]] = {
    "type": Translator.keep,
    "required": Translator.keep,
    "const": _literal,
    "enum": _literal,
    "minLength": _length,
    "maxLength": _length,
    "pattern": _pattern,
    "format": _format,
    "minimum": _bound,
    "maximum": _bound,
    "exclusiveMinimum": _bound,
    "exclusiveMaximum": _bound,
    "multipleOf": _multiple,
    "minItems": _items_count,
    "maxItems": _items_count,
    "minProperties": _property_count,
    "maxProperties": _property_count,
    "uniqueItems": Translator.check,
    "dependentRequired": Translator.check,
}
