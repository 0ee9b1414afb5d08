"""Canonical JSON against the examples of RFC 8785, and digests."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.core.canonical import canonical_json, digest_of, is_digest
from edgewise.errors import InputError


def test_example_of_section_3_2_2() -> None:
    value = json.loads(
        r"""{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
        }"""
    )
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical_json(value) == expected.encode()


def test_keys_are_sorted_by_utf16_as_in_section_3_2_3() -> None:
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    assert list(json.loads(canonical_json(value)).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_of_appendix_b(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json(number) == text.encode()


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        2**53,
        -(2**53),
        "\ud800",
        {"\udfff": 1},
        object(),
        [[1, {"a": math.nan}]],
    ],
)
def test_what_json_cannot_carry(value: Any) -> None:
    with pytest.raises(InputError) as caught:
        canonical_json(value)
    assert caught.value.code == "not-canonical"


def test_largest_integers() -> None:
    assert canonical_json([2**53 - 1, 1 - 2**53]) == b"[9007199254740991,-9007199254740991]"


def test_escapes() -> None:
    assert canonical_json('\b\t\n\f\r"\\/\x00\x1f\x7f\u2028') == (
        b'"\\b\\t\\n\\f\\r\\"\\\\/\\u0000\\u001f\x7f\xe2\x80\xa8"'
    )


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(1 - 2**53, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(json_values)
def test_canonical_form_means_the_same_and_is_a_fixed_point(value: Any) -> None:
    data = canonical_json(value)
    back = json.loads(data, parse_int=float)  # JSON has one kind of number
    assert back == value
    assert canonical_json(json.loads(json.dumps(value))) == data
    assert digest_of(value) == hashlib.sha256(data).hexdigest()


def test_order_of_keys_does_not_matter() -> None:
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1.0})
    assert digest_of({"a": 1}) != digest_of({"a": "1"})


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        ("0123456789abcdef" * 4, True),
        ("0123456789ABCDEF" * 4, False),
        ("0" * 63, False),
        ("0" * 65, False),
        ("g" * 64, False),
        ("", False),
        ("\u0660" * 64, False),
    ],
)
def test_is_digest(text: str, ok: bool) -> None:
    assert is_digest(text) is ok
