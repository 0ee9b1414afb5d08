"""The audit of a JSON schema: what is enforced, what is checked, what is refused, in bounds."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from tests.unit.run.structure.toy import ROOT, refusal, schema, spelled

from edgewise.core.structure import Structure, StructureKind
from edgewise.errors import InputError, ResourceError, UnsupportedError
from edgewise.run.structure import Constrainer, audit, validate


def chain(length: int) -> dict[str, Any]:
    """Definitions of which each refers to the next."""
    links: dict[str, Any] = {
        f"d{i}": {
            "type": "object",
            "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}},
            "required": ["a"],
        }
        for i in range(length)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"type": "string"}}}


def nested(levels: int, keyword: str) -> Any:
    made: Any = {"type": "null"}
    for _ in range(levels):
        made = (
            {keyword: [made]} if keyword in {"anyOf", "allOf", "prefixItems"} else {keyword: made}
        )
    return made


@pytest.mark.parametrize(
    ("given", "checked"),
    [
        ({"type": "string", "maxLength": 100_000}, ()),
        ({"type": "array", "uniqueItems": True}, ("/uniqueItems",)),
        ({"type": "array", "uniqueItems": False}, ()),
        ({"not": {"type": "string"}}, ("/not",)),
        ({"if": {}, "then": {}, "else": {}}, ("/if", "/then", "/else")),
        ({"then": {"type": "string"}}, ()),
        (
            {"contains": {"type": "null"}, "minContains": 2},
            ("/contains", "/minContains"),
        ),
        ({"properties": {"a/b": {"format": "date"}}}, ("/properties/a~1b/format",)),
        ({"format": "uuid"}, ()),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, ()),
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, ("/oneOf",)),
        ({"patternProperties": {"^a": {}, "^b": {}}}, ()),
        ({"patternProperties": {"a": {"type": "null"}, "b": {}}}, ("/patternProperties",)),
        ({"properties": {"a": {}}, "minProperties": 2}, ("/minProperties",)),
        ({"multipleOf": 0.01}, ()),
        ({"multipleOf": 1_000_003}, ("/multipleOf",)),
        ({"multipleOf": 0.07}, ("/multipleOf",)),
        (
            {"multipleOf": 9973, "allOf": [{"multipleOf": 9967}, {"multipleOf": 9949}]},
            ("/multipleOf", "/allOf/0/multipleOf", "/allOf/1/multipleOf"),
        ),
        ({"minimum": -(2**63)}, ("/minimum",)),
        ({"maxItems": 10**9}, ("/maxItems",)),
        ({"maxLength": 10**12}, ("/maxLength",)),
        ({"pattern": "a", "minLength": 5000}, ("/minLength",)),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, ()),
        ({"allOf": [{}], "unevaluatedProperties": False}, ("/unevaluatedProperties",)),
        ({"dependentRequired": {"a": ["b"]}}, ("/dependentRequired",)),
        ({"propertyNames": {"maxLength": 3}}, ("/propertyNames",)),
        ({"title": "x", "default": 1, "deprecated": True, "x-note": 1}, ()),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"}, ()),
    ],
)
def test_what_no_grammar_carries_is_named_as_checked(
    given: dict[str, Any], checked: tuple[str, ...]
) -> None:
    assert audit(schema(given)).checked == checked


def test_what_is_enforced_is_named_too() -> None:
    found = audit(schema({"type": "object", "properties": {"a": {"minimum": 3}}, "title": "x"}))
    assert found.enforced == ("/type", "/properties/a/minimum", "/properties")


@pytest.mark.parametrize(
    ("given", "keyword", "pointer"),
    [
        ({"type": "string", "maxLenght": 3}, "maxLenght", "/maxLenght"),
        ({"not": {"properties": {"a": {"minimun": 1}}}}, "minimun", "/not/properties/a/minimun"),
        ({"nullable": True}, "nullable", "/nullable"),
        ({"items": {}, "additionalItems": {}}, "additionalItems", "/additionalItems"),
        ({"format": "idn-email"}, "format", "/format"),
        ({"not": {"format": "color"}}, "format", "/not/format"),
        ({"pattern": "(?=a)b"}, "pattern", "/pattern"),
        ({"pattern": "a(?<!b)"}, "pattern", "/pattern"),
        ({"pattern": r"(a)\1"}, "pattern", "/pattern"),
        ({"not": {"pattern": r"\bfoo"}}, "pattern", "/not/pattern"),
        ({"$ref": "http://127.0.0.1:9/a"}, "$ref", "/$ref"),
        ({"$ref": "file:///etc/passwd"}, "$ref", "/$ref"),
        ({"const": "a\u0001"}, "const", "/const"),
        ({"enum": [2**53 + 1]}, "enum", "/enum"),
        ({"minItems": 10**9}, "minItems", "/minItems"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "$schema", "/$schema"),
        ({"properties": {"a": {"$schema": "x"}}}, "$schema", "/properties/a/$schema"),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$ref": "#/$defs/a",
                "minLength": 1,
                "$defs": {"a": {}},
            },
            "$ref",
            "/$schema",
        ),
        (
            {"patternProperties": {"(a+)+$": {}}, "unevaluatedProperties": False},
            "patternProperties",
            "/patternProperties",
        ),
    ],
)
def test_what_can_be_neither_enforced_nor_checked_is_refused_by_name(
    given: dict[str, Any], keyword: str, pointer: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        audit(schema(given))
    assert caught.value.code == "structure-unsupported"
    assert caught.value.context == {"keyword": keyword, "pointer": pointer}
    assert caught.value.hint


def test_a_typo_comes_with_the_keyword_that_was_meant() -> None:
    with pytest.raises(UnsupportedError) as caught:
        audit(schema({"maxLenght": 3}))
    assert caught.value.hint == "did you mean maxLength?"


@pytest.mark.parametrize(
    "given",
    [
        "false",
        '"a"',
        "{",
        '{"const": NaN}',
        r'{"const": "\ud800"}',
        '{"maximum": 1e999}',
        '{"type": "string", "type": "integer"}',
        {"type": "text"},
        {"minLength": -1},
        {"minLength": True},
        {"multipleOf": 0},
        {"enum": []},
        {"required": ["a", "a"]},
        {"items": [{}]},
        {"allOf": []},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"not": {"$ref": "#"}},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6},
        {"type": "string", "minLength": 5, "maxLength": 3},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"const": "b", "pattern": "^a"},
        {"type": "string", "pattern": r"^\u0001$"},
        {"not": {}},
    ],
)
def test_malformed_and_contradictory_schemas_are_wrong_input(given: Any) -> None:
    with pytest.raises(InputError) as caught:
        audit(schema(given))
    assert caught.value.code == "structure-invalid"


@pytest.mark.parametrize(
    "given",
    [
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "null"}]},
        {"$ref": "#node", "$defs": {"n": {"$anchor": "node", "items": {"$ref": "#node"}}}},
        {"$id": "http://a.example/s", "items": {"$ref": "/s"}},
        True,
        {},
    ],
)
def test_recursive_and_open_schemas_are_fine(given: Any, constrainer: Constrainer) -> None:
    assert audit(schema(given)).checked == ()
    assert not constrainer.matcher(schema(given)).exhausted


# Each was a crash, a hang or minutes of work somewhere; here each is a verdict in a moment.
HOSTILE: dict[str, Any] = {
    "ten thousand arrays": "[" * 10_000,
    "ten thousand schemas": '{"items":' * 10_000 + "{}" + "}" * 10_000,
    "nesting": nested(5000 // 50, "items"),
    "nesting in place": nested(100, "anyOf"),
    "a chain of references": chain(5000),
    "exponential references": {
        "$ref": "#/$defs/d0",
        "$defs": {
            f"d{i}": {
                "anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]}]
            }
            for i in range(40)
        }
        | {"d40": {}},
    },
    "exponential intersections": {
        "allOf": [
            {"anyOf": [{"properties": {f"a{i}": {}}}, {"properties": {f"b{i}": {}}}]}
            for i in range(30)
        ]
    },
    "a large multiple": {"multipleOf": 4_294_967_291},
    "a backtracking pattern": {"pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"},
    "a counting pattern": {"pattern": "((a{100}){100}){100}"},
    "nested groups": {"pattern": "(" * 500 + ")" * 500},
    "nested maxItems": {"maxItems": 4096, "items": {"maxItems": 4096, "items": {"maxItems": 4096}}},
    "many items": {"maxItems": 10**9},
    "a megabyte of choices": {"enum": [f"value number {i} of a great many" for i in range(20_000)]},
    "many properties": {"properties": {f"property {i}": {"type": "string"} for i in range(20_000)}},
    "a long number": '{"maximum": ' + "9" * 5000 + "}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_end_quickly_in_an_audit_or_a_typed_error(name: str) -> None:
    started = time.process_time()
    error = refusal(schema(HOSTILE[name]))
    codes = {"structure-invalid", "structure-too-large", "structure-unsupported"}
    assert error is None or error.code in codes
    assert time.process_time() - started < 4


def test_too_deep_is_said_as_such() -> None:
    with pytest.raises(ResourceError) as caught:
        audit(schema(chain(200)))
    assert caught.value.code == "structure-too-large"


@pytest.mark.slow
def test_the_deepest_schema_that_is_taken_does_not_overflow_a_small_stack() -> None:
    program = (
        "import threading, json\n"
        "from tests.unit.run.structure.test_schema_audit import chain, nested\n"
        "from tests.unit.run.structure.toy import schema\n"
        "from edgewise.run.structure import audit\n"
        "def run():\n"
        "    for given in (chain(45), nested(55, 'allOf'), nested(90, 'items')):\n"
        "        print(len(audit(schema(given)).enforced) > 50)\n"
        "threading.stack_size(512 * 1024)\n"
        "thread = threading.Thread(target=run)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True"] * 3), done.stderr[-500:]


def test_the_callers_options_do_not_reach_the_library(constrainer: Constrainer) -> None:
    given = {"type": "integer", "x-guidance": {"whitespace_flexible": True, "lenient": True}}
    assert not spelled(constrainer.matcher(schema({"type": "array", "items": given})), b"[ 1 ]")


def test_a_key_cannot_be_smuggled_in_by_another_spelling(constrainer: Constrainer) -> None:
    given = {"type": "object", "properties": {"a": {"type": "integer"}}}
    given["additionalProperties"] = {"type": "string"}
    matcher = constrainer.matcher(schema(given))
    assert spelled(matcher, b'{"a":1,"b":"x"}')
    assert not spelled(matcher, rb'{"\u0061":"x"}')


def test_any_json_object_is_a_kind_of_its_own(constrainer: Constrainer) -> None:
    any_object = Structure(kind=StructureKind.JSON)
    matcher = constrainer.matcher(any_object)
    assert spelled(matcher, '{"a":[1,{"b":"é😀"}]}'.encode())
    assert not spelled(matcher, b"[1]")
    assert validate(any_object, '{"a": 1}') == ()
    assert validate(any_object, "[1]")
    assert validate(any_object, '{"a": 1, "a": 2}')
