"""What counts as right."""

from __future__ import annotations

import json

import pytest

from edgewise.core.tools import ToolCall
from edgewise.errors import InputError
from edgewise.route.calibrate import CheckKind, check_reference, is_correct


@pytest.mark.parametrize(
    ("kind", "reference", "right", "wrong"),
    [
        ("exact", "Paris", ["Paris", " Paris\n"], ["paris", "Paris.", "", "It is Paris"]),
        ("exact", "e\u0301", ["\u00e9"], ["e"]),
        (
            "number",
            "1,234",
            ["It is 1234.", "#### 1,234", "7 then 1234.0"],
            ["1234 of 5", "none", ""],
        ),
        ("number", -0.5, ["-.5", "so -0.50"], ["0.5", "-5"]),
        ("choice", "B", ["B", "b)", " (B) because A", "**B**"], ["A or B", "", "BB"]),
        ("regex", r"(?i)\bparis\b", ["It is Paris!"], ["Parisian"]),
        (
            "json",
            {"a": [1, True]},
            ['{"a": [1.0, true]}'],
            ['{"a": [1, 1]}', "{", '{"a": 1, "a": [1, true]}'],
        ),
    ],
)
def test_texts(kind, reference, right, wrong) -> None:
    kind = CheckKind(kind)
    check_reference(kind, reference)
    for text in right:
        assert is_correct(kind, reference, text), text
    for text in wrong:
        assert not is_correct(kind, reference, text), text


def call(name: str, **arguments) -> ToolCall:
    return ToolCall(id="1", name=name, arguments=json.dumps(arguments))


AREA = [{"area": {"base": [10], "height": [5, 5.0], "unit": ["units", "", "cm"]}}]


@pytest.mark.parametrize(
    ("calls", "right"),
    [
        ([call("area", base=10, height=5)], True),
        ([call("area", base=10.0, height=5, unit="Units")], True),
        ([call("area", base=10, height=5, unit="m")], False),
        ([call("area", base=10)], False),
        ([call("area", base=10, height=True)], False),
        ([call("area", base="10", height=5)], False),
        ([call("area", base=10, height=5, more=1)], False),
        ([call("volume", base=10, height=5)], False),
        ([call("area", base=10, height=5)] * 2, False),
        ([], False),
    ],
)
def test_a_call(calls, right: bool) -> None:
    check_reference(CheckKind.CALL, AREA)
    assert is_correct(CheckKind.CALL, AREA, "", calls) is right


def test_several_calls_in_any_order_and_nested_values() -> None:
    wanted = [
        {"f": {"where": [{"city": ["New York, NY", "NYC"], "zip": ["", 1]}], "days": [[1, 2]]}},
        {"f": {"where": [{"city": ["Bonn"]}], "days": [[3]]}},
    ]
    check_reference(CheckKind.CALL, wanted)
    one = call("f", where={"city": "new york ny"}, days=[1, 2])
    other = call("f", where={"city": "Bonn"}, days=[3])
    assert is_correct(CheckKind.CALL, wanted, "", [other, one])
    assert not is_correct(CheckKind.CALL, wanted, "", [one, one])
    assert not is_correct(
        CheckKind.CALL, wanted, "", [other, call("f", where={"city": "Bonn"}, days=[2, 1])]
    )


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        ("exact", ""),
        ("exact", 3),
        ("number", "three"),
        ("number", True),
        ("number", "nan"),
        ("number", None),
        ("choice", "A or B"),
        ("choice", None),
        ("regex", "("),
        ("regex", ""),
        ("regex", "a" * 5000),
        ("call", []),
        ("call", [{"a": {}, "b": {}}]),
        ("call", [{"a": {"x": 1}}]),
        ("call", [{"a": {"x": []}}]),
        ("call", {"a": {}}),
    ],
)
def test_a_reference_that_nothing_could_meet(kind: str, reference) -> None:
    with pytest.raises(InputError) as caught:
        check_reference(CheckKind(kind), reference)
    assert caught.value.code == "case-reference-invalid"
    assert caught.value.hint
