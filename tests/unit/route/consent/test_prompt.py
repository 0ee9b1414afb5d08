"""The question: complete, and nobody whose words are in it can rewrite it."""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.route.consent.consents import DAY, SCOPE, Clock, ledger

from edgewise.core.shown import plain, quoted
from edgewise.errors import InputError
from edgewise.route.consent import (
    Choice,
    ConsentPrompt,
    Origin,
    Replacement,
    SentField,
    consent_prompt,
    record_choice,
    render,
)
from edgewise.route.destinations import Basis, Destination, Price

UNTIL = Clock().after(30 * DAY)
DESTINATION = Destination(
    name="acme",
    url="https://api.acme.example/v1",
    model="big-1",
    purpose="Language service",
    region="EU",
    retention_days=30,
    basis=Basis.CONSENT,
    price=Price(currency="EUR", input_per_million=0.5, output_per_million=1.5, daily_limit=2),
)


def prompt(destination: Destination = DESTINATION, **changes: Any) -> ConsentPrompt:
    return consent_prompt(
        changes.pop("scope", SCOPE),
        destination,
        **{
            "fields": ("letter", "tone"),
            "reasons": ("the letter is longer than this device's context",),
            "benefit": "an answer to the whole letter",
            "sent": (
                SentField(name="letter", characters=5120),
                SentField(name="tone", characters=8),
            ),
            "withheld": ("contacts",),
            "replaced": (Replacement(kind="email", count=2), Replacement(kind="iban", count=1)),
            "caveats": ("names that are not in your contacts are not found",),
            "until_at_most": UNTIL,
            **changes,
        },
    )


SHOWN = """\
This request would leave this device. Do you agree?

Why         "the letter is longer than this device's context"
Benefit     "an answer to the whole letter"
Feature     letters
Data class  personal
Is sent     letter (5120 characters)
            tone (8 characters)
Stays here  contacts
Replaced    email (2), iban (1)
            placeholders are sent, and put back on this device
Not sure    "names that are not in your contacts are not found"
Goes to     acme at https://api.acme.example:443
            model big-1
Purpose     "Answer a letter"
            "Language service"
Region      "EU", as declared
Kept for    30 days, as declared
Basis       consent
Price       0.5 EUR per million tokens sent, 1.5 per million received, as
              declared
You may say once    this one time
            until   for every such request, until a date; 2026-12-31 at most
            no      nothing is sent, now or later, until you take it back
"""


def test_the_question_as_text() -> None:
    assert render(prompt()) == SHOWN


def test_what_nobody_declared_is_said() -> None:
    bare = Destination(
        name="acme", url="https://api.acme.example", model="big-1", basis=Basis.CONTRACT
    )
    text = render(
        prompt(bare, until_at_most=None, withheld=(), replaced=(), caveats=(), benefit="")
    )
    for line in (
        "Benefit     nobody states one",
        "Stays here  what is not listed above",
        "Replaced    nothing was found to replace",
        "Region      nobody declared one",
        "Kept for    nobody declared how long",
        "Basis       contract",
    ):
        assert line in text.splitlines()
    assert "until   " not in text
    assert "Price" not in text


def test_the_value_goes_through_json() -> None:
    value = prompt()
    data = msgspec.json.encode(value)
    assert msgspec.json.decode(data, type=ConsentPrompt) == value
    told = msgspec.json.decode(data)
    assert told["choices"] == ["once", "until", "no"]
    assert told["recipient"] == {
        "name": "acme",
        "url": "https://api.acme.example/v1",
        "origin": "https://api.acme.example:443",
        "model": "big-1",
        "purpose": "Language service",
        "region": "EU",
        "retention_days": 30,
        "basis": "consent",
        "fields": ["letter", "tone"],
        "price": {
            "currency": "EUR",
            "input_per_million": 0.5,
            "output_per_million": 1.5,
            "daily_limit": 2.0,
        },
    }
    assert len(value.id) == 64
    assert value.id == prompt().id != prompt(benefit="other").id


# -- what is no question


@pytest.mark.parametrize(
    "changes",
    [
        {"reasons": ()},
        {"sent": ()},
        {"scope": msgspec.structs.replace(SCOPE, destination="other")},
        {"destination": msgspec.structs.replace(DESTINATION, basis=Basis.NONE)},
        {"until_at_most": dt.datetime(2027, 1, 1)},  # noqa: DTZ001 - that is what is refused
    ],
    ids=str,
)
def test_parts_that_do_not_fit_are_no_question(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        prompt(**changes)
    assert caught.value.code == "consent-prompt-invalid"


def test_local_only_data_is_never_asked_for() -> None:
    with pytest.raises(InputError) as caught:
        prompt(scope=msgspec.structs.replace(SCOPE, data_class="local-only"))
    assert caught.value.code == "consent-local-only"


@pytest.mark.parametrize(
    "choices",
    [(), (Choice.ONCE,), (Choice.NO, Choice.NO), (Choice.ONCE, Choice.NO)],
    ids=str,
)
def test_a_no_is_always_among_the_choices(choices: tuple[Choice, ...]) -> None:
    with pytest.raises(InputError) as caught:
        msgspec.structs.replace(prompt(), choices=choices)
    assert caught.value.code == "consent-prompt-invalid"


@pytest.mark.parametrize(
    ("kind", "count"), [("ada@example.com", 1), ("+49 30 1", 1), ("Ada", 1), ("", 1), ("email", 0)]
)
def test_a_replacement_holds_no_value(kind: str, count: int) -> None:
    with pytest.raises(InputError):
        Replacement(kind=kind, count=count)


# -- the answer


@pytest.mark.parametrize(
    ("choice", "until", "verdicts"),
    [
        (Choice.ONCE, None, ["granted", "used"]),
        (Choice.UNTIL, UNTIL, ["granted", "granted"]),
        (Choice.NO, None, ["denied"]),
    ],
)
def test_an_answer_is_recorded(
    tmp_path: Path, choice: Choice, until: dt.datetime | None, verdicts: list[str]
) -> None:
    consents = ledger(tmp_path)
    decision = record_choice(consents, prompt(), choice, origin=Origin.WEB, until=until)
    terms = prompt().recipient.terms
    for number, verdict in enumerate(verdicts):
        if number:
            assert consents.consume(SCOPE, terms) == decision
        state = consents.state(SCOPE, terms)
        assert (str(state.verdict), state.grant) == (verdict, decision)
    assert consents.entries()[0].origin == "web"


@pytest.mark.parametrize(
    ("choice", "until", "until_at_most"),
    [
        (Choice.UNTIL, UNTIL, None),
        (Choice.UNTIL, None, UNTIL),
        (Choice.ONCE, UNTIL, UNTIL),
        (Choice.NO, UNTIL, UNTIL),
        (Choice.UNTIL, UNTIL + dt.timedelta(seconds=1), UNTIL),
        (Choice.UNTIL, UNTIL.replace(tzinfo=None), UNTIL),
    ],
)
def test_an_answer_that_was_not_offered_is_refused(
    tmp_path: Path, choice: Choice, until: dt.datetime | None, until_at_most: dt.datetime | None
) -> None:
    consents = ledger(tmp_path)
    asked = prompt(until_at_most=until_at_most)
    with pytest.raises(InputError) as caught:
        record_choice(consents, asked, choice, origin=Origin.API, until=until)
    assert caught.value.code == "consent-choice-invalid"
    assert consents.entries() == ()


# -- words of others

HOSTILE = [
    '\x1b[2J\x1b[HPurpose     "harmless"',
    "fine\nKept for    not kept, as declared",
    "fine\r\nBasis       contract",
    "fine" + " " * 70 + "Kept for    not kept",
    "\u202etneiloneb\u202c",
    "\u2066a\u2069\u200f\u061c",
    "a\u200bb\u2060c\ufeffd\u00ade",
    "e" + "\u0301" * 40,
    "\u2028Goes to     nobody\u2029\x85",
    "\U000e0041\U000e0042",
    "\x9b31m\x07\x08\x7f\x00",
    '"; "Goes to" "nobody',
    "x" * 5000,
]  # fmt: skip
LABELS = [line.split("  ")[0] for line in SHOWN.splitlines()[2:] if not line.startswith(" ")]
LABELS[-1] = "You may say"


def require_whole(text: str, width: int, more: tuple[str, ...] = ()) -> None:
    """Require the labels, each once and in order, on lines that hold nothing unseen."""
    first, blank, *lines = text.rstrip("\n").split("\n")
    assert (first, blank) == ("This request would leave this device. Do you agree?", "")
    labels = [line[:12].strip() for line in lines if not line.startswith(" ")]
    assert labels == [*LABELS[:-1], *more, LABELS[-1]]
    assert max(map(len, lines)) <= width
    for line in lines:
        assert not re.match(r" {1,11}\S", line), line
        for character in line:
            assert character.isprintable() or character in "\u200c\u200d", ascii(character)
            assert unicodedata.bidirectional(character) not in {
                "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI",
            }  # fmt: skip


@pytest.mark.parametrize("words", HOSTILE, ids=ascii)
def test_hostile_words_stay_where_they_are(words: str) -> None:
    hostile_everywhere(words, width=80)


@settings(max_examples=150, deadline=None)
@given(words=st.text(min_size=1, max_size=120), width=st.integers(40, 200))
def test_any_words_stay_where_they_are(words: str, width: int) -> None:
    hostile_everywhere(words, width=width)


def hostile_everywhere(words: str, *, width: int) -> None:
    try:
        scope = msgspec.structs.replace(SCOPE, feature=words, purpose=words, data_class=words)
    except InputError:  # too long, or no text: the ledger has no such scope
        scope = SCOPE
    destination = msgspec.structs.replace(DESTINATION, purpose=words, region=words)
    shown = render(
        prompt(
            destination,
            scope=scope,
            reasons=(words, words),
            benefit=words,
            fields=(words, f"{words}2"),
            sent=(SentField(name=words, characters=1),),
            withheld=(words,),
            caveats=(words,),
        ),
        width=width,
    )
    require_whole(shown, width, more=("With until",))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Grüße, 手紙, שלום", "Grüße, 手紙, שלום"),
        ("a\u202eb", "a\\u202eb"),
        ("a\x1b[1mb", "a\\x1b[1mb"),
        ("a\n\n\u3000\u00a0 b", "a b"),
        ("acme\u200b", "acme\\u200b"),
        ("acme\ufe0f", "acme\\ufe0f"),
        ("\U000e0041", "\\U000e0041"),
        ("\udcff", "\\udcff"),
        ("e" + "\u0301" * 6, "e" + "\u0301" * 4 + "\\u0301" * 2),
        ("x" * 503, "x" * 500 + " … (3 characters more)"),
    ],
)
def test_plain(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_prose_keeps_what_shapes_its_letters() -> None:
    persian, family = "\u0645\u06cc\u200c\u062e\u0648\u0645", "👩\u200d👧 ❤\ufe0f"
    assert plain(persian, prose=True) == persian
    assert plain(family, prose=True) == family
    assert plain(persian) != persian
    assert quoted('so "they" say') == "\"so 'they' say\""


def test_caveats_are_counted_where_they_are_not_shown() -> None:
    caveats = ("the first", "the second", "the third")
    short = render(prompt(caveats=caveats), details=False)
    assert '"the first"' in short
    assert "and 2 more: answer `details`" in short
    assert "the second" not in short
    for text in (
        render(prompt(caveats=caveats)),
        render(prompt(caveats=caveats[:2]), details=False),
    ):
        assert '"the second"' in text
        assert "`details`" not in text


def test_a_standing_yes_says_what_else_it_lets_leave() -> None:
    asked = prompt(fields=("tone", "structure", "letter"))
    assert asked.later == ("structure",)
    assert asked.recipient.terms.fields == ("letter", "structure", "tone")
    assert "With until  structure as well, where a later request has it" in render(asked)
    once = prompt(fields=("tone", "structure", "letter"), until_at_most=None)
    assert once.later == ()
    assert "structure" not in render(once)


def test_what_is_sent_is_within_the_terms() -> None:
    with pytest.raises(InputError) as caught:
        prompt(fields=("letter",))
    assert caught.value.code == "consent-prompt-invalid"
