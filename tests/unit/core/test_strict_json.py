"""One strict reader of JSON: each flaw by its name, in linear time, and everything else as is."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.strict_json import DEPTH_MAX, Flaw, StrictJsonError, end_of_value, parse

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda one: st.lists(one, max_size=4) | st.dictionaries(st.text(), one, max_size=4),
    max_leaves=12,
)


def flaw(text: str, **options: Any) -> Flaw:
    with pytest.raises(StrictJsonError) as caught:
        parse(text, **options)
    assert caught.value.message == str(caught.value)
    return caught.value.flaw


@given(VALUES, st.booleans())
def test_what_json_writes_is_read(value: Any, escaped: bool) -> None:
    assert parse(json.dumps(value, ensure_ascii=escaped)) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Flaw.SYNTAX),
        ("{} {}", Flaw.SYNTAX),
        ("\ufeff{}", Flaw.SYNTAX),
        ('{"a": 1,}', Flaw.SYNTAX),
        ("{'a': 1}", Flaw.SYNTAX),
        ('"a\nb"', Flaw.SYNTAX),
        ("01", Flaw.SYNTAX),
        ('{"a": 1, "a": 1}', Flaw.KEY_TWICE),
        ('[{"a": {"b": 1, "\\u0062": 2}}]', Flaw.KEY_TWICE),
        ("NaN", Flaw.NUMBER),
        ("[-Infinity]", Flaw.NUMBER),
        ("1e999", Flaw.NUMBER),
        ("9" * 310, Flaw.NUMBER),
        ("-" + "9" * 309, Flaw.NUMBER),
        ("9" * 5000, Flaw.NUMBER),
        ('"\\ud800"', Flaw.SURROGATE),
        ('{"\\udfff": 1}', Flaw.SURROGATE),
        ('"\ud800"', Flaw.SURROGATE),
        ("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1), Flaw.DEPTH),
        ("[" * 200_000, Flaw.DEPTH),
        ('{"a":' * 200_000, Flaw.DEPTH),
    ],
)
def test_each_flaw_has_its_name(text: str, expected: Flaw) -> None:
    assert flaw(text) is expected


def test_the_largest_numbers_of_a_double_are_taken() -> None:
    digits = str(int(1.7976931348623157e308))
    assert parse(digits) == int(digits)
    assert parse("1.7976931348623157e308") == 1.7976931348623157e308


def test_nesting_is_the_callers_to_bound() -> None:
    assert parse("[[1]]", depth_max=2) == [[1]]
    assert flaw("[[[1]]]", depth_max=2) is Flaw.DEPTH
    assert parse("1", depth_max=0) == 1
    assert flaw("[]", depth_max=0) is Flaw.DEPTH


def test_a_repeated_key_is_told() -> None:
    with pytest.raises(StrictJsonError) as caught:
        parse('{"b": 1, "a": 1, "a": 2}')
    assert caught.value.key == "a"


@given(VALUES.filter(lambda one: isinstance(one, dict | list)), st.text(), st.booleans())
def test_the_end_of_a_value_is_found_whatever_follows(
    value: Any, behind: str, escaped: bool
) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    assert end_of_value(f"x{text}{behind}", 1, depth_max=100) == 1 + len(text)


@pytest.mark.parametrize("text", ["", "x", '"', "{", '{"', '["]', '["\\"]', "[[]"])
def test_what_does_not_end_has_no_end(text: str) -> None:
    with pytest.raises(StrictJsonError):
        end_of_value(text, 0, depth_max=10)


def test_hostile_texts_take_no_time() -> None:
    keys = ",".join(f'"k{i}":1' for i in range(200_000))
    for text in (
        "{" + keys + ',"k199999":1}',
        '"' + "\\ud83d\\ude00" * 100_000 + '"',
        '["\\' * 300_000,
    ):
        started = time.perf_counter()
        try:
            parse(text)
            end_of_value(text, 0, depth_max=10)
        except StrictJsonError:
            pass
        assert time.perf_counter() - started < 5
