"""Streaming: never half a character, never part of a stop text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.run.stream import TextStream

TEXT = "naïve 漢字 👩‍👧 e\u0301 end"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


def streamed(
    data: bytes, cuts: list[int], stop: tuple[str, ...] = ()
) -> tuple[list[str], TextStream]:
    stream = TextStream(stop)
    shown = []
    for piece in pieces(data, cuts):
        shown.append(stream.push(piece))
        if stream.stopped:
            break
    shown.append(stream.finish())
    return shown, stream


@given(text=st.text(max_size=40), cuts=st.lists(st.integers(0, 500), max_size=30))
def test_any_split_gives_the_text_back(text: str, cuts: list[int]) -> None:
    shown, stream = streamed(text.encode(), cuts)
    assert "".join(shown) == text
    assert stream.replaced == ("\ufffd" in text)


@given(
    text=st.text(alphabet="abc ", max_size=40),
    stop=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 60), max_size=40),
)
def test_what_is_shown_ends_before_the_first_stop_text(text, stop, cuts) -> None:
    shown, stream = streamed(text.encode(), cuts, tuple(stop))
    result = "".join(shown)
    assert text.startswith(result)
    assert not any(s in result for s in stop)
    found = [text.find(s) for s in stop if s in text]
    assert stream.stopped == bool(found)
    if not found:
        assert result == text


def test_a_character_waits_for_its_last_byte() -> None:
    stream = TextStream()
    data = "👩".encode()
    assert [stream.push(data[i : i + 1]) for i in range(4)] == ["", "", "", "👩"]


def test_a_possible_stop_text_is_held_back() -> None:
    stream = TextStream(("END",))
    assert stream.push(b"the E") == "the "
    assert stream.push(b"N") == ""
    assert stream.push(b"d") == "ENd"
    assert stream.finish() == ""


def test_a_half_character_at_the_end_is_replaced_and_said() -> None:
    stream = TextStream()
    assert stream.push("漢".encode()[:2]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.replaced


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a\x80b", b"\xed\xa0\x80"])
def test_invalid_bytes_become_replacement_characters(data: bytes) -> None:
    stream = TextStream()
    text = stream.push(data) + stream.finish()
    assert "\ufffd" in text
    assert stream.replaced


def test_nothing_follows_a_stop() -> None:
    stream = TextStream(("x",))
    assert stream.push(b"ax") == "a"
    assert stream.push(b"more") == ""
    assert stream.finish() == ""
