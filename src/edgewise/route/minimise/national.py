"""Numbers by which states know people: a declared set, each with its form and its check.

Some are of a form and check that hardly any other number passes; those are found by themselves.
Of the others, one in ten of any digits would pass, so a word must stand near that says what the
number is. Which is which is in :data:`IDENTIFIERS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from edgewise.route.minimise.folding import Folded, bare
from edgewise.route.minimise.identifiers import IDENTIFIERS, Identifier
from edgewise.route.minimise.libraries import load, passes
from edgewise.route.minimise.spans import Confidence, Kind, Span

__all__ = ["NationalIds"]

_BEFORE, _AFTER = 48, 24


class NationalIds:
    """Numbers of the declared set, by form, check digits and the words around them."""

    name = "national identifiers"
    kinds = (Kind.NATIONAL_ID,)

    def __init__(self, countries: tuple[str, ...] | None = None) -> None:
        """Prepare for the numbers of some countries.

        Args:
            countries: ISO 3166 codes in small letters; all that are declared by default.
        """
        chosen = [i for i in IDENTIFIERS if countries is None or i.country in countries]
        self._found = [_Finder(identifier) for identifier in chosen]
        self.limits = (
            "national identifiers are found of "
            + ", ".join(sorted({i.country for i in chosen}))
            + " only; most need a word near them that says what they are; numbers of passports, "
            "driving licences, customers and patients are not found"
        )

    def find(self, text: Folded) -> Iterator[Span]:
        """Yield the identifiers of a text."""
        if not re.search(r"\d{2}", text.text):
            return
        for finder in self._found:
            yield from finder.find(text)


class _Finder:
    def __init__(self, identifier: Identifier) -> None:
        self._name = f"{identifier.country} {identifier.name}"
        # Digits that go on, with a separator or without, are another number.
        self._form = re.compile(
            rf"(?<![A-Za-z0-9_])(?<!\d[.,])(?P<all>{_shift(identifier.form)})"
            r"(?![A-Za-z0-9_])(?![.,]\d)"
        )
        self._words = re.compile(bare(identifier.words)) if identifier.words else None
        self._alone = re.compile(identifier.alone, re.DOTALL) if identifier.alone else None
        self._check: Callable[[str], bool] | None = None
        if identifier.module:
            self._check = load(f"stdnum.{identifier.module}").is_valid

    def find(self, text: Folded) -> Iterator[Span]:
        for match in self._form.finditer(text.latin):
            written = match["all"]
            alone = self._alone is not None and self._alone.fullmatch(written) is not None
            named = self._words is not None and self._is_named(text, match)
            if not (alone or named) or len(set(re.sub(r"\D", "", written))) < 2:
                continue
            checked = self._check is not None
            right = self._check is None or passes(self._check, written)
            if right:
                yield text.span(
                    match.start(),
                    match.end(),
                    Kind.NATIONAL_ID,
                    confidence=Confidence.CERTAIN if checked and named else Confidence.LIKELY,
                    checked_by=f"{self._name}: " + ("check digits" if checked else "form"),
                )

    def _is_named(self, text: Folded, match: re.Match[str]) -> bool:
        assert self._words is not None
        after = bare(text.text[match.end() : match.end() + _AFTER])
        return bool(
            self._words.search(text.before(match.start(), _BEFORE)) or self._words.search(after)
        )


def _shift(form: str) -> str:
    """Return a form whose own group, where it has one, follows the group of the whole."""
    return form.replace(r"\1", r"\2")
