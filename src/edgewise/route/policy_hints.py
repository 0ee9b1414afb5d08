"""What to do about a field of a policy that is not of the schema, read off the schema itself."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["mistake_hint"]

_PLACE = re.compile(r" - at `\$([^`]*)`$")
_STEP = re.compile(r"\.(\w+)|\[\d+\]")
_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")


def mistake_hint(message: str, schema: dict[str, Any]) -> str | None:
    """Return the values or names that are allowed where an error was found; ``None`` for others.

    Args:
        message: What msgspec says, with the place at its end.
        schema: The JSON Schema of policies.
    """
    place = _PLACE.search(message)
    found = _at(schema, "" if place is None else place[1])
    if message.startswith("Invalid enum value") and "enum" in found:
        return f"it is one of: {', '.join(map(str, found['enum']))}"
    unknown = _UNKNOWN_FIELD.search(message)
    if unknown is None or "properties" not in found:
        return None
    return _name_hint(unknown[1], found["properties"], schema)


def _name_hint(name: str, known: dict[str, Any], schema: dict[str, Any]) -> str:
    elsewhere = [table for table, fields in _tables(schema) if name in fields]
    if elsewhere:
        return f"there is a field {name} in {' and '.join(elsewhere)}"
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"the fields here are: {', '.join(known)}"


def _tables(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tables of a policy, as they are written in TOML, with their fields."""
    whole = _resolved(schema, schema)["properties"]
    yield "the policy itself", whole
    for name, field in whole.items():
        found = _resolved(field, schema)
        many = found.get("type") == "array"
        fields = _resolved(found["items"], schema) if many else found
        if "properties" in fields:
            yield f"[[{name}]]" if many else f"[{name}]", fields["properties"]


def _at(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """Return what the schema says of a path such as ``.tasks[1].cloud``; empty where nothing."""
    found = _resolved(schema, schema)
    for step in _STEP.finditer(path):
        inner = found.get("properties", {}).get(step[1]) if step[1] else found.get("items")
        if inner is None:
            return {}
        found = _resolved(inner, schema)
    return found


def _resolved(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Follow references, and take what is there where something may also be absent."""
    while "$ref" in node or "anyOf" in node:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        else:
            node = next(one for one in node["anyOf"] if one.get("type") != "null")
    return node
