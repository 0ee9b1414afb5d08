"""Finds again what was found before: a value that once was named is replaced wherever it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from edgewise.route.minimise.folding import Folded, compact, joins, readings
from edgewise.route.minimise.placeholders import PlaceholderMap
from edgewise.route.minimise.spans import Confidence, Kind, Span

__all__ = ["KnownValues"]

_KEPT = re.compile(r"[0-9A-Za-z@+]")
_LONG = 7
_HEAD = 4  # values with fewer characters are too common to be sought


class KnownValues:
    """Values of a map, sought with whatever separators they are written.

    An identifier that a detector knew by a word beside it (``SSN 123-45-6789``) may stand alone
    later. Names are not sought: their own detector finds them wherever they are.
    """

    name = "values known from before"
    kinds = tuple(Kind)
    limits = "a value of fewer than 4 characters is not sought again"

    def __init__(self, placeholder_map: PlaceholderMap) -> None:
        self._values: dict[str, dict[int, dict[str, tuple[Kind, str, str]]]] = {}
        for (kind, _, _), value, identity in placeholder_map.known():
            *_, said = readings(value)  # without its escapes
            plain = compact(said.text)
            if kind in {Kind.PERSON, Kind.TEXT} or len(plain) < _HEAD:
                continue
            sizes = self._values.setdefault(plain[:_HEAD], {})
            sizes.setdefault(len(plain), {})[plain] = (kind, identity, value)

    def find(self, text: Folded) -> Iterator[Span]:
        """Yield the values that a text holds as whole words."""
        if not self._values:
            return
        plain, places = _compacted(text.text)
        at = 0
        while at <= len(plain) - _HEAD:
            sizes = self._values.get(plain[at : at + _HEAD])
            if sizes is None:
                at += 1
                continue
            for size in sorted(sizes, reverse=True):
                known = sizes[size].get(plain[at : at + size])
                if known is None:
                    continue
                end = places[at + size - 1]
                kind, identity, value = known
                written = text.text[places[at] : end + 1]
                edges = (places[at], -1), (end, 1)
                if not all(_is_edge(text.text, place, step, size) for place, step in edges):
                    continue
                if not _is_same(kind, written, value, size):
                    continue
                yield text.span(
                    places[at],
                    end + 1,
                    kind,
                    confidence=Confidence.LIKELY,
                    checked_by="found before",
                    identity=identity,
                )
                at += size - 1
                break
            at += 1


def _compacted(text: str) -> tuple[str, list[int]]:
    """Return a text as :func:`compact` makes it, and where each character of it comes from."""
    if text.isascii():
        return compact(text), [match.start() for match in _KEPT.finditer(text)]
    parts: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        plain = compact(character)
        parts.append(plain)
        places.extend([place] * len(plain))
    return "".join(parts), places


def _is_same(kind: Kind, written: str, value: str, size: int) -> bool:
    """Return whether a stretch is a value and not its characters strewn over a text."""
    if kind is Kind.SECRET:
        return written.casefold() == value.casefold()
    return len(written) <= 2 * size + 8


def _is_edge(text: str, place: int, step: int, size: int) -> bool:
    """Return whether a value may end here. A long number ends where its digits do."""
    beside = place + step
    if not 0 <= beside < len(text):
        return True
    if text[place].isdigit() and size >= _LONG:
        return not text[beside].isdigit()
    return not joins(text[beside])
