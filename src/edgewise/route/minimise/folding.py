"""The form of a text in which identifiers are sought, and the way back to the text as it was.

People and programs write one identifier in many ways: in full-width digits, with invisible
characters inside, with a dash from typography. Detectors read the *folded* text, in which these
are gone; every place in it leads back to a place in the text as it was given.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from edgewise.errors import InputError
from edgewise.route.minimise.escapes import unescaped
from edgewise.route.minimise.spans import Confidence, Kind, Span

__all__ = [
    "UNSPACED",
    "Folded",
    "bare",
    "compact",
    "fold",
    "joins",
    "plain_letters",
    "readings",
    "require_unicode",
]

# A base with more marks than this is folded in pieces: sorting marks takes quadratic time.
_CLUSTER_MAX = 16
_ASCII_RUN = re.compile(r"[\x00-\x7f]+")
_SEPARATORS = re.compile(r"[^0-9A-Za-z\u00aa-\U0010ffff@+]+")
# Letters of other alphabets that look like Latin capitals and small letters, one for one.
_LOOKALIKES = str.maketrans(
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0406\u0408\u0405"
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf",
    "ABEKMHOPCTYXIJS" + "aeopcyxijs" + "ABEZHIKMNOPTYXo",
)
# Scripts that put no space between words, for a class of a pattern.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
    "\U00020000-\U0003ffff"
)
_ALONE = re.compile(f"[{UNSPACED}]")
_SPECIAL = {
    "\u2212": "-",  # minus
    "\u2043": "-",  # hyphen bullet
    "\u3002": ".",  # full stops that domain names may have, too
    "\uff61": ".",
    "\u2019": "'",
    "\u2018": "'",
    "\u02bc": "'",
    "\u2028": "\n",
    "\u2029": "\n",
    "\u2800": " ",  # of Braille, without a dot
}
_INVISIBLE = {"\u034f", "\u115f", "\u1160", "\u3164", "\uffa0", "\u17b4", "\u17b5"}


class Folded:
    """A text and its folded form.

    Attributes:
        source: The text as it was given.
        text: The folded text.
        latin: The same, letter for letter, with lookalikes of Latin letters made Latin.
    """

    __slots__ = ("_ends", "_starts", "latin", "source", "text")

    def __init__(self, source: str, text: str, starts: list[int] | None, ends: list[int]) -> None:
        self.source = source
        self.text = text
        self.latin = text if starts is None else text.translate(_LOOKALIKES)
        self._starts = starts
        self._ends = ends

    def source_range(self, start: int, end: int) -> tuple[int, int]:
        """Return where a stretch of the folded text lies in the source."""
        if self._starts is None:
            return start, end
        return self._starts[start], self._ends[end - 1]

    def span(
        self,
        start: int,
        end: int,
        kind: Kind,
        *,
        confidence: Confidence,
        checked_by: str,
        identity: str | None = None,
    ) -> Span:
        """Return a span from a stretch of the folded text, which must not be empty."""
        first, last = self.source_range(start, end)
        return Span(
            start=first,
            end=last,
            kind=kind,
            confidence=confidence,
            checked_by=checked_by,
            identity=compact(self.text[start:end]) if identity is None else identity,
        )

    def before(self, start: int, length: int = 48) -> str:
        """Return what stands before a place, in small letters without marks."""
        return bare(self.text[max(0, start - length) : start])


def fold(source: str) -> Folded:
    """Return a text with its folded form.

    Compatibility forms are made plain (NFKC), digits of all scripts become 0 to 9, dashes
    become ``-``, spaces become a space, and what cannot be seen is left out.

    Raises:
        InputError: the text holds lone surrogates (``text-not-utf8``).
    """
    if source.isascii():
        return Folded(source, source, None, [])
    require_unicode(source)
    return Folded(source, *_folded(source))


def readings(source: str) -> Iterator[Folded]:
    r"""Yield the folded text, and where there are escapes, the text they stand for, folded.

    ``\new`` may be a line's end before ``ew``, in JSON, or a folder of that name. What either
    reading shows counts.
    """
    yield fold(source)
    done = unescaped(source)
    if done is None:
        return
    plain, begun, ended = done
    text, starts, ends = _folded(plain)
    yield Folded(
        source, text, [begun[place] for place in starts], [ended[place - 1] for place in ends]
    )


def _folded(source: str) -> tuple[str, list[int], list[int]]:
    """Return the folded text, and where each of its characters begins and ends."""
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at, size = 0, len(source)
    while at < size:
        run = _ASCII_RUN.match(source, at)
        if run:
            # The last character may be the base of a mark that follows.
            stop = run.end() if run.end() == size else run.end() - 1
            parts.append(source[at:stop])
            starts.extend(range(at, stop))
            ends.extend(range(at + 1, stop + 1))
            at = stop
            if at == size:
                break
        stop = at + 1
        while stop < size and stop - at < _CLUSTER_MAX and unicodedata.combining(source[stop]):
            stop += 1
        piece = _fold_cluster(source[at:stop])
        parts.append(piece)
        starts.extend([at] * len(piece))
        ends.extend([stop] * len(piece))
        at = stop
    return "".join(parts), starts, ends


def require_unicode(text: str) -> None:
    """Refuse a text that cannot be sent.

    Raises:
        InputError: it holds lone surrogates (``text-not-utf8``).
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            "text-not-utf8",
            f"a field holds text that is not valid Unicode: {error.reason}",
            context={"position": error.start},
            hint="remove or replace the bytes that are no text; input must be UTF-8",
        ) from error


@lru_cache(maxsize=8192)  # texts repeat their letters
def _fold_cluster(cluster: str) -> str:
    return "".join(_fold_character(c) for c in unicodedata.normalize("NFKC", cluster))


def _fold_character(character: str) -> str:
    if character < "\x80":
        return character
    if character in _SPECIAL:
        return _SPECIAL[character]
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category == "Pd":
        return "-"
    if category == "Zs":
        return " "
    if category == "Me" or "\u0334" <= character <= "\u0338":  # a keycap, or struck through
        return ""
    hidden = category == "Cf" or character in _INVISIBLE or "\ufe00" <= character <= "\ufe0f"
    return "" if hidden or "\U000e0100" <= character <= "\U000e01ef" else character


def joins(character: str) -> bool:
    """Return whether a letter or digit beside an identifier makes it part of something longer.

    In scripts without spaces it does not: there every word stands beside another.
    """
    return character.isalnum() and _ALONE.match(character) is None


def compact(text: str) -> str:
    """Return an identifier without separators, in small letters: equal for equal ones."""
    return _SEPARATORS.sub("", text).casefold()


def bare(text: str) -> str:
    """Return a text in small letters without marks, for comparing words."""
    if text.isascii():
        return text.lower()
    split = unicodedata.normalize("NFD", text.casefold())
    return "".join(c for c in split if not unicodedata.combining(c)).translate(_PLAIN)


# Letters that no decomposition takes apart.
_PLAIN = {
    ord("\u00f8"): "o",
    ord("\u0142"): "l",
    ord("\u0111"): "d",
    ord("\u0131"): "i",
    ord("\u00e6"): "ae",
    ord("\u0153"): "oe",
    ord("\u00fe"): "th",
    ord("\u00f0"): "d",
}


def plain_letters(text: str) -> str:
    """Return a word as Germans and Scandinavians write it without marks: ``ue`` for its umlaut."""
    table = {"\u00e4": "ae", "\u00f6": "oe", "\u00fc": "ue", "\u00e5": "aa", "\u00f8": "oe"}
    composed = unicodedata.normalize("NFC", text.casefold())
    return bare("".join(table.get(c, c) for c in composed))
