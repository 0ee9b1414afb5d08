"""What a ``format`` demands of a text: by the grammar, by a further check, or both.

A format that is neither is refused by name. The specification would let it pass as a note, and
then nothing would say that it was not looked at.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable

from edgewise.run.structure.patterns import matches_format, matches_pattern

__all__ = ["as_pattern", "is_exact", "is_known", "is_right", "names"]

# Those for which the library's regular expression is the whole rule.
_EXACT = frozenset({"duration", "email", "ipv4", "ipv6", "uri", "uuid"})

# Those that it does not have and that one regular expression says.
# RFC 6901 section 3; draft-bhutton-relative-json-pointer-00 section 3.
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"
_PATTERNS = {
    "json-pointer": rf"^{_POINTER}$",
    "relative-json-pointer": rf"^(?:0|[1-9][0-9]*)(?:[+-](?:0|[1-9][0-9]*))?(?:#|{_POINTER})$",
}


def as_pattern(name: str) -> str | None:
    """Return the regular expression that says this format, where the library has no own."""
    return _PATTERNS.get(name)


def is_exact(name: str) -> bool:
    """Whether the grammar alone enforces this format."""
    return name in _EXACT or name in _PATTERNS


def is_known(name: str) -> bool:
    """Whether this format can be enforced or checked."""
    return is_exact(name) or name in _FURTHER


def names() -> list[str]:
    """Return the formats that can be enforced or checked."""
    return sorted(_EXACT | _PATTERNS.keys() | _FURTHER.keys())


def is_right(name: str, text: str) -> bool:
    """Whether a text has this format, which is a known one."""
    if name in _PATTERNS:
        return matches_pattern(_PATTERNS[name], text)
    further = _FURTHER.get(name)
    return matches_format(name, text) and (further is None or further(text))


def _is_day(text: str) -> bool:
    year, month, day = int(text[:4]), int(text[5:7]), int(text[8:10])
    # February of a year that the grammar does not count out.
    return (month, day) != (2, 29) or calendar.isleap(year)


def _is_second(text: str) -> bool:
    """A sixtieth second is one that ends a day in UTC (RFC 3339 section 5.7)."""
    if text[6:8] != "60":
        return True
    minutes = int(text[:2]) * 60 + int(text[3:5])
    if text[-1] not in "zZ":
        offset = int(text[-5:-3]) * 60 + int(text[-2:])
        minutes -= offset if text[-6] == "+" else -offset
    return minutes % 1440 == 1439


def _is_moment(text: str) -> bool:
    return _is_day(text[:10]) and _is_second(text[11:])


def _is_hostname(text: str) -> bool:
    """RFC 1123 section 2.1 bounds the whole; names with A-labels (RFC 5890) are not taken."""
    labels = text.split(".")
    return len(text) <= 253 and not any(label[2:4] == "--" for label in labels)


_FURTHER: dict[str, Callable[[str], bool]] = {
    "date": _is_day,
    "date-time": _is_moment,
    "time": _is_second,
    "hostname": _is_hostname,
}
