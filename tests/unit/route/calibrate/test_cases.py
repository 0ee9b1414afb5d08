"""Cases are read whole or refused by line; the split is fixed, fair and blind."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.route.calibrate.made import made_cases

from edgewise.errors import InputError
from edgewise.route.calibrate import parse_cases, read_lines
from edgewise.route.calibrate.cases import split

GOOD = {"id": "a", "signals": {"entropy_mean": 0.5, "check_sources": True}, "correct": True}


def lines(*objects) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in objects)


def test_cases_are_read() -> None:
    data = (
        b"\xef\xbb\xbf" + lines(GOOD) + b"\r\n" + lines({**GOOD, "id": "b", "slices": {"k": "v"}})
    )
    one, other = parse_cases(read_lines(data))
    assert one.signals == {"entropy_mean": 0.5, "check_sources": True}
    assert other.slices == {"k": "v"}


@pytest.mark.parametrize(
    ("bad", "code", "word"),
    [
        (b"{", "case-malformed", "line 3"),
        (b"[1]", "case-malformed", "no JSON object"),
        (b'"text"', "case-malformed", "line 3"),
        (b'{"id": "x"}', "case-malformed", "signals"),
        (b'{"id": "x", "signals": {"u": 1}, "correct": 1}', "case-malformed", "correct"),
        (b'{"id": "x", "signals": {"u": 1}, "correct": "yes"}', "case-malformed", "correct"),
        (b'{"id": "x", "signals": {"u": "1"}, "correct": true}', "case-signal-invalid", "'u'"),
        (b'{"id": "x", "signals": {"u": null}, "correct": true}', "case-signal-invalid", "'u'"),
        (b'{"id": "x", "signals": {"u": NaN}, "correct": true}', "case-signal-invalid", "NaN"),
        (b'{"id": "x", "signals": {"u": Infinity}, "correct": true}', "case-signal-invalid", "Inf"),
        (b'{"id": "x", "signals": {"u": 1e999}, "correct": true}', "case-signal-invalid", "1e999"),
        (b'{"id": "x", "signals": {}, "correct": true}', "case-signal-invalid", "no signals"),
        (b'{"id": "", "signals": {"u": 1}, "correct": true}', "case-malformed", "id is empty"),
        (b'{"id": "x", "signals": {"u": 1, "u": 2}, "correct": true}', "case-malformed", "twice"),
        (
            b'{"id": "x", "signals": {"u": 1}, "correct": true, "prompt": "Hi"}',
            "case-malformed",
            "prompt",
        ),
        (b'{"id": "x", "signals": {"u": 1}, "correct": true}{}', "case-malformed", "line 3"),
        (b'{"id": "\\ud800", "signals": {"u": 1}, "correct": true}', "case-malformed", "surrogate"),
        (
            b'{"id": "x", "signals": {"u": 1}, "correct": true, "slices": {"task": "all"}}',
            "case-malformed",
            "'task' is 'all'",
        ),
        (b"[" * 100_000, "case-malformed", "line 3"),
        (b'{"id": "\xff"}', "cases-unreadable", "line 3"),
        (json.dumps(GOOD).encode(), "case-duplicate", "lines 1 and 3"),
    ],
)
def test_a_line_that_is_no_case_is_named(bad: bytes, code: str, word: str) -> None:
    data = lines(GOOD, {**GOOD, "id": "b"}) + bad + b"\n" + lines({**GOOD, "id": "c"})
    with pytest.raises(InputError) as caught:
        parse_cases(read_lines(data))
    assert caught.value.code == code
    assert word in caught.value.message
    assert caught.value.hint
    assert caught.value.context["line"] == 3


@pytest.mark.parametrize("data", [b"", b"\n \r\n"])
def test_no_cases(data: bytes) -> None:
    with pytest.raises(InputError) as caught:
        read_lines(data)
    assert caught.value.code == "cases-empty"


def test_a_unicode_line_separator_in_a_text_ends_no_line() -> None:
    data = json.dumps({**GOOD, "id": "a\u2028b\x85c"}, ensure_ascii=False).encode()
    assert len(read_lines(data).objects) == 1


@pytest.mark.parametrize("field", ["fingerprint", "prompt_sha256"])
def test_cases_of_several_deployments_are_not_mixed(field: str) -> None:
    data = lines({**GOOD, field: "x"}, {**GOOD, "id": "b"})
    with pytest.raises(InputError) as caught:
        parse_cases(read_lines(data))
    assert caught.value.code == "cases-mixed"


@given(n=st.integers(1, 60), share=st.floats(0.1, 0.9), seed=st.integers(0, 2**40))
def test_the_split_is_whole_and_depends_on_ids_alone(n: int, share: float, seed: int) -> None:
    cases = made_cases(n, 1)
    fit, rest = split(cases, fit_share=share, seed=seed, key=None)
    assert sorted(c.id for c in (*fit, *rest)) == sorted(c.id for c in cases)
    assert len(fit) == round(n * share)
    assert split(tuple(reversed(cases)), fit_share=share, seed=seed, key=None) == (fit, rest)


def test_each_slice_is_split_by_itself() -> None:
    few = made_cases(10, 1, slices={"k": "few"})
    many = made_cases(100, 2, slices={"k": "many"})
    without = made_cases(4, 3)
    fit, rest = split((*few, *many, *without), fit_share=0.5, seed=0, key="k")
    assert [sum(c.slices.get("k") == name for c in fit) for name in ("few", "many", None)] == [
        5,
        50,
        2,
    ]
    assert len(rest) == 57
