"""Schemas that never end: loops of references, and values that would have to be infinite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewise.run.structure.keywords import TYPES
from edgewise.run.structure.library import malformed

__all__ = ["require_finite", "require_no_loop"]

_PREFIX = len("#/$defs/")


def require_no_loop(edges: Mapping[str, set[str]]) -> None:
    """Refuse schemas that apply themselves to one and the same value.

    Args:
        edges: From each part to those that it applies in place, by JSON pointers.

    Raises:
        InputError: there is a loop.
    """
    done: set[str] = set()
    for start in edges:
        path: dict[str, None] = {}
        pending = [(start, False)]
        while pending:
            node, leaving = pending.pop()
            if leaving:
                path.pop(node)
                done.add(node)
            elif node in path:
                raise malformed(f"{node or '/'} refers back to itself without end")
            elif node not in done:
                path[node] = None
                pending.append((node, True))
                pending += [(child, False) for child in edges.get(node, ())]


def require_finite(root: Any, definitions: Mapping[str, Any]) -> None:
    """Refuse a schema whose every value would contain another one, without end.

    Raises:
        InputError: there is no finite value.
    """
    known: set[str] = set()
    while True:
        more = {
            name
            for name in reversed(list(definitions))
            if name not in known and _is_finite(definitions[name], known, TYPES)
        }
        if not more:
            break
        known |= more
    if not _is_finite(root, known, TYPES):
        raise malformed(
            "no JSON value is valid, or each would have to hold another one without end"
        )


def _is_finite(schema: Any, known: set[str], types: frozenset[str]) -> bool:
    if isinstance(schema, bool):
        return schema
    own = schema.get("type", types)
    types = types & frozenset([own] if isinstance(own, str) else own)
    if "$ref" in schema and schema["$ref"][_PREFIX:] not in known:
        return False
    if not all(_is_finite(one, known, types) for one in schema.get("allOf", ())):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema and not any(_is_finite(s, known, types) for s in schema[keyword]):
            return False
    if types - {"object", "array"}:
        return True
    has_object = "object" in types and _has_object(schema, known)
    return has_object or ("array" in types and _has_array(schema, known))


def _has_object(schema: dict[str, Any], known: set[str]) -> bool:
    properties = schema.get("properties", {})
    return all(
        _is_finite(properties[name], known, TYPES)
        for name in schema.get("required", ())
        if name in properties
    )


def _has_array(schema: dict[str, Any], known: set[str]) -> bool:
    prefix, least = schema.get("prefixItems", []), schema.get("minItems", 0)
    if not all(_is_finite(one, known, TYPES) for one in prefix[:least]):
        return False
    return least <= len(prefix) or _is_finite(schema.get("items", True), known, TYPES)
