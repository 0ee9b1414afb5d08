r"""Identifiers in text that is written with escapes: of JSON, of URLs, of HTML."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.request import Message
from edgewise.route.minimise import (
    Kind,
    PlaceholderMap,
    default_detectors,
    minimise,
    restore,
    restore_json,
)
from edgewise.route.minimise.escapes import unescaped
from edgewise.route.minimise.folding import readings

DETECTORS = default_detectors(contacts=["Anna M\u00fcller", "Grace Hopper", "Will Turner"])
VALUES = {
    "4111111111111111": Kind.CARD,
    "DE89370400440532013000": Kind.IBAN,
    "93.184.216.34": Kind.IP,
    "00:1b:44:11:3a:b7": Kind.MAC,
    "+49 30 901820": Kind.PHONE,
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789": Kind.SECRET,
    "AKIAIOSFODNN7EXAMPLE": Kind.SECRET,
    "tom@corp.example.org": Kind.EMAIL,
    "Anna M\u00fcller": Kind.PERSON,
}


def run(text: str) -> tuple[str, dict[Kind, int], PlaceholderMap]:
    kept = PlaceholderMap()
    done = minimise(
        {"messages": (Message(role="tool", content=text),)}, ["messages"], DETECTORS, kept
    )
    message = done.fields["messages"][0]
    assert isinstance(message, Message)
    return message.content, done.replaced, kept


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("before", ["x\n", "x\t", "x\r\n", 'x"', "\u00e9 "])
def test_a_result_in_json_hides_nothing(value: str, ascii_only: bool, before: str) -> None:
    source = json.dumps({"t": f"{before}{value}\ny"}, ensure_ascii=ascii_only)
    out, replaced, kept = run(source)
    told = json.loads(out)["t"]
    assert replaced == {VALUES[value]: 1}
    assert told.startswith(before)
    assert told.endswith("]\ny")
    back, _ = restore_json(out, kept)
    assert json.loads(back) == json.loads(source)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("before", ["\\n", "\\t", "\\r\\n", '\\"', "\\\\n", "%0A", "&#10;"])
def test_a_piece_of_json_or_of_a_link_hides_nothing(value: str, before: str) -> None:
    source = f'see {{"t": "x{before}{value}'
    out, replaced, kept = run(source)
    assert replaced == {VALUES[value]: 1}
    assert value not in out
    assert restore(out, kept) == source


@pytest.mark.parametrize(
    "written",
    [
        "tom\\u0040corp.example.org",
        "tom\\\\u0040corp.example.org",
        "tom\\x40corp.example.org",
        "tom%40corp.example.org",
        "tom%2540corp.example.org",
        "tom&#64;corp.example.org",
        "tom&#x40;corp.example.org",
        "tom&commat;corp.example.org",
        "\\u002b49 30 901820",
        "%2B49%2030%20901820",
        "M\\u00fcller",
        "Mu\\u0308ller",
        "M%C3%BCller",
        "M%FCller",
        "M&uuml;ller",
        "\\u0047race",
        "\\ud835\\udc06race",
        "\x1b[1mAnna\x1b[0m",
        "4111%201111%201111%201111",
        "\\u0034111 1111 1111 1111",
        "\u0410nn\u0430",
        "A\u0336n\u0336n\u0336a\u0336",
        "4\ufe0f\u20e3" + "1\ufe0f\u20e3" * 15,
    ],
)
def test_a_character_that_is_escaped_is_read(written: str) -> None:
    source = f"It says {written} here"
    out, replaced, kept = run(source)
    assert sum(replaced.values()) == 1
    assert out.startswith("It says ")
    assert out.endswith(" here")
    assert restore(out, kept) == source


def test_a_folder_is_not_taken_for_a_line_end() -> None:
    out, replaced, _ = run("in C:\\users\\turner\\notes")
    assert (out, replaced) == ("in C:\\users[PERSON_1]\\notes", {Kind.PERSON: 1})


def test_numbers_and_keys_in_a_result_are_read_and_it_stays_json() -> None:
    out, _, kept = run('{"card": 4111111111111111, "tom@corp.example.org": 1, "who": "Will"}')
    assert json.loads(out) == {"card": "[CARD_1]", "[EMAIL_1]": 1, "who": "[PERSON_1]"}
    assert json.loads(restore_json(out, kept)[0]) == {
        "card": 4111111111111111,
        "tom@corp.example.org": 1,
        "who": "Will",
    }


def test_a_word_that_is_a_whole_value_is_a_name_and_no_sentence() -> None:
    out, _, _ = run('{"names": ["Bob", "Will"], "db_admin_password": "hunter", "text": "Will it?"}')
    assert json.loads(out) == {
        "names": ["Bob", "[PERSON_1]"],
        "db_admin_password": "[SECRET_1]",
        "text": "Will it?",
    }


@pytest.mark.parametrize(
    "source", ["", "a", "50% off", "a&b;c", "\\q", "\\ud800", "&#xD800;", "%4"]
)
def test_what_stands_for_nothing_is_no_escape(source: str) -> None:
    assert unescaped(source) is None


PIECES = st.sampled_from(
    ["\\", "n", "u00", "40", "u", "\\u0041", "\\ud83d", "\\ude00", "%", "4", "%C3", "%BC", "&", "#",
     "64", ";", "amp;", "&amp;", "\u00fc", "\u0308", "a", " ", "@", "x.org", "Anna"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=20).map("".join))
def test_every_reading_leads_back_into_the_source(source: str) -> None:
    for folded in readings(source):
        last = 0
        for place in range(len(folded.text)):
            start, end = folded.source_range(place, place + 1)
            assert last <= start < end <= len(source)
            last = start


@given(st.lists(PIECES, max_size=20).map("".join))
def test_what_has_escapes_comes_back(source: str) -> None:
    out, _, kept = run(source)
    assert restore(out, kept) == source
