"""Where a text spells calls as Python does, or each argument between marks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from edgewise.run.tools.formats import RawCall, atoms
from edgewise.run.tools.places import Place, common
from edgewise.run.tools.python_literals import LiteralError, arguments_at
from edgewise.run.tools.spellings import MarkedArguments, PythonCalls, spell_value

__all__ = ["as_python", "between_marks"]

# A trait of a spelling, and whether it has it.
_Way: TypeAlias = tuple[str, bool]
_DEPTH_MAX = 8
_JOINS = frozenset({"", ",", ";"})


def as_python(body: str, calls: Sequence[RawCall], _ids: Sequence[str]) -> list[Place] | None:
    """Return where the calls stand as Python's: one place for all where nothing parts them."""
    spans: list[tuple[int, int]] = []
    for name, arguments in calls:
        start = body.find(f"{name}(", spans[-1][1] if spans else 0)
        if start < 0:
            return None
        try:
            found, end = arguments_at(body, start + len(name), depth_max=_DEPTH_MAX)
        except LiteralError:
            return None
        if found != arguments:
            return None
        spans.append((start, end))
    form = PythonCalls(pythonic=not any(spelled in body for spelled in _spelled_as_json(calls)))
    gaps = [body[a[1] : b[0]] for a, b in pairwise(spans)]
    if any(gap.strip() not in _JOINS for gap in gaps):
        return [Place(start, end, {"python": form}) for start, end in spans]
    return [_together(body, spans, gaps, form)]


def _together(body: str, spans: list[tuple[int, int]], gaps: list[str], form: PythonCalls) -> Place:
    start, end = spans[0][0], spans[-1][1]
    join = gaps[0] if gaps else ", "
    if body[:start].endswith("[") and body[end:].startswith("]"):
        made = PythonCalls(opening="[", closing="]", join=join, pythonic=form.pythonic)
        return Place(start - 1, end + 1, {"python": made})
    return Place(start, end, {"python": PythonCalls(join=join, pythonic=form.pythonic)})


def _spelled_as_json(calls: Sequence[RawCall]) -> Iterator[str]:
    """Yield what stands in the text where constants and objects are JSON."""
    for _, arguments in calls:
        for key, value in arguments.items():
            if isinstance(value, bool | dict):
                yield f"{key}={spell_value(value, pythonic=False)}"


def between_marks(body: str, calls: Sequence[RawCall], _ids: Sequence[str]) -> list[Place] | None:
    """Return where the calls stand as a name and arguments between marks."""
    spans: list[list[tuple[int, int]]] = []  # of name, key, value, key, value, … of each call
    at = 0
    ways: set[_Way] = set()
    for name, arguments in calls:
        found = _spans(body, at, name, arguments, ways)
        if found is None:
            return None
        spans.append(found)
        at = found[-1][1]
    if len({trait for trait, _ in ways}) < len(ways):
        return None  # one value is spelled this way, another one that
    ends = [span[0][0] for span in spans[1:]] + [len(body)]
    places = [_marked(body, span, end, ways) for span, end in zip(spans, ends, strict=True)]
    return None if None in places else [place for place in places if place is not None]


def _spans(
    body: str, at: int, name: str, arguments: Mapping[str, Any], ways: set[_Way]
) -> list[tuple[int, int]] | None:
    start = body.find(name, at)
    if start < 0:
        return None
    spans = [(start, start + len(name))]
    for key, value in arguments.items():
        at = body.find(key, spans[-1][1])
        if at < 0:
            return None
        spans.append((at, at + len(key)))
        found = _value(body, at + len(key), value)
        if found is None:
            return None
        span, way = found
        spans.append(span)
        if way is not None:
            ways.add(way)
    return spans


def _value(body: str, at: int, value: Any) -> tuple[tuple[int, int], _Way | None] | None:
    """Return where a value stands, and what its spelling tells."""
    ways: dict[str, _Way]
    if isinstance(value, str):
        ways = {json.dumps(value): ("quoted", True), value: ("quoted", False)}
    else:
        ways = {
            json.dumps(value, separators=(",", ":")): ("pythonic", False),
            spell_value(value, pythonic=True): ("pythonic", True),
            spell_value(value, pythonic=False): ("pythonic", False),
        }
    places = [(body.find(text, at), -len(text), text) for text in ways]
    first = min((place for place in places if place[0] >= 0), default=None)
    if first is None:
        return None
    start, _, text = first
    tells = isinstance(value, str | bool | dict)  # a plain number is the same in all of them
    return (start, start + len(text)), ways[text] if tells else None


def _marked(body: str, spans: list[tuple[int, int]], end: int, ways: set[_Way]) -> Place | None:
    """Return one call's place, its marks taken from what stands between its parts."""
    keys, values = spans[1::2], spans[2::2]
    if len(keys) < 2:
        return None
    head = atoms(body[spans[0][1] : keys[0][0]])
    gaps = [atoms(body[v[1] : k[0]]) for v, k in zip(values, keys[1:], strict=False)]
    middles = {body[k[1] : v[0]] for k, v in zip(keys, values, strict=True)}
    closing = common(gaps[0], atoms(body[values[-1][1] : end]))
    opening = gaps[0][len(closing) :]
    if len(middles) > 1 or any(gap != gaps[0] for gap in gaps) or not opening:
        return None
    if head[len(head) - len(opening) :] != opening:
        return None
    marked = MarkedArguments(
        opening="".join(opening),
        middle=middles.pop(),
        closing="".join(closing),
        quoted=("quoted", True) in ways,
        pythonic=("pythonic", True) in ways,
    )
    separator = ("".join(head[: len(head) - len(opening)]),)
    last = values[-1][1] + len(marked.closing)
    return Place(spans[0][0], last, {"separator": separator, "marked": marked})
