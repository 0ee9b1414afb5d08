"""The check of a finished text, which trusts nothing that came before."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.run.structure.toy import schema

from edgewise.run.structure import validate
from edgewise.run.structure.numbers import is_multiple


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a": 1',
        "[1] [2]",
        "NaN",
        "Infinity",
        "1e999",
        "9" * 400,
        '{"a": 1, "a": 1}',
        '[{"b": {"a": 1, "a": 2}}]',
        r'"\ud800"',
        r'{"\udc00": 1}',
        '"\ud800"',
        "[" * 100_000,
        "[" * 400 + "]" * 400 + "x",
    ],
)
def test_what_readers_of_json_differ_about_is_no_answer(text: str) -> None:
    assert validate(schema(True), text)


def test_deep_text_is_checked_or_refused_never_a_crash() -> None:
    recursive = {"items": {"$ref": "#"}, "type": "array"}
    assert validate(schema(recursive), "[" * 30 + "]" * 30) == ()
    assert validate(schema(recursive), "[" * 900 + "]" * 900)


@pytest.mark.parametrize(
    ("given_schema", "right", "wrong"),
    [
        ({"format": "date"}, ['"2024-02-29"', "3"], ['"2023-02-29"', '"2024-2-9"', '"x"']),
        (
            {"format": "date-time"},
            ['"2024-02-29T12:00:00Z"', '"1998-12-31T23:59:60Z"', '"1998-12-31T15:59:60.1-08:00"'],
            ['"1900-02-29T12:00:00Z"', '"1998-12-31T22:59:60Z"', '"1998-12-31T15:59:60+08:00"'],
        ),
        ({"format": "time"}, ['"23:59:60Z"', '"01:29:60+01:30"'], ['"23:59:60+01:00"', '"24:00:00Z"']),
        ({"format": "hostname"}, ['"a-b.example"'], ['"-a"', f'"{"a." * 130}a"', '"xn--x"']),
        ({"format": "json-pointer"}, ['""', '"/a~0/b"'], ['"a"', '"/~2"']),
        ({"format": "relative-json-pointer"}, ['"0"', '"1/a"', '"2#"'], ['"/a"', '"01"', '"0##"']),
        ({"multipleOf": 0.01}, ["4.35", "0", "-1.1", "1e2"], ["4.355", "1e-3"]),
        ({"multipleOf": 3}, ["9e30", "111257712639521245123901264511223571259"], ["1e30", "-1"]),
        ({"pattern": r"^\d+$"}, ['"12"'], ['"1٢"', '"12\\n"']),
        ({"pattern": r"^\s$"}, ['"\ufeff"'], ['"a"']),
        ({"pattern": r"^.$"}, ['"é"'], [r'"\r"', '"\u2028"']),
        ({"uniqueItems": True}, ["[1, true]"], ["[1, 1.0]"]),
        ({"oneOf": [{"minimum": 1}, {"multipleOf": 2}]}, ["2.5", "0"], ["2"]),
        ({"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a", "type": "null"}}}, ["null"], ["1"]),
        ({"patternProperties": {r"^\d": False}, "additionalProperties": {}}, ['{"a": 1}'], ['{"1": 1}']),
        (
            {"properties": {"a": {}}, "patternProperties": {"^b": {}}, "additionalProperties": False},
            ['{"a": 1, "bc": 2}'],
            ['{"c": 1}'],
        ),
    ],
)  # fmt: skip
def test_what_the_package_leaves_out_or_gets_wrong_is_checked_as_specified(
    given_schema: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    for text in right:
        assert validate(schema(given_schema), text) == (), text
    for text in wrong:
        assert validate(schema(given_schema), text), text


def test_a_failure_says_where_and_by_which_keyword() -> None:
    found = validate(
        schema({"properties": {"a": {"type": "array", "items": {"type": "null"}}}}), '{"a": [1]}'
    )
    assert found == ("/a/0: 1 is not of type 'null' (schema: /properties/a/items/type)",)


def test_at_most_twenty_things_are_reported() -> None:
    assert len(validate(schema({"items": {"type": "null"}}), str(list(range(100))))) == 20


@pytest.mark.parametrize(
    "given_schema",
    [
        {"pattern": "^(a+)+$"},
        {"patternProperties": {"^(a|a)*$": {}}},
        {"patternProperties": {"^(a|a)*$": {}}, "additionalProperties": False},
        {"propertyNames": {"pattern": "^(a|aa)+$"}},
    ],
)
def test_a_pattern_cannot_make_the_check_take_for_ever(given_schema: dict[str, Any]) -> None:
    text = "a" * 5000 + "!"
    started = time.process_time()
    validate(schema(given_schema), f'{{"{text}": 1}}')
    validate(schema(given_schema), f'"{text}"')
    assert time.process_time() - started < 2


@given(
    st.integers(-(10**40), 10**40), st.integers(2, 10**6), st.integers(0, 8), st.integers(0, 999)
)
def test_multiples_are_counted_in_decimal_digits(
    times: int, step: int, digits: int, few: int
) -> None:
    of = float(f"{step}e-{digits}")
    assert is_multiple(float(f"{step * few}e-{digits}"), of)
    assert not is_multiple(float(f"{step * few + 1}e-{digits}"), of)
    assert is_multiple(times * step, step)
    assert not is_multiple(times * step + 1, step)
