"""Each detector, on what it must find and on what looks like it."""

from __future__ import annotations

import re
from importlib import import_module, resources

import pytest

from edgewise.route.minimise import Detector, Kind, default_detectors, fold
from edgewise.route.minimise.credentials import names_secret
from edgewise.route.minimise.identifiers import IDENTIFIERS
from edgewise.route.minimise.names import Names
from edgewise.route.minimise.national import NationalIds
from edgewise.route.minimise.numbers import IBAN_LENGTHS
from edgewise.route.minimise.phones import Phones

ALL = {d.name: d for d in default_detectors()}


def found(detector: Detector, text: str) -> list[str]:
    return [text[s.start : s.end] for s in detector.find(fold(text))]


@pytest.mark.parametrize("detector", ALL.values(), ids=list(ALL))
def test_each_says_its_kinds_and_its_limits(detector: Detector) -> None:
    assert detector.kinds
    assert len(detector.limits) > 20
    assert list(detector.find(fold(""))) == []


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("x a.b+c@d-e.fr.", "a.b+c@d-e.fr"),
        ("<a@b.cc>", "a@b.cc"),
        ("_a@b.cc_", "a@b.cc"),
        ("a@b.cc.", "a@b.cc"),
        ("m\u00fcller@b\u00fccher.example", "m\u00fcller@b\u00fccher.example"),
        ("a (at) b (dot) cc", "a (at) b (dot) cc"),
        ("a\uff20b.cc", "a\uff20b.cc"),
        ("x=a@b.cc&y", "a@b.cc"),
        ("a@b.cc4111", "a@b.cc"),
    ],
)
def test_addresses_of_mail(text: str, address: str) -> None:
    assert found(ALL["emails"], text) == [address]


@pytest.mark.parametrize(
    "text",
    ["@", "a@", "@b.cc", "a@b", "a@b.c", "a@.cc", "5 @ $3", "https://me@b.cc/x", "git@b.cc:o/r"],
)
def test_what_is_no_address_of_mail(text: str) -> None:
    assert found(ALL["emails"], text) == []


def test_a_web_address_with_credentials_is_replaced_whole() -> None:
    text = "see https://u:p@b.cc/x?y=1, or ssh://git@b.cc/o/r and https://b.cc/@u"
    assert found(ALL["urls"], text) == ["https://u:p@b.cc/x?y=1"]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("4111 1111 1111 1111", ["4111 1111 1111 1111"]),
        ("4111-1111-1111-1111", ["4111-1111-1111-1111"]),
        ("4111.1111\n1111.1111", ["4111.1111\n1111.1111"]),
        ("on 12 4111111111111111 123", ["4111111111111111"]),
        ("\uff14111 1111 1111 1111", ["\uff14111 1111 1111 1111"]),
        ("4111 1111 1111 1112", []),
        ("my card 4111 1111 1111 1112", ["4111 1111 1111 1112"]),
        ("x4111111111111111", []),
        ("\u756a\u53f74111111111111111\u3067\u3059", ["4111111111111111"]),
        ("41111111111111114111111111111111", []),
        ("0000 0000 0000 0000", []),
    ],
)
def test_cards(text: str, numbers: list[str]) -> None:
    assert found(ALL["payment cards"], text) == numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("DE89 3704 0044 0532 0130 00 und", ["DE89 3704 0044 0532 0130 00"]),
        ("de89370400440532013000", ["de89370400440532013000"]),
        ("DE89-3704-0044-0532-0130-00", ["DE89-3704-0044-0532-0130-00"]),
        ("D\u041589 3704 0044 0532 0130 00", ["D\u041589 3704 0044 0532 0130 00"]),
        ("IBAN: DE88 3704 0044 0532 0130 00", ["DE88 3704 0044 0532 0130 00"]),
        ("DE88 3704 0044 0532 0130 00", []),
        ("XDE89370400440532013000", []),
        ("DE893704004405320130001", []),
    ],
)
def test_accounts(text: str, numbers: list[str]) -> None:
    assert found(ALL["IBANs"], text) == numbers


def test_the_lengths_of_accounts_are_those_of_the_library() -> None:
    data = resources.files("stdnum").joinpath("iban.dat").read_text("utf-8")
    lengths = {
        row[1]: 4 + sum(int(n) for n in re.findall(r"(\d+)!", row[2]))
        for row in re.finditer(r'^([A-Z]{2}) .*bban="([^"]+)"', data, re.MULTILINE)
    }
    assert lengths == IBAN_LENGTHS


def test_every_national_identifier_has_a_module_that_exists() -> None:
    for one in IDENTIFIERS:
        assert one.words or one.alone, one
        if one.module:
            assert callable(import_module(f"stdnum.{one.module}").is_valid)
        else:
            assert one.words, one


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("536-90-4399", ["536-90-4399"]),
        ("536904399", []),
        ("my SSN: 536904399", ["536904399"]),
        ("536904399 is my social security number", ["536904399"]),
        ("000-12-3456", []),
        ("NINO AB 12 34 56 C", ["AB 12 34 56 C"]),
        ("tax file number 123 456 782", ["123 456 782"]),
        ("123 456 782", []),
        ("DNI 12345678Z", ["12345678Z"]),
        ("12345678A", []),
    ],
)
def test_national_identifiers(text: str, numbers: list[str]) -> None:
    assert sorted(set(found(ALL["national identifiers"], text))) == numbers


def test_a_check_that_breaks_has_not_said_no() -> None:
    # The library has no name for the place 411111 and raises.
    assert found(ALL["national identifiers"], "411111111111111103") == ["411111111111111103"]


def test_countries_can_be_chosen() -> None:
    german = NationalIds(("de",))
    assert found(german, "536-90-4399") == []
    assert "of de only" in german.limits


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("+49 30 1234567", ["+49 30 1234567"]),
        ("+49 (0)30 1234567", ["+49 (0)30 1234567"]),
        ("030/1234567", ["030/1234567"]),
        ("(415) 555-2671", ["(415) 555-2671"]),
        ("call 6502530000", ["6502530000"]),
        ("6502530000", []),
        ("Raum 12 030 1234567", ["030 1234567"]),
        ("am 03.04.2024", []),
        ("2024-01-15 10:30", []),
        ("0.1234567891", []),
        ("$1,234,567.89", []),
        ("1939-1945", []),
        ("7" * 40, []),
    ],
)
def test_phones(text: str, numbers: list[str]) -> None:
    assert found(ALL["phone numbers"], text) == numbers


def test_one_number_has_one_plain_form() -> None:
    text = "+49 30 1234567, 030 1234567, 0049 30 1234567"
    german = Phones(("DE",))
    assert {s.identity for s in german.find(fold(text))} == {"+49301234567"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Anna M\u00fcller", ["Anna M\u00fcller"]),
        ("ANNA MUELLER", ["ANNA MUELLER"]),
        ("M\u00fcller, Anna", ["M\u00fcller, Anna"]),
        ("Annas Buch", ["Anna"]),
        ("Anna's book", ["Anna"]),
        ("le chat d'Anna", ["Anna"]),
        ("Hannah and Annabel", []),
        ("will you", []),
        ("Will you", []),
        ("ask Will now", ["Will"]),
        ("will turner", ["will turner"]),
        ("van Beethoven", ["Beethoven"]),
        ("van, de", []),
        ("\u7530\u4e2d\u592a\u90ce\u3055\u3093", ["\u7530\u4e2d\u592a\u90ce"]),
        ("O'Brien", ["O'Brien"]),
        ("\u96fb\u8a71\u306fAnna\u3055\u3093", ["Anna"]),
        ("obrien", ["obrien"]),
        ("\u0418\u0432\u0430\u043d \u0438 Anna", ["\u0418\u0432\u0430\u043d", "Anna"]),
    ],
)
def test_names(text: str, names: list[str]) -> None:
    contacts = [
        "Anna M\u00fcller", "Will Turner", "Ludwig van Beethoven", "\u7530\u4e2d\u592a\u90ce",
        "Se\u00e1n O'Brien", "\u0418\u0432\u0430\u043d",
    ]  # fmt: skip
    assert found(Names(contacts), text) == names


def test_parts_of_a_name_are_the_same_person() -> None:
    spans = list(Names(["Anna M\u00fcller"]).find(fold("Anna M\u00fcller. Anna? MUELLER!")))
    assert len(spans) == 3
    assert len({span.identity for span in spans}) == 1


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("password: hunter2", ["hunter2"]),
        ("password=hunter2&x=1", ["hunter2"]),
        ('"password": "a b c"', ["a b c"]),
        ("the password is hunter2.", ["hunter2"]),
        ("the password is wrong", []),
        ("password: ********", []),
        ("password: <your password>", []),
        ("password: ${PASSWORD}", []),
        ("bypass: 12345", []),
        ("this article: https://x.example/wiki/Dota_2", []),
        ("PIN: 4711", ["4711"]),
        ("token: patience", []),
        ("token: 9f8e7d6c5b4a39281706", ["9f8e7d6c5b4a39281706"]),
        ("eyJhbGciOiJub25lIn0.eyJhIjoxfQ.", ["eyJhbGciOiJub25lIn0.eyJhIjoxfQ"]),
        ("eyJhbGciXXX.eyJhIjoxfQ.abc", []),
        ("pw: hunter2", ["hunter2"]),
        ("https://x.example/?code=8f7e6d5c4b3a29180716", ["8f7e6d5c4b3a29180716"]),
        ("task-force-of-nineteen-people-2024", []),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", []),
    ],
)
def test_secrets(text: str, secrets: list[str]) -> None:
    assert found(ALL["secrets"], text) == secrets


def test_a_private_key_that_was_cut_off_is_replaced_to_its_end() -> None:
    text = "key: -----BEGIN PRIVATE KEY-----\nMIIE+/ab==\ncdEF\n!and more"
    assert "MIIE" in found(ALL["secrets"], text)[0]
    assert text.endswith("!and more")
    assert not found(ALL["secrets"], text)[0].endswith("more")


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("password", True),
        ("db_password", True),
        ("Passwort", True),
        ("pin", False),
        ("note", False),
    ],
)
def test_names_of_fields_that_hold_secrets(name: str, *, secret: bool) -> None:
    assert names_secret(name) is secret


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("203.0.113.7:80", ["203.0.113.7"]),
        ("2001:db8::1 and fe80::1:2:3", ["2001:db8::1", "fe80::1:2:3"]),
        ("00:1B:44:11:3A:B7", ["00:1B:44:11:3A:B7"]),
        ("001b.4411.3ab7", ["001b.4411.3ab7"]),
        ("127.0.0.1 ::1 0.0.0.0", []),
        ("version 1.2.3.4", []),
        ("1.2.3.4.5", []),
        ("10:30:45", []),
        ("a::b", []),
        ("999.1.1.1", []),
    ],
)
def test_addresses_of_machines(text: str, addresses: list[str]) -> None:
    assert found(ALL["machine addresses"], text) == addresses


def test_every_kind_has_a_detector_but_that_of_the_users_own_text() -> None:
    assert {kind for d in ALL.values() for kind in d.kinds} == set(Kind) - {Kind.TEXT}
