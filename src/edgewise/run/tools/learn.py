"""A format out of one text in which known calls are spelled."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from edgewise.run.tools.formats import RawCall, ToolFormat, atoms
from edgewise.run.tools.learn_spellings import as_python, between_marks
from edgewise.run.tools.parse import parse_calls
from edgewise.run.tools.places import Place, common

__all__ = ["learn"]

# What is shorter, or words without any of these signs, would be found in ordinary text.
_MARK_CHARACTERS_MIN = 3
_MARK_SIGNS = frozenset("<>[]|`")
# Two small calls. A template that makes more of them is not trusted with our time.
_BODY_CHARACTERS_MAX = 4096


def learn(body: str, calls: Sequence[RawCall], ids: Sequence[str]) -> ToolFormat | None:
    """Return the format in which a text spells calls.

    ``None`` when it cannot be read, or would not give exactly these calls back.

    Args:
        body: What the model writes to make the calls, and nothing else.
        calls: The calls, in order.
        ids: Their ids, which the text may hold.
    """
    if len(body) > _BODY_CHARACTERS_MAX:
        return None
    for find in (_in_json, _beside_json, as_python, between_marks):
        places = find(body, calls, ids)
        form = None if places is None else _framed(body, places)
        if form is not None and _usable(form):
            read = parse_calls(body, form)
            wanted = [_as_read(call, form) for call in calls]
            if read.problem is None and list(read.calls) == wanted and not read.text.strip():
                return form
    return None


def _as_read(call: RawCall, form: ToolFormat) -> RawCall:
    """Return a call as it comes out of the parser, before a schema has typed its arguments."""
    if form.marked is None or not form.typed_by_schema:
        return call
    name, arguments = call
    return name, {key: form.marked.spell_value(value) for key, value in arguments.items()}


def _usable(form: ToolFormat) -> bool:
    if form.marked is not None:
        marked = form.marked
        marks = (form.begin, form.end, marked.opening, marked.closing)
        return marked.middle.strip() != "" and all(map(_is_mark, marks))
    if form.bare and form.python is not None:
        return bool(form.python.opening) and not form.before_all.strip()
    if form.bare:
        return form.separator is None and not form.before_all.strip()
    return _is_mark(form.begin)


def _is_mark(text: str) -> bool:
    mark = text.strip()
    return len(mark) >= _MARK_CHARACTERS_MIN and not _MARK_SIGNS.isdisjoint(mark)


def _in_json(body: str, calls: Sequence[RawCall], _ids: Sequence[str]) -> list[Place] | None:
    """Return where the calls stand as JSON that holds their names too."""
    places: list[Place] = []
    at = 0
    for index, call in enumerate(calls):
        for start, end, value in _values(body, at):
            shape = _shape(value[index] if _is_list_of(value, calls) else value, call)
            if shape is None:
                continue
            if _is_list_of(value, calls):
                return [Place(start, end, {**shape, "listed": True})]
            places.append(Place(start, end, shape))
            at = end
            break
        else:
            return None
    return places


def _is_list_of(value: Any, calls: Sequence[RawCall]) -> bool:
    return isinstance(value, list) and len(value) == len(calls)


def _values(body: str, at: int) -> Iterable[tuple[int, int, Any]]:
    """Yield every JSON object or list that begins at or after a place."""
    decoder = json.JSONDecoder()
    for start in range(at, len(body)):
        if body[start] in "{[":
            try:
                value, end = decoder.raw_decode(body, start)
            except (ValueError, RecursionError):
                continue
            yield start, end, value


def _shape(value: Any, call: RawCall) -> dict[str, Any] | None:
    """Return under which keys a JSON value has a name and arguments."""
    nested = isinstance(value, dict) and isinstance(value.get("function"), dict)
    inner = value["function"] if nested else value
    if not isinstance(inner, dict):
        return None
    name, arguments = call
    name_key = next((k for k, v in inner.items() if v == name), None)
    if name_key is None:
        return None
    for key, given in inner.items():
        as_text = isinstance(given, str) and key != name_key and _load(given) == arguments
        if given == arguments or as_text:
            return {
                "nested": nested,
                "name_key": name_key,
                "arguments_key": key,
                "text_arguments": as_text,
            }
    return None


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _beside_json(body: str, calls: Sequence[RawCall], ids: Sequence[str]) -> list[Place] | None:
    """Return where the calls stand as a name and, behind it, the JSON of the arguments."""
    places: list[Place] = []
    at = 0
    for (name, arguments), id_ in zip(calls, ids, strict=True):
        start = body.find(name, at)
        if start < 0:
            return None
        behind = start + len(name)
        found = next(((s, e) for s, e, v in _values(body, behind) if v == arguments), None)
        if found is None:
            return None
        separator = tuple(body[behind : found[0]].split(id_))
        places.append(Place(start, found[1], {"separator": separator}))
        at = found[1]
    return places


def _framed(body: str, places: list[Place]) -> ToolFormat | None:
    """Return the format with what stands before, between and behind the calls."""
    first, last = places[0], places[-1]
    if any(place.shape != first.shape for place in places):
        return None
    before, behind = atoms(body[: first.start]), atoms(body[last.end :])
    if len(places) == 1:
        return ToolFormat(begin="".join(before), end="".join(behind), **first.shape)
    middle = atoms(body[first.end : last.start])
    begin = common(before[::-1], middle[::-1])[::-1]
    end = common(middle, behind)
    # Space between two calls belongs to both: to the end, then.
    while len(begin) + len(end) > len(middle) and begin[0].isspace():
        begin = begin[1:]
    if len(begin) + len(end) > len(middle):
        return None
    return ToolFormat(
        begin="".join(begin),
        end="".join(end),
        between="".join(middle[len(end) : len(middle) - len(begin)]),
        before_all="".join(before[: len(before) - len(begin)]),
        after_all="".join(behind[len(end) :]),
        **first.shape,
    )
