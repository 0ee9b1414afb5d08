"""A text on its way out, and what is done with the stretches that were found in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from edgewise.route.minimise.spans import Span

__all__ = ["Text", "gaps", "moved", "with_backslashes"]

_WORDY = re.compile(r"[^\W_]|[^\x00-\x7f]")


@dataclass(slots=True)
class Text:
    """A text on its way out.

    Attributes:
        source: The text as it was given.
        place: Where it stands in the request.
        context: A name that stands beside it: of its field, or of its key in JSON.
        leaf: Whether it is a string or number in JSON.
        number: Whether it is a number in JSON.
        spans: What is replaced in it.
        begun: Whether it was read as a whole.
        fresh: Whether its spans changed when it was last read.
        out: What leaves.
    """

    source: str = field(repr=False)
    place: str
    context: str = ""
    leaf: bool = False
    number: bool = False
    spans: tuple[Span, ...] = ()
    begun: bool = False
    fresh: bool = True
    out: str = field(default="", repr=False)


def gaps(text: Text) -> Iterator[tuple[int, int]]:
    """Yield the stretches that no span covers and that hold a letter or digit."""
    ends = [0, *(span.end for span in text.spans)]
    starts = [*(span.start for span in text.spans), len(text.source)]
    for start, end in zip(ends, starts, strict=True):
        if _WORDY.search(text.source, start, end):
            yield start, end


def moved(span: Span, by: int) -> Span:
    """Return a span that lies so much further on; what began in a name beside it is cut."""
    start = span.start + by
    if start < 0:  # it began in the name of the field
        return replace(span, start=0, end=span.end + by, identity="")
    return replace(span, start=start, end=span.end + by)


def with_backslashes(source: str, spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Return spans that take in the backslashes before them.

    A model that escapes a bracket puts one there, and it is taken off when the placeholder is
    restored; one of the user's own would be lost.
    """
    taken: list[Span] = []
    for span in spans:
        start = span.start
        while start and source[start - 1] == "\\" and (not taken or taken[-1].end < start):
            start -= 1
        taken.append(span if start == span.start else replace(span, start=start))
    return tuple(taken)
