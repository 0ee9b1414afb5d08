"""The JSON Schema test suite: every schema is refused by name, or does what it says."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from tests.unit.run.structure.toy import DATA, SUITE, cases, drawn, refusal, schema, spelled

from edgewise.errors import InputError, UnsupportedError
from edgewise.run.structure import Constrainer, Matcher, validate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not SUITE.is_dir(),
        reason=f"the JSON Schema test suite is not in {DATA} (EDGEWISE_EVAL_DATA names its folder)",
    ),
]

CASES = list(cases()) if SUITE.is_dir() else []
REQUIRED = [case for case in CASES if not case[0].startswith("optional")]

# Schemas without any valid value: a refusal is the right answer.
CONTRADICTORY = {
    "allOf with boolean schemas, some false",
    "allOf with boolean schemas, all false",
    "anyOf with boolean schemas, all false",
    "boolean schema 'false'",
    "empty enum",
    "forbid everything with empty schema",
    "forbid everything with boolean schema true",
    "oneOf with boolean schemas, all false",
    "$ref to boolean schema false",
}


def in_schema_order(value: Any, source: str) -> Any:
    """Order keys as the schema first names them: the grammar fixes that order."""
    if isinstance(value, dict):

        def place(key: str) -> int:
            at = source.find(json.dumps(key) + ": ")
            return at if at >= 0 else len(source)

        return {key: in_schema_order(value[key], source) for key in sorted(value, key=place)}
    if isinstance(value, list):
        return [in_schema_order(one, source) for one in value]
    return value


def texts(value: Any, source: str) -> list[str]:
    orders = [value, in_schema_order(value, source)]
    written = [json.dumps(o, separators=(",", ":"), ensure_ascii=False) for o in orders]
    return list(dict.fromkeys(written))


def is_asserted_format(file: str, test: dict[str, Any]) -> bool:
    """By default the suite takes formats as notes; here they are asserted, on purpose."""
    return file == "format" and "is only an annotation" in test["description"]


def matchers(constrainer: Constrainer, chosen: list[Any]) -> list[tuple[Any, Matcher]]:
    made = []
    for case in chosen:
        try:
            made.append((case, constrainer.matcher(schema(case[2]))))
        except (InputError, UnsupportedError):
            continue
    return made


def test_every_refusal_says_which_keyword_or_that_nothing_is_valid() -> None:
    refused: Counter[str] = Counter()
    for file, description, source, tests in REQUIRED:
        error = refusal(schema(source))
        if error is None:
            continue
        if error.code == "structure-unsupported":
            keyword = error.context["keyword"]
            assert f"/{keyword}" in error.message, (file, description, error)
            refused[keyword] += 1
        else:
            assert error.code == "structure-invalid", (file, description, error)
            assert description in CONTRADICTORY, (file, description, error)
            assert not any(test["valid"] for test in tests)
    # What is refused today. A number that grows is a schema that used to be served.
    assert refused == {
        "$ref": 23,
        "$schema": 2,
        "const": 1,
        "enum": 1,
        "format": 7,
        "patternProperties": 5,
    }


def test_the_finished_text_is_judged_as_the_suite_does(constrainer: Constrainer) -> None:
    judged = 0
    for (file, description, source, tests), _ in matchers(constrainer, REQUIRED):
        for test in tests:
            if is_asserted_format(file, test):
                continue
            found = validate(schema(source), json.dumps(test["data"]))
            assert (not found) == test["valid"], (file, description, test, found)
            judged += 1
    assert judged > 1100


def test_what_is_enforced_keeps_invalid_values_out_and_lets_valid_ones_in(
    constrainer: Constrainer,
) -> None:
    unspelled = []
    for (file, description, source, tests), matcher in matchers(constrainer, REQUIRED):
        for test in tests:
            written = texts(test["data"], json.dumps(source))
            made = any(spelled(matcher, text.encode()) for text in written)
            if test["valid"] and not made and not is_asserted_format(file, test):
                unspelled.append((file, test["description"]))
            if not test["valid"] and made:
                assert matcher.audit.checked, (file, description, test)
    # Valid values that the grammar does not spell: 1.0 where it writes 1, and one property order.
    assert len(unspelled) <= 11, unspelled
    assert {file for file, _ in unspelled} <= {"const", "enum", "type", "unevaluatedProperties"}


def test_texts_drawn_at_random_are_valid_where_the_grammar_enforces_all(
    constrainer: Constrainer,
) -> None:
    rng = random.Random(7)
    counts: Counter[str] = Counter()
    for (file, description, source, _), matcher in matchers(constrainer, CASES):
        for _ in range(5):
            made = drawn(matcher, rng)
            if made is None:
                counts["cut"] += 1
                continue
            found = validate(schema(source), made.decode())
            counts["invalid" if found else "valid"] += 1
            # Two rules are JSON's own and always checked: keys differ, numbers are finite.
            json_rule = bool(found) and found[0].startswith(("the key", "the number"))
            assert not found or json_rule or matcher.audit.checked, (file, description, made, found)
    assert counts["valid"] > 20 * counts["cut"]


def test_optional_schemas_end_in_a_verdict_too() -> None:
    for file, description, source, _ in CASES:
        error = refusal(schema(source))
        codes = {"structure-unsupported", "structure-invalid"}
        assert error is None or error.code in codes, (file, description, error)
