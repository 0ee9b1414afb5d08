"""Patterns of ECMA-262 in the grammar library's dialect."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.run.structure.ecma import translated
from edgewise.run.structure.library import GrammarError
from edgewise.run.structure.patterns import matches_pattern


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^\w$", ["a", "_"], ["é", "-"]),
        (r"^\W$", ["é", "-"], ["a"]),
        (r"^\D$", ["a", "٢"], ["2"]),
        (r"^\S$", ["a", "\x85"], ["\ufeff", "\u3000", " "]),
        (r"^[\S]$", ["a"], ["\ufeff"]),
        (r"^[^\s]$", ["a"], ["\ufeff", " "]),
        (r"^[\w-]+$", ["a-b"], ["a b"]),
        (r"^[a\-z]$", ["-", "a", "z"], ["b"]),
        (r"^[[a]$", ["[", "a"], ["b"]),
        (r"^[a&&b]$", ["a", "&", "b"], ["c"]),
        (r"^[^]$", ["\n", "a"], ["", "ab"]),
        (r"^[\b]$", ["\x08"], ["b"]),
        (r"^\cA\x41\u0041\u{1F600}\uD83D\uDE00$", ["\x01AA😀😀"], []),
        (r"^\0$", ["\x00"], ["0"]),
        (r"^a+?b??$", ["aab", "a"], ["b"]),
        (r"^(?<year>\d{4})-(?:\d{2})$", ["2024-02"], ["24-02"]),
        (r"^\p{L}+$", ["aé"], ["1"]),
        (r"^a/b#c d$", ["a/b#c d"], ["ab"]),
        (r"^\$\{\}\/\.$", ["${}/."], ["$"]),
        ("b", ["abc"], ["ac"]),
        ("", ["", "x"], []),
        ("^$", [""], ["\n"]),
        ("^é|ö$", ["éa", "aö"], ["aéa"]),
    ],
)
def test_a_pattern_means_what_ecma_says(pattern: str, right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert matches_pattern(pattern, text), text
    for text in wrong:
        assert not matches_pattern(pattern, text), text


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)",
        "(?<!a)",
        r"\bx",
        r"\Bx",
        r"(a)\1",
        r"\k<x>",
        "(?P<x>a)",
        "(?i)a",
        r"\a",
        r"\Z",
        r"\ud800",
        r"\ud800a",
        r"\u{110000}",
        "[z-a]",
        "[+--]x[a--b]",
        r"[\d-z]",
        "[a",
        "a\\",
    ],
)
def test_what_has_no_counterpart_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError):
        translated(pattern)


ATOMS = st.sampled_from(
    ["a", "b", "[ab]", "[^a]", r"\d", "(?:a|b)", "(a)", ".", "é", r"\.", "[0-9b]", "a|b", "()"]
)
COUNTS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "*?", "{0,1}?"])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(ATOMS, COUNTS), max_size=4),
    st.booleans(),
    st.booleans(),
    st.text("ab1é.", max_size=5),
)
def test_where_the_dialects_agree_so_do_the_engines(
    parts: list[tuple[str, str]], start: bool, end: bool, text: str
) -> None:
    pattern = "^" * start + "".join(a + c for a, c in parts if a != "a|b" or not c) + "$" * end
    assert matches_pattern(pattern, text) == bool(re.search(pattern, text))
