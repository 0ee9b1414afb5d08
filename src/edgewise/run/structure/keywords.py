"""The keywords of JSON Schema 2020-12, and what value each may have.

A keyword that is not here has no meaning in that draft. Such a one is refused, since it is a typo
or belongs to another draft, except for names that begin with ``x-``, which by custom are notes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from edgewise.run.structure.library import malformed, unsupported

__all__ = ["ANNOTATIONS", "IN_PLACE", "count", "refuse_unknown", "require_sound", "without_effect"]

TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})

# The specification gives these no say in whether a value is valid.
ANNOTATIONS = frozenset(
    {"title", "description", "default", "deprecated", "readOnly", "writeOnly", "examples"}
    | {"contentEncoding", "contentMediaType", "contentSchema", "$comment"}
    | {"$id", "$anchor", "$dynamicAnchor", "$defs", "definitions"}
)

# Those that apply a schema to the same value: a loop of them would never end.
IN_PLACE = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "dependentSchemas"}
    | {"if", "then", "else"}
)

_OTHER_DRAFTS = {
    "additionalItems": "use prefixItems with items",
    "dependencies": "use dependentRequired or dependentSchemas",
    "$recursiveRef": "use $dynamicRef",
    "$recursiveAnchor": "use $dynamicAnchor",
    "id": "use $id",
    "nullable": 'use "type": [..., "null"]',
    "$vocabulary": "leave it out; it belongs into a meta-schema",
}


def _schema(value: Any) -> bool:
    return isinstance(value, bool | dict)


def _schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_schema(one) for one in value)


def _schema_map(value: Any) -> bool:
    return isinstance(value, dict) and all(_schema(one) for one in value.values())


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def count(value: Any) -> int | None:
    """Return a count as an int, also when it is written as 2.0; ``None`` when it is no count."""
    whole = _number(value) and value >= 0 and value == int(value)
    return int(value) if whole else None


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value)) and len(set(value)) == len(value)


def _text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(_texts(one) for one in value.values())


def _types(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and _texts(names) and TYPES.issuperset(names)


def _boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _choices(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _anything(_: Any) -> bool:
    return True


_Rule = tuple[Callable[[Any], bool], str]

_GROUPS: tuple[tuple[str, _Rule], ...] = (
    (
        "additionalProperties propertyNames items contains not if then else contentSchema",
        (_schema, "a schema"),
    ),
    ("unevaluatedItems unevaluatedProperties", (_schema, "a schema")),
    ("allOf anyOf oneOf prefixItems", (_schemas, "a list of schemas, at least one")),
    (
        "properties patternProperties dependentSchemas $defs definitions",
        (_schema_map, "an object of schemas"),
    ),
    (
        "minLength maxLength minItems maxItems minContains maxContains minProperties maxProperties",
        (lambda value: count(value) is not None, "a whole number, at least 0"),
    ),
    ("minimum maximum exclusiveMinimum exclusiveMaximum", (_number, "a number")),
    ("multipleOf", (_positive, "a number above 0")),
    (
        "$ref $dynamicRef $id $anchor $dynamicAnchor $comment contentEncoding contentMediaType",
        (_text, "a text"),
    ),
    ("pattern format title description", (_text, "a text")),
    ("required", (_texts, "a list of different texts")),
    ("dependentRequired", (_text_map, "an object of lists of different texts")),
    ("type", (_types, "one or more of " + ", ".join(sorted(TYPES)))),
    ("uniqueItems deprecated readOnly writeOnly", (_boolean, "true or false")),
    ("enum", (_choices, "a list, at least one value")),
    ("examples", (_list, "a list")),
    ("const default", (_anything, "anything")),
)
_RULES: dict[str, _Rule] = {name: rule for names, rule in _GROUPS for name in names.split()}


def require_sound(keyword: str, value: Any, pointer: str) -> None:
    """Refuse a keyword whose value the specification does not allow.

    Raises:
        InputError: the value is of another kind.
        UnsupportedError: the keyword is not one of the draft's.
    """
    rule = _RULES.get(keyword)
    if rule is None:
        refuse_unknown(keyword, pointer)
    elif not rule[0](value):
        raise malformed(f"{pointer} must be {rule[1]}")


def refuse_unknown(keyword: str, pointer: str) -> None:
    """Refuse a name that is no keyword of the draft, unless it is a note.

    Raises:
        UnsupportedError: it is no note.
    """
    if keyword.startswith("x-"):
        return
    if keyword == "$schema":
        raise unsupported(
            f"{pointer} declares a dialect inside of a schema",
            hint="declare it at the top, or leave it out",
            keyword=keyword,
            pointer=pointer,
        )
    near = get_close_matches(keyword, _RULES, n=1)
    hint = _OTHER_DRAFTS.get(keyword) or (
        f"did you mean {near[0]}?" if near else "leave it out, or let its name begin with x-"
    )
    raise unsupported(
        f"{pointer} is no keyword of JSON Schema 2020-12",
        hint=hint,
        keyword=keyword,
        pointer=pointer,
    )


def without_effect(keyword: str, node: dict[str, Any]) -> bool:
    """Whether the specification says that this keyword does nothing here."""
    if keyword in ANNOTATIONS or keyword.startswith("x-"):
        return True
    if keyword in {"then", "else"}:
        return "if" not in node
    if keyword in {"minContains", "maxContains"}:
        return "contains" not in node
    return keyword == "uniqueItems" and node[keyword] is False
