"""Detectors of payment cards and bank accounts, and the runs of digits that others read, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from edgewise.route.minimise.folding import Folded, joins
from edgewise.route.minimise.libraries import load, passes
from edgewise.route.minimise.spans import Confidence, Kind, Span

__all__ = ["IBAN_LENGTHS", "Cards", "Ibans", "Run", "runs"]

# Groups of digits with at most two separators between them; a line may end inside.
_RUN = re.compile(r"\d+(?:[ \t.\-/]{0,2}\n?[ \t]{0,2}\d+)*")
_GROUP = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Run:
    """Groups of digits that stand together.

    Attributes:
        groups: Start and end of each group in the folded text.
        digits: All digits, joined.
    """

    groups: tuple[tuple[int, int], ...]
    digits: str

    def windows(self, least: int, most: int) -> Iterator[tuple[int, int, str]]:
        """Yield start, end and digits of every stretch of whole groups of such a length."""
        sizes = [end - start for start, end in self.groups]
        offset = 0
        for first, size in enumerate(sizes):
            total = 0
            for last in range(first, len(sizes)):
                total += sizes[last]
                if total > most:
                    break
                if total >= least:
                    yield (
                        self.groups[first][0],
                        self.groups[last][1],
                        self.digits[offset : offset + total],
                    )
            offset += size


def runs(text: str, least: int) -> Iterator[Run]:
    """Yield the runs of a text that have so many digits, and no letter at their ends."""
    for match in _RUN.finditer(text):
        groups = [(m.start(), m.end()) for m in _GROUP.finditer(text, match.start(), match.end())]
        if groups and _joined(text, groups[0][0] - 1):
            groups = groups[1:]
        if groups and _joined(text, groups[-1][1]):
            groups = groups[:-1]
        digits = "".join(text[start:end] for start, end in groups)
        if len(digits) >= least:
            yield Run(tuple(groups), digits)


def _joined(text: str, place: int) -> bool:
    return 0 <= place < len(text) and (joins(text[place]) or text[place] == "_")


# First digits and lengths of the schemes (ISO/IEC 7812 ranges as the schemes publish them).
_SCHEMES = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|6(?:011|4[4-9]\d|5\d\d)\d{12}(?:\d{3})?"  # Discover
    r"|3(?:0[0-5]|095|[689]\d)\d{11}|3095\d{10}"  # Diners Club
    r"|35(?:2[89]|[3-8]\d)\d{12}(?:\d{3})?"  # JCB
    r"|62\d{14}(?:\d{1,3})?"  # UnionPay
    r"|220[0-4]\d{12}"  # Mir
    r"|(?:5018|5020|5038|5893|6304|6759|676[1-3])\d{8,15}"  # Maestro
)
_CARD_WORDS = re.compile(
    r"card|karte|carte|tarjeta|carta|kaart|kort|karta|cartao|visa|master|amex|maestro|kredit|credit"
)


_CONFIDENCE = {
    (True, True): Confidence.CERTAIN,
    (True, False): Confidence.LIKELY,
    (False, True): Confidence.POSSIBLE,
}


class Cards:
    """Payment cards: numbers of a known scheme with the right check digit, or called a card's."""

    name = "payment cards"
    kinds = (Kind.CARD,)
    limits = (
        "a card number of a scheme that is not known is not found, and one with a wrong digit only "
        "after a word such as 'card'"
    )

    def __init__(self) -> None:
        self._luhn = load("stdnum.luhn")

    def find(self, text: Folded) -> Iterator[Span]:
        """Yield the card numbers of a text."""
        for run in runs(text.text, 12):
            for start, end, digits in run.windows(12, 19):
                if not _SCHEMES.fullmatch(digits) or len(set(digits)) < 2:
                    continue
                right = self._luhn.is_valid(digits)
                named = _CARD_WORDS.search(text.before(start)) is not None
                if not right and not (named and len(digits) in {15, 16}):
                    continue
                yield text.span(
                    start,
                    end,
                    Kind.CARD,
                    confidence=_CONFIDENCE[right, named],
                    checked_by="scheme, luhn" if right else "scheme, words before it",
                    identity=digits,
                )


# Length of an IBAN by country (IBAN registry, release 101); a test holds it against the library.
IBAN_LENGTHS = {
    code: length
    for length, codes in {
        15: "NO",
        16: "BE",
        18: "DK FI FK FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for code in codes.split()
}
_IBAN_START = re.compile(r"(?<![^\W_])[A-Za-z]{2} ?\d{2}(?=[ .\-]{0,2}\n?[A-Za-z0-9])")
_IBAN_CHARACTER = re.compile(r"[ .\-]{0,2}\n?[ ]{0,2}([A-Za-z0-9])")


class Ibans:
    """Bank accounts as IBANs."""

    name = "IBANs"
    kinds = (Kind.IBAN,)
    limits = "an account number that is no IBAN is not found"

    def __init__(self) -> None:
        self._iban = load("stdnum.iban")

    def find(self, text: Folded) -> Iterator[Span]:
        """Yield the IBANs of a text."""
        latin = text.latin
        for match in _IBAN_START.finditer(latin):
            length = IBAN_LENGTHS.get(match[0][:2].upper())
            if length is None:
                continue
            characters, end = match[0].replace(" ", ""), match.end()
            while len(characters) < length and (step := _IBAN_CHARACTER.match(latin, end)):
                characters += step[1]
                end = step.end()
            whole = len(characters) == length and not _joined(latin, end)
            if not whole:
                continue
            right = passes(self._iban.is_valid, characters)
            if right or "iban" in text.before(match.start(), 24):
                yield text.span(
                    match.start(),
                    end,
                    Kind.IBAN,
                    confidence=Confidence.CERTAIN if right else Confidence.POSSIBLE,
                    checked_by="mod 97-10" if right else "the word IBAN",
                    identity=characters.casefold(),
                )
