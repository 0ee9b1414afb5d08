"""Detector of telephone numbers, checked against the numbering plans of phonenumbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from edgewise.errors import InputError
from edgewise.route.minimise.folding import Folded, joins
from edgewise.route.minimise.libraries import load
from edgewise.route.minimise.spans import Confidence, Kind, Span

__all__ = ["DEFAULT_REGIONS", "Phones"]

DEFAULT_REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "BE", "AT", "CH", "PL", "PT", "SE")
_LEAST, _MOST = 7, 15  # digits of a number with its country (ITU-T E.164)

_GROUPS = re.compile(r"(?:\+ ?)?\(?\d+(?:\)?[ \t.\-/]{0,2}\n?[ \t]{0,1}\(?\d+)*")
_GROUP = re.compile(r"\d+")
_WORDS = re.compile(
    r"\b(?:tele|tel|tlf|tfno|phone|fon|mobil|handy|cell|call|text me|ring|ruf|anruf|whatsapp|signal"
    r"|sms|fax|gsm|hotline|portable|appel|movil|llam|celular|cellulare|chiam|bel|nummer|telefoon"
    r"|numero de tel|dzwon|kom|komork|zadzwon|ligar|ligue|telemovel|numret|reach me|contact"
    r"|my number)"
)
# Groups of numbers that are written without a leading 0, where a country has none.
_SHAPES = {
    (3, 3, 4), (3, 3, 3), (3, 2, 2, 2), (3, 7), (3, 6), (1, 3, 3, 4), (2, 3, 4), (2, 3, 2, 2),
    (3, 2, 4), (2, 2, 2, 2), (3, 3, 2, 2), (2, 7), (2, 8), (1, 3, 7), (4, 6), (3, 8),
}  # fmt: skip
_DATE = re.compile(
    r"(?:\d{1,2}([./\-])\d{1,2}\1(?:\d{4}|\d{2})|(?:19|20)\d\d([./\-])\d{1,2}\2\d{1,2}"
    r"|(?:1[5-9]|20)\d\d ?[-/] ?(?:1[5-9]|20)\d\d)(?![./\-]?\d)"
)
_MONEY_BEFORE = re.compile(
    r"(?:[$\u20ac\u00a3\u00a5#]|\d[.,]|isbn[ :]{0,2}|issn[ :]{0,2}|doi[ :]{0,2}) ?\Z"
)
_UNIT_AFTER = re.compile(
    r" ?(?:%|\u20ac|\$|\u00a3|eur\b|usd\b|kg\b|km\b|m\b|\u00b0)", re.IGNORECASE
)


class Phones:
    """Telephone numbers: international ones of any country, national ones of given regions."""

    name = "phone numbers"
    kinds = (Kind.PHONE,)

    def __init__(self, regions: tuple[str, ...] = DEFAULT_REGIONS) -> None:
        """Prepare for some regions.

        Args:
            regions: ISO 3166 codes, in capitals, whose national forms are read.

        Raises:
            InputError: a region is none that the library knows (``minimise-region-unknown``).
            UnsupportedError: the library is not installed.
        """
        self._library: Any = load("phonenumbers")
        for region in regions:
            if region not in self._library.SUPPORTED_REGIONS:
                raise InputError(
                    "minimise-region-unknown",
                    f"{region!r} is no region with a numbering plan",
                    hint="use ISO 3166 codes in capitals, such as DE or US",
                )
        prefix = {r: self._library.ndd_prefix_for_region(r, True) or "" for r in regions}
        self._trunk = tuple(r for r in regions if prefix[r].startswith("0"))
        self._open = tuple(r for r in regions if not prefix[r].startswith("0"))
        self._regions = regions
        self.limits = (
            f"phone numbers without a country code are found of {', '.join(regions)} only, and "
            "bare digits without a leading 0 only after a word such as 'phone'; numbers written "
            "in words, and extensions, are not found"
        )

    def find(self, text: Folded) -> Iterator[Span]:
        """Yield the numbers of a text."""
        valid = cache(self._parse)
        for match in _GROUPS.finditer(text.text):
            if sum(map(str.isdigit, match[0][:400])) < _LEAST or self._is_other(text, match):
                continue
            yield from self._in_run(text, match, valid)

    def _in_run(self, text: Folded, match: re.Match[str], valid: Any) -> Iterator[Span]:
        groups = [
            (m.start(), m.end()) for m in _GROUP.finditer(text.text, match.start(), match.end())
        ]
        run = _Run(
            text.text,
            tuple(groups),
            plus=match[0].startswith("+"),
            named=bool(_WORDS.search(text.before(match.start(), 32))),
        )
        first = 0
        while first < len(groups):
            found = self._longest(run, first, valid)
            if found is None:
                first += 1
                continue
            last, number, checked_by = found
            start = match.start() if first == 0 else groups[first][0]
            if first and text.text[start - 1] == "(":
                start -= 1
            yield text.span(
                start,
                groups[last][1],
                Kind.PHONE,
                confidence=Confidence.LIKELY if checked_by == "valid" else Confidence.POSSIBLE,
                checked_by=f"phonenumbers: {checked_by}",
                identity=number,
            )
            first = last + 1

    def _longest(self, run: _Run, first: int, valid: Any) -> tuple[int, str, str] | None:
        """Return last group, plain form and check of the longest number from a group on."""
        start = run.groups[first][0]
        if not (run.plus and first == 0) and (
            _DATE.match(run.text[start : start + 12]) or run.is_fraction(first)
        ):
            return None
        for last, digits in reversed(list(run.ends(first))):
            regions = self._plans(run, first, last, digits)
            # Three digits a group is how thousands are written, too.
            thousands = not run.named and regions is self._open and run.is_thousands(first, last)
            found = valid(digits, regions, thousands) if regions else None
            if found is not None:
                return last, *found
        return None

    def _plans(self, run: _Run, first: int, last: int, digits: str) -> tuple[str, ...]:
        """Return the regions whose plan may have such digits; an empty name is any of them."""
        if (run.plus and first == 0) or (digits.startswith("00") and len(digits) >= 10):
            return ("",)
        if digits[0] == "0":
            return self._regions
        shape = tuple(end - begin for begin, end in run.groups[first : last + 1])
        if run.named and (first == 0 or shape in _SHAPES):
            return self._regions
        return self._open if shape in _SHAPES else ()

    def _parse(self, digits: str, regions: tuple[str, ...], mobile: bool) -> tuple[str, str] | None:
        """Return a number in its plain form (E.164) and what was checked, or ``None``."""
        library = self._library
        for region in regions:
            written = digits if region else "+" + digits.removeprefix("00")
            try:
                number = library.parse(written, region or None)
            except library.NumberParseException:
                continue
            # A country code alone says enough, even for a number that is not given out.
            right = library.is_valid_number(number)
            if mobile and library.number_type(number) != library.PhoneNumberType.MOBILE:
                continue
            if right or (not region and library.is_possible_number(number)):
                plain: str = library.format_number(number, library.PhoneNumberFormat.E164)
                return plain, "valid" if right else "possible"
        return None

    def _is_other(self, text: Folded, match: re.Match[str]) -> bool:
        if match[0].startswith("+"):  # which is the end of whatever stands before it
            return False
        before = text.text[max(0, match.start() - 8) : match.start()]
        if joins(before[-1:]) or before[-1:] == "_" or _MONEY_BEFORE.search(before.lower()):
            return True
        after = text.text[match.end() : match.end() + 8]
        if joins(after[:1]) or after[:1] == "_" or _UNIT_AFTER.match(after):
            return True
        return re.match(r",\d", after) is not None


@dataclass(frozen=True, slots=True)
class _Run:
    """Groups of digits that stand together."""

    text: str
    groups: tuple[tuple[int, int], ...]
    plus: bool
    named: bool

    def ends(self, first: int) -> Iterator[tuple[int, str]]:
        """Yield each last group of a number from a group on, with the digits up to there."""
        digits = ""
        for last in range(first, min(len(self.groups), first + 9)):
            digits += self.text[self.groups[last][0] : self.groups[last][1]]
            if len(digits) > _MOST + 3:
                return
            if len(digits) >= _LEAST:
                yield last, digits

    def is_thousands(self, first: int, last: int) -> bool:
        """Return whether groups of three digits stand after spaces or points."""
        groups = self.groups[first : last + 1]
        return all(end - start == 3 for start, end in groups[1:]) and all(
            self.text[end] in " ." for _, end in groups[:-1]
        )

    def is_fraction(self, first: int) -> bool:
        """Return whether a group is the 0 before a point, and begins no number."""
        start, end = self.groups[first]
        return self.text[start:end] == "0" and self.text[end : end + 1] == "."
