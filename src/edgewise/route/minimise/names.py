"""Detector of names: of the people in the user's own list of contacts, and of nobody else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgewise.errors import InputError
from edgewise.route.minimise.folding import UNSPACED, Folded, bare, fold, plain_letters
from edgewise.route.minimise.spans import Confidence, Kind, Span

__all__ = ["CONTACTS_MAX", "Names"]

CONTACTS_MAX = 100_000
_NAME_MAX = 200

_LETTER = rf"[^\W\d_{UNSPACED}]"
_WORD = re.compile(rf"(?<![^\W{UNSPACED}]){_LETTER}+(?:['`]{_LETTER}+)*")
_GAP = re.compile(r"(?:[ \t\n\-]{1,2}|, ?)?")
_ENDINGS = ("'s", "s", "'")
# Scripts without spaces: their names are sought as they are, letter by letter.
_UNSPACED = re.compile(f"[{UNSPACED}]+")
_PARTICLES = frozenset(
    (  # noqa: SIM905 - words are easier to read and to add to
        "von van der den de da do dos das del della di du le la les el al bin ibn ben ter ten "
        "zu zur vom und and y e i af av dr mr mrs ms prof herr frau mme jr sr st san saint"
    ).split()
)
# Names that are words of everyday language. One alone counts with a capital inside a sentence.
_EVERYDAY = frozenset(
    (  # noqa: SIM905 - words are easier to read and to add to
        "will mark rose grace may june april august hope faith joy art bill frank max pat sue "
        "grant chase dean king young long brown white green black gray grey rich drew gene jack "
        "rob bob ray guy miles rusty sandy dawn summer autumn ivy lily daisy ruby pearl amber "
        "crystal jasmine olive violet iris heather holly penny buck chip dale cliff glen lane "
        "parks park wood woods stone rivers field fields hill church bush reed cook baker smith "
        "carter hunter fisher shepherd butler page price rush sharp short small little good "
        "best love day weeks noble wise sage case major star sky river ocean christian jordan "
        "paris london georgia israel india china savannah brook brooks banks ford bell hall "
        "klein gross lang kurz braun weiss schwarz koch bauer jung alt sommer winter stark "
        "fuchs wolf vogel berg bach stein wald kaiser konig richter schneider fischer weber "
        "schuster wagner zimmermann blanc petit rouge belle marchand boulanger berger roy roi "
        "martin noel fleur france claire rosa paz mar sol luz cruz leon angel santos reyes "
        "flores rojas bello blanco rey guerra rosario bianchi rossi bruno gallo serena bella "
        "stella luna vera alba gioia jong groot bakker visser"
    ).split()
)


@dataclass(frozen=True, slots=True)
class _Hit:
    start: int
    end: int
    contacts: frozenset[int]
    particle: bool
    everyday: bool
    capital: bool


class Names:
    """Names of given people: whole, in part, with their cases and marks folded, or inflected."""

    name = "names of contacts"
    kinds = (Kind.PERSON,)
    limits = (
        "only names in the list of contacts are found; a contact's name that is an everyday word "
        "(Will, Mark, Koch) is found alone only with a capital inside a sentence, and every such "
        "word is then taken for the contact; of inflections, those in -s are"
    )

    def __init__(self, contacts: Sequence[str]) -> None:
        """Prepare for a list of names.

        Raises:
            InputError: the list is too long, or a name is (``contacts-invalid``).
        """
        if len(contacts) > CONTACTS_MAX or any(len(name) > _NAME_MAX for name in contacts):
            raise InputError(
                "contacts-invalid",
                f"the list has more than {CONTACTS_MAX} names, or one of more than {_NAME_MAX} "
                "characters",
                hint="give names only, one for each contact",
            )
        self._tokens: dict[str, set[int]] = {}
        self._unspaced: dict[str, dict[int, dict[str, int]]] = {}
        for number, contact in enumerate(contacts):
            self._add(number, fold(contact).text)

    def _add(self, number: int, contact: str) -> None:
        for match in _UNSPACED.finditer(contact):
            if len(match[0]) >= 2:
                sizes = self._unspaced.setdefault(match[0][:2], {})
                sizes.setdefault(len(match[0]), {})[match[0]] = number
        whole = "".join(contact.split())
        if _UNSPACED.fullmatch(whole) and len(whole) >= 2:
            self._unspaced.setdefault(whole[:2], {}).setdefault(len(whole), {})[whole] = number
        for match in _WORD.finditer(contact):
            for token in _forms(match[0]):
                if len(token) >= 2:
                    self._tokens.setdefault(token, set()).add(number)

    def find(self, text: Folded) -> Iterator[Span]:
        """Yield the names of a text."""
        if self._tokens:
            yield from self._by_words(text)
        if self._unspaced:
            yield from self._by_letters(text)

    def _by_words(self, text: Folded) -> Iterator[Span]:
        known: dict[str, tuple[int, int, frozenset[int], str] | None] = {}
        hits: list[_Hit] = []
        for match in _WORD.finditer(text.text):
            word = match[0]
            if word not in known:
                known[word] = self._look_up(word)
            found = known[word]
            if found is None:
                continue
            hit = self._hit(text.text, match.start(), word, found)
            if hits and not (
                hits[-1].contacts & hit.contacts
                and _GAP.fullmatch(text.text, hits[-1].end, hit.start)
            ):
                yield from self._join(text, hits)
                hits = []
            hits.append(hit)
        yield from self._join(text, hits)

    def _look_up(self, word: str) -> tuple[int, int, frozenset[int], str] | None:
        """Return start and end of the name in a word, whose it may be, and its plain form."""
        for start, end in _candidates(word):
            for form in _forms(word[start:end]):
                contacts = self._tokens.get(form)
                if contacts:
                    return start, end, frozenset(contacts), form
        return None

    @staticmethod
    def _hit(text: str, start: int, word: str, found: tuple[int, int, frozenset[int], str]) -> _Hit:
        first, last, contacts, form = found
        return _Hit(
            start=start + first,
            end=start + last,
            contacts=contacts,
            particle=form in _PARTICLES,
            everyday=form in _EVERYDAY or len(form) < 3,
            capital=word[first].isupper() and not _begins_sentence(text, start),
        )

    @staticmethod
    def _join(text: Folded, hits: list[_Hit]) -> Iterator[Span]:
        while hits and hits[0].particle:
            hits = hits[1:]
        while hits and hits[-1].particle:
            hits = hits[:-1]
        if not hits or (len(hits) == 1 and hits[0].everyday and not hits[0].capital):
            return
        contacts = frozenset.intersection(*(hit.contacts for hit in hits)) or hits[0].contacts
        start, end = hits[0].start, hits[-1].end
        one = len(contacts) == 1
        yield text.span(
            start,
            end,
            Kind.PERSON,
            confidence=Confidence.LIKELY if len(hits) > 1 else Confidence.POSSIBLE,
            checked_by="contacts",
            identity=f"contact {min(contacts)}" if one else bare(text.text[start:end]),
        )

    def _by_letters(self, text: Folded) -> Iterator[Span]:
        for match in _UNSPACED.finditer(text.text):
            at = match.start()
            while at < match.end() - 1:
                sizes = self._unspaced.get(text.text[at : at + 2], {})
                for size in sorted(sizes, reverse=True):
                    number = sizes[size].get(text.text[at : at + size])
                    if number is not None:
                        yield text.span(
                            at,
                            at + size,
                            Kind.PERSON,
                            confidence=Confidence.LIKELY,
                            checked_by="contacts",
                            identity=f"contact {number}",
                        )
                        at += size - 1
                        break
                at += 1


def _forms(word: str) -> tuple[str, ...]:
    """Return a word as it is compared: without marks, and with marks spelt out."""
    plain = bare(word).replace("'", "").replace("`", "")
    if word.isascii():
        return (plain,)
    forms = [plain, plain_letters(word).replace("'", "").replace("`", "")]
    if any(character.isascii() for character in word):  # one alphabet with letters of another
        forms.append(bare(fold(word).latin).replace("'", "").replace("`", ""))
    return tuple(dict.fromkeys(forms))


def _candidates(word: str) -> Iterator[tuple[int, int]]:
    """Yield where a name may stand in a word: all of it, or without an ending or an article."""
    yield 0, len(word)
    first = 2 if word[1:2] == "'" and word[0] in "dljDLJ" and len(word) > 3 else 0
    if first:
        yield first, len(word)
    for ending in _ENDINGS:
        if word.lower().endswith(ending) and len(word) - first > len(ending) + 1:
            yield first, len(word) - len(ending)


def _begins_sentence(text: str, start: int) -> bool:
    before = text[max(0, start - 4) : start].rstrip(" \t\"'([*_-")
    return not before or before[-1] in ".!?:\n\u2026"
