"""Every table and field of a policy is on its page, with the type and default of the schema."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import msgspec
import pytest

from edgewise.route.policy import Policy
from edgewise.route.policy_file import policy_schema
from edgewise.route.policy_lint import Severity, lint_policy
from tests.docs.pages import DOCS, sections

PAGE = DOCS / "reference" / "policy.md"
SCHEMA = policy_schema()
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in node:
        node = next(one for one in node["anyOf"] if one.get("type") != "null")
    if "$ref" in node:
        node = SCHEMA["$defs"][node["$ref"].rpartition("/")[2]]
    return node


def type_of(node: dict[str, Any]) -> set[str]:
    """Return the words of a type, in any order: an enumeration has no first value."""
    found = resolved(node)
    if found.get("type") == "array":
        return {"list of", *type_of(found["items"])}
    if "enum" in found:
        return {f"`{value}`" for value in found["enum"]}
    return {"table" if found["type"] == "object" else found["type"]}


def default_of(name: str, field: dict[str, Any], table: dict[str, Any]) -> str:
    if name in table.get("required", ()):
        return "required"
    default = field["default"]
    if default is None:
        return "none"
    if isinstance(default, dict) or (
        default and isinstance(default, list) and isinstance(default[0], dict)
    ):
        return "see there"
    return f"`{json.dumps(default)}`"


def tables() -> dict[str, dict[str, Any]]:
    """Return the tables of a policy by their heading on the page."""
    whole = resolved(SCHEMA)
    found = {"The policy itself": whole}
    for name, field in whole["properties"].items():
        node = resolved(field)
        many = node.get("type") == "array"
        inner = resolved(node["items"]) if many else node
        if "properties" in inner:
            found[f"`[[{name}]]`" if many else f"`[{name}]`"] = inner
    price = found["`[[destinations]]`"]["properties"]["price"]
    return {**found, "`price`": resolved(price)}


def rows(heading: str) -> dict[str, list[str]]:
    """Return the cells of a table's rows behind the field's name."""
    text = sections(PAGE)[heading]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[1:] for row in cells}


def words(cell: str) -> set[str]:
    plain = re.sub(r"`[^`]*`|,", "", cell).strip()
    return {*re.findall(r"`[^`]*`", cell), *([plain] if plain == "list of" else _split(plain))}


def _split(plain: str) -> list[str]:
    listed = plain.startswith("list of ")
    rest = plain.removeprefix("list of ")
    return [*(["list of"] if listed else []), *([rest] if rest else [])]


def test_the_page_has_the_tables_of_the_schema() -> None:
    named = {heading for heading in sections(PAGE) if heading.startswith("`")}
    assert named | {"The policy itself"} == set(tables())


@pytest.mark.parametrize("heading", tables())
def test_every_field_has_its_row(heading: str) -> None:
    found, table = rows(heading), tables()[heading]
    assert list(found) == list(table["properties"])
    for name, field in table["properties"].items():
        kind, default, _unit, meaning = found[name]
        assert words(kind) == type_of(field), name
        assert default == default_of(name, field, table), name
        assert meaning.endswith("."), name


def test_the_examples_are_policies_without_errors() -> None:
    texts = TOML.findall(PAGE.read_text(encoding="utf-8"))
    assert texts
    for text in texts:
        policy = msgspec.convert(tomllib.loads(text), Policy)
        assert [one for one in lint_policy(policy) if one.severity is Severity.ERROR] == []
        assert any(place.is_loopback for place in policy.destinations)
