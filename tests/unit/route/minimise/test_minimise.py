"""What leaves: declared fields, nothing that was found, and all of it comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.core.request import Message
from edgewise.core.tools import ToolCall
from edgewise.errors import EdgewiseError, UnsupportedError
from edgewise.route.minimise import (
    Confidence,
    Folded,
    Kind,
    Minimised,
    PlaceholderMap,
    Span,
    default_detectors,
    fold,
    minimise,
    restore,
    restore_json,
)
from edgewise.route.minimise.folding import compact
from edgewise.route.minimise.forms import Key

CONTACTS = ("Anna M\u00fcller", "Will Turner", "\u7530\u4e2d\u592a\u90ce")
DETECTORS = default_detectors(contacts=CONTACTS)


def run(text: str, kept: PlaceholderMap | None = None) -> str:
    done = minimise({"prompt": text}, ["prompt"], DETECTORS, kept or PlaceholderMap())
    out = done.fields["prompt"]
    assert isinstance(out, str)
    return out


def test_only_declared_fields_leave_and_the_others_are_named() -> None:
    done = minimise(
        {"prompt": "Hi a@x.org", "note": "b@x.org", "draft": "c@x.org"},
        ["prompt", "title"],
        DETECTORS,
        PlaceholderMap(),
    )
    assert done.fields == {"prompt": "Hi [EMAIL_1]"}
    assert (done.dropped, done.absent) == (("draft", "note"), ("title",))
    assert [(e.code, e.context) for e in done.events] == [
        ("fields-dropped", {"fields": ["draft", "note"]})
    ]
    assert done.replaced == {Kind.EMAIL: 1}


def test_what_was_replaced_is_told_without_the_value() -> None:
    done = minimise({"prompt": "Hi a@x.org"}, ["prompt"], DETECTORS, PlaceholderMap())
    (one,) = done.replacements
    assert (one.place, one.start, one.end, one.placeholder) == ("prompt", 3, 10, "[EMAIL_1]")
    assert "a@x.org" not in repr(done)


def test_what_cannot_be_guaranteed_is_said() -> None:
    done = minimise({}, [], DETECTORS, PlaceholderMap())
    said = " ".join(done.not_guaranteed)
    for words in ("not in the list of contacts", "postal addresses", "passports", "in words"):
        assert words in said


def test_the_same_identifier_has_the_same_placeholder_in_all_fields_and_turns() -> None:
    kept = PlaceholderMap()
    first = minimise({"a": "a@x.org", "b": "b@x.org, a@x.org"}, ["a", "b"], DETECTORS, kept)
    assert first.fields == {"a": "[EMAIL_1]", "b": "[EMAIL_2], [EMAIL_1]"}
    assert run("again a@x.org", kept) == "again [EMAIL_1]"


def test_a_value_known_by_a_word_beside_it_is_replaced_wherever_it_stands() -> None:
    kept = PlaceholderMap()
    done = minimise(
        {"a": "Is 123 456 782 mine?", "b": "TFN 123456782"}, ["a", "b"], DETECTORS, kept
    )
    assert "782" not in str(done.fields)
    assert run("Once more: 123.456.782", kept) == "Once more: [IDNUMBER_1_3]"


def test_a_name_of_a_field_says_what_its_value_is() -> None:
    done = minimise(
        {"password": "open sesame", "ssn": "536904399", "phone": "6502530000"},
        ["password", "ssn", "phone"],
        DETECTORS,
        PlaceholderMap(),
    )
    assert done.fields == {
        "password": "[SECRET_1]",
        "ssn": "[IDNUMBER_1]",
        "phone": "[PHONE_1]",
    }


def test_messages_and_the_arguments_of_tools() -> None:
    arguments = (
        '{"to": ["anna@x.org", {"cc": "b@x.org"}], "card": 4111111111111111,'
        ' "anna@x.org": null, "api_key": "\\u0041bcd1234efgh5678", "n": 3}'
    )
    call = ToolCall(id="call_1", name="mail", arguments=arguments)
    messages = (
        Message(role="system", content="You serve Anna M\u00fcller."),
        Message(role="user", content="Write to anna@x.org"),
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content="sent to b@x.org", tool_call_id="call_1", name="mail"),
    )
    kept = PlaceholderMap()
    done = minimise({"messages": messages}, ["messages"], DETECTORS, kept)
    out = done.fields["messages"]
    assert isinstance(out, tuple)
    assert out[0].content == "You serve [PERSON_1]."
    assert out[1].content == "Write to [EMAIL_1]"
    assert out[3].content == "sent to [EMAIL_2]"
    assert out[3].tool_call_id == "call_1"
    left = out[2].tool_calls[0].arguments
    assert json.loads(left) == {
        "to": ["[EMAIL_1]", {"cc": "[EMAIL_2]"}],
        "card": "[CARD_1]",
        "[EMAIL_1]": None,
        "api_key": "[SECRET_1]",
        "n": 3,
    }
    back, events = restore_json(left, kept)
    assert json.loads(back) == json.loads(arguments)
    assert events == ()


def test_arguments_that_are_no_json_are_text() -> None:
    call = ToolCall(id="c", name="f", arguments='{"to": "a@x.org"')
    message = Message(role="assistant", content="", tool_calls=(call,))
    done = minimise({"m": [message]}, ["m"], DETECTORS, PlaceholderMap())
    assert done.fields["m"][0].tool_calls[0].arguments == '{"to": "[EMAIL_1]"'


def test_a_users_own_text_that_reads_as_a_placeholder_comes_back_as_it_was() -> None:
    kept = PlaceholderMap()
    text = "What is [EMAIL_1] in a@x.org? EMAIL_2, [email_3]"
    out = run(text, kept)
    assert "[EMAIL_4]" in out  # the numbers of the text are not given
    assert restore(out, kept) == text
    # Given before the user writes it: then it is replaced itself.
    later = "and [EMAIL_4], [ email 4 ], EMAIL_4?"
    done = minimise({"p": later}, ["p"], DETECTORS, kept)
    assert "EMAIL" not in str(done.fields["p"])
    assert restore(str(done.fields["p"]), kept) == later
    assert [e.code for e in done.events] == ["placeholder-lookalike"]


def test_a_link_of_the_users_comes_back() -> None:
    kept = PlaceholderMap()
    text = "open https://x.example/u/a@x.org/edit"
    out = run(text, kept)
    assert out == "open https://x.example/u/[EMAIL_1]/edit"
    assert restore(out, kept) == text
    assert restore("(https://x.example/u/[EMAIL_1])", kept) == "(https://x.example/u/a@x.org)"
    assert restore("https://evil.example/u/[EMAIL_1]", kept) == "https://evil.example/u/[EMAIL_1]"
    twice = "https://evil.example/?https://x.example/u/[EMAIL_1]"
    assert restore(twice, kept) == twice


@pytest.mark.parametrize("value", [3, None, ["text"], {"role": "user"}])
def test_what_is_neither_text_nor_messages_is_refused(value: object) -> None:
    with pytest.raises(EdgewiseError, match="minimise-field-invalid"):
        minimise({"p": value}, ["p"], DETECTORS, PlaceholderMap())  # type: ignore[dict-item]


class Greedy:
    """Finds the last letter of whatever is left."""

    name = "greedy"
    kinds = (Kind.TEXT,)
    limits = ""

    def find(self, text: Folded) -> Iterator[Span]:
        yield text.span(
            len(text.text) - 1,
            len(text.text),
            Kind.PERSON,
            confidence=Confidence.POSSIBLE,
            checked_by="t",
        )


class Part:
    """Finds one word, whatever stands around it."""

    name = "part"
    kinds = (Kind.PERSON,)
    limits = ""

    def __init__(self, word: str) -> None:
        self._word = word

    def find(self, text: Folded) -> Iterator[Span]:
        at = text.text.find(self._word)
        if at >= 0:
            yield text.span(
                at,
                at + len(self._word),
                Kind.PERSON,
                confidence=Confidence.POSSIBLE,
                checked_by="t",
            )


def test_a_detector_without_end_is_refused_and_nothing_leaves() -> None:
    with pytest.raises(EdgewiseError, match="minimise-unsettled"):
        minimise({"p": "abcdefghijklmnop"}, ["p"], [Greedy()], PlaceholderMap())


def test_what_would_not_come_back_is_refused() -> None:
    kept = PlaceholderMap()
    run("a@x.org", kept)
    with pytest.raises(EdgewiseError, match="minimise-ambiguous"):
        minimise({"p": "EMAIL_1Zed"}, ["p"], [Part("Zed")], kept)


def test_a_missing_library_is_an_error_and_no_quiet_absence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for library in ("phonenumbers", "stdnum.luhn"):
        with monkeypatch.context() as patch:
            patch.setitem(__import__("sys").modules, library, None)
            with pytest.raises(UnsupportedError, match="minimise-library-missing") as caught:
                default_detectors()
            assert "edgewise[minimise]" in str(caught.value.hint)


@pytest.mark.parametrize("region", ["XX", "de"])
def test_an_unknown_region_is_refused(region: str) -> None:
    with pytest.raises(EdgewiseError, match="minimise-region-unknown"):
        default_detectors(regions=(region,))


def test_contacts_without_bound_are_refused() -> None:
    with pytest.raises(EdgewiseError, match="contacts-invalid"):
        default_detectors(contacts=["x" * 201])


# Texts of identifiers, what is nearly one, what reads as a placeholder, and noise between.
PIECES = st.sampled_from(
    [
        "anna@x.org", "ANNA@X.ORG", "a@b.cc@d.ee", "4111 1111 1111 1111", "4111\u200b111111111111",
        "DE89 3704 0044 0532 0130 00", "+49 30 1234567", "030/1234567", "SSN 536-90-4399",
        "536904399", "Anna M\u00fcller", "Annas", "MUELLER", "Will", "\u7530\u4e2d\u592a\u90ce\u3055\u3093",
        "password: hunter2", "hunter2", "192.0.2.1", "2001:db8::1:2", "00:1B:44:11:3A:B7",
        "https://u:p@x.example/y", "https://x.example/a@x.org", "[EMAIL_1]", "EMAIL_1",
        "[person_1]", "[PERSON_1", "\\", "\\\\", "[", "]", "_", "1", "s", " ", " ", " ", "\n", ".",
        "-", "*", "<", ">", "//", "\u200d", "\uff20", "e\u0301", "\u3010", "\u3011", '"', "x", "TEXT_1",
        "-----BEGIN PRIVATE KEY-----", "AKIAABCDEFGHIJKLMNOP", "=", ":", ",", "token=a1b2c3d4e5f6g7",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=14).map("".join)


def assert_gone(out: str, values: tuple[tuple[Key, str, str], ...]) -> None:
    """Assert that no value is left, as it was, folded, or with other separators."""
    plain, places = "", []
    for place, character in enumerate(fold(out).text):
        part = compact(character)
        plain += part
        places += [place] * len(part)
    text = fold(out).text
    for (kind, _, _), value, _ in values:
        needle = compact(fold(value).text)
        if kind in {Kind.TEXT, Kind.PERSON} or len(needle) < 4:
            continue
        at = plain.find(needle)
        while at >= 0:
            first, last = places[at], places[at + len(needle) - 1]
            inside = any(
                0 <= beside < len(text)
                and (text[beside].isdigit() or (text[beside].isalpha() and not ends_alone))
                for beside, ends_alone in (
                    (first - 1, text[first].isdigit() and len(needle) >= 7),
                    (last + 1, text[last].isdigit() and len(needle) >= 7),
                )
            )
            strewn = last - first + 1 > 2 * len(needle) + 8
            secret = kind is Kind.SECRET and text[first : last + 1].casefold() != value.casefold()
            assert inside or strewn or secret, (kind, value, out)
            at = plain.find(needle, at + 1)


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_nothing_found_is_left_and_everything_comes_back(turns: list[str]) -> None:
    kept = PlaceholderMap()
    for turn in turns:
        try:
            out = run(turn, kept)
        except EdgewiseError as error:
            if error.code != "minimise-ambiguous":
                raise
            continue
        assert restore(out, kept) == turn
        assert_gone(out, kept.known())


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(), st.lists(TEXTS, max_size=2))))
def test_json_arguments_stay_valid_and_come_back(value: dict[str, object]) -> None:
    kept = PlaceholderMap()
    call = ToolCall(id="c", name="f", arguments=json.dumps(value))
    message = Message(role="assistant", content="", tool_calls=(call,))
    try:
        done: Minimised = minimise({"m": [message]}, ["m"], DETECTORS, kept)
    except EdgewiseError as error:
        if error.code != "minimise-ambiguous":
            raise
        return
    out = done.fields["m"][0].tool_calls[0].arguments
    json.loads(out)
    assert json.loads(restore_json(out, kept)[0]) == value
