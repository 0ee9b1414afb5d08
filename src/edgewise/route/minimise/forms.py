r"""The form of placeholders, and every form in which a model may hand one back.

A placeholder is ``[EMAIL_1]``; the second spelling of the same identifier is ``[EMAIL_1_2]``.
Models lower the case, escape the underscore, put emphasis or spaces inside, use the brackets of
another language, or leave them out. All of this is read. The same grammar finds what in a user's
own text could be taken for a placeholder.

The grammar is bounded: no match is longer than :data:`WINDOW` characters, and for every text it
is decidable from there on whether more input could complete one. So a stream is restored with
the least delay, and the same however it is split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from edgewise.route.minimise.spans import Kind

__all__ = ["WINDOW", "Key", "Place", "first_partial", "places", "written"]

WINDOW = 64

Key = tuple[Kind, int, int]  # kind, number, number of the spelling (1 is the first)

_LABELS = [kind.value for kind in Kind]
_OPEN = r"\\{0,2}[\[\u3010\uff3b\u3014\u300c]"
_CLOSE = r"[\]\u3011\uff3d\u3015\u300d]"
_INNER = r"[ *_`\\]{0,4}"
_SEPARATOR = r"[ \\*_\uff3f\-]{1,6}"
_NEXT = r"[ \\]{0,4}[_\uff3f][ \\]{0,2}"
_NEXT_PARTIAL = r"[ \\]{0,4}(?:[_\uff3f][ \\]{0,2})?"
_NUMBER = r"[1-9][0-9]{0,5}"
_BARE_SEPARATOR = r"\\{0,2}_"
_BOUNDARY = r"(?<![A-Za-z0-9_\\])"
_LABEL = "(?:" + "|".join(_LABELS) + ")"
_BEGUN = (
    "(?:"
    + "|".join(sorted({label[:n] for label in _LABELS for n in range(1, len(label) + 1)}))
    + ")"
)

_FULL = re.compile(
    rf"{_OPEN}{_INNER}(?i:(?P<label>{_LABEL})){_SEPARATOR}(?P<number>{_NUMBER})"
    rf"(?:{_NEXT}(?P<spelling>{_NUMBER}))?{_INNER}{_CLOSE}"
    rf"|{_BOUNDARY}(?P<bare>{_LABEL}){_BARE_SEPARATOR}(?P<bare_number>{_NUMBER})"
    rf"(?:{_BARE_SEPARATOR}(?P<bare_spelling>{_NUMBER}))?(?=s?(?![A-Za-z0-9_]))"
)


# What may become a placeholder when more text comes: every state the grammar can stop in.
_TAIL = rf"(?:{_INNER}\Z|{_NEXT_PARTIAL}\Z|{_NEXT}{_NUMBER}{_INNER}\Z)"
_BARE_TAIL = rf"(?:s?\Z|\\{{0,2}}_?\Z|{_BARE_SEPARATOR}{_NUMBER}s?\Z)"
_PARTIAL = re.compile(
    r"\\{1,2}\Z"
    rf"|{_OPEN}(?:{_INNER}\Z|{_INNER}(?i:{_BEGUN})\Z"
    rf"|{_INNER}(?i:{_LABEL})(?:{_SEPARATOR}\Z|{_SEPARATOR}{_NUMBER}{_TAIL}))"
    rf"|{_BOUNDARY}(?:{_BEGUN}\Z"
    rf"|{_LABEL}(?:\\{{0,2}}_?\Z|{_BARE_SEPARATOR}{_NUMBER}{_BARE_TAIL}))"
)


@dataclass(frozen=True, slots=True)
class Place:
    """A stretch of a text that reads as a placeholder."""

    start: int
    end: int
    key: Key
    bracketed: bool


def written(key: Key) -> str:
    """Return a placeholder as it is given to a model."""
    kind, number, spelling = key
    return f"[{kind.value}_{number}]" if spelling == 1 else f"[{kind.value}_{number}_{spelling}]"


def places(text: str, start: int = 0) -> Iterator[Place]:
    """Yield all that reads as a placeholder, from a place on."""
    for match in _FULL.finditer(text, start):
        bracketed = match["label"] is not None
        label, number, spelling = (
            (match["label"].upper(), match["number"], match["spelling"])
            if bracketed
            else (match["bare"], match["bare_number"], match["bare_spelling"])
        )
        key = (Kind(label), int(number), int(spelling or 1))
        yield Place(match.start(), match.end(), key, bracketed)


def first_partial(text: str, start: int) -> int:
    """Return where a placeholder may have begun that is not complete yet; else the length."""
    found = _PARTIAL.search(text, max(start, len(text) - WINDOW))
    return len(text) if found is None else found.start()
