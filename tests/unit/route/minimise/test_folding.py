"""The folded text and the way back from it."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import InputError
from edgewise.route.minimise import Confidence, Kind, Span, fold, resolve
from edgewise.route.minimise.folding import compact

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(ANY_TEXT)
def test_every_place_leads_back_into_the_source(text: str) -> None:
    folded = fold(text)
    assert len(folded.latin) == len(folded.text)
    last = 0
    for place in range(len(folded.text)):
        start, end = folded.source_range(place, place + 1)
        assert last <= start < end <= len(text)
        last = start
        if folded.text[place].isascii() and text[start:end] == folded.text[place]:
            assert end == start + 1


@given(st.text(st.characters(codec="ascii"), max_size=60))
def test_ascii_is_as_it_was(text: str) -> None:
    assert fold(text).text == text


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("\uff41\uff20\uff42\uff0e\uff43", "a@b.c"),
        ("jo\u200bhn\u2060@\ufeffx.com", "john@x.com"),
        ("\u0664\u0662", "42"),
        ("\u0967\u0968", "12"),
        ("1\u20112\u20133\u22124", "1-2-3-4"),
        ("1\u00a02\u202f3", "1 2 3"),
        ("e\u0301", "\u00e9"),
        ("a\u00adb", "ab"),
        ("x\ufe0fy\U000e0100z", "xyz"),
        ("4\ufe0f\u20e31\ufe0f\u20e3", "41"),
        ("A\u0336n\u0335n\u0337a\u0338", "Anna"),
        ("41\u280011", "41 11"),
    ],
)
def test_what_is_folded(written: str, plain: str) -> None:
    assert fold(written).text == plain


def test_lookalikes_of_other_alphabets_are_latin_letter_for_letter() -> None:
    assert fold("D\u0415 \u0410\u0392").latin == "DE AB"


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InputError, match="text-not-utf8"):
        fold("a\ud800")


def test_an_invisible_character_inside_is_part_of_the_span() -> None:
    text = "x 1\u200b2 y"
    folded = fold(text)
    start = folded.text.index("12")
    span = folded.span(start, start + 2, Kind.CARD, confidence=Confidence.CERTAIN, checked_by="t")
    assert text[span.start : span.end] == "1\u200b2"
    assert span.identity == "12"


def test_a_mountain_of_marks_takes_linear_time() -> None:
    marks = "".join(chr(c) for c in range(0x300, 0x34E) if unicodedata.combining(chr(c)))
    assert fold("a" + marks * 2000).text


def test_compact_is_equal_for_equal_ones() -> None:
    assert compact("4111-1111 1111.1111") == compact("4111111111111111")


def span(start: int, end: int, kind: Kind = Kind.EMAIL) -> Span:
    return Span(
        start=start,
        end=end,
        kind=kind,
        confidence=Confidence.LIKELY,
        checked_by="t",
        identity=f"{start}-{end}",
    )


def test_the_longest_wins_then_the_declared_order() -> None:
    assert resolve([span(2, 4), span(0, 9, Kind.URL)]) == (span(0, 9, Kind.URL),)
    assert resolve([span(0, 4, Kind.PERSON), span(0, 4, Kind.SECRET)]) == (span(0, 4, Kind.SECRET),)
    assert resolve([span(0, 4), span(4, 8)]) == (span(0, 4), span(4, 8))


def test_spans_that_overlap_in_part_are_joined() -> None:
    (joined,) = resolve([span(0, 5, Kind.PHONE), span(3, 12, Kind.CARD)])
    assert (joined.start, joined.end, joined.kind, joined.identity) == (0, 12, Kind.CARD, "")


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=12))
def test_resolved_spans_cover_all_and_do_not_overlap(pairs: list[tuple[int, int]]) -> None:
    spans = [span(start, start + size) for start, size in pairs]
    found = resolve(spans)
    assert {p for s in found for p in range(s.start, s.end)} == {
        p for s in spans for p in range(s.start, s.end)
    }
    assert all(a.end <= b.start for a, b in pairwise(found))


def test_a_span_does_not_show_its_value() -> None:
    assert "0-4" not in repr(span(0, 4))
