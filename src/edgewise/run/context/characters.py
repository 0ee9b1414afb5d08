"""Where a text can be cut so that no reader sees a torn character.

The borders are those of extended grapheme clusters (Unicode Standard Annex 29), by the families
that Python's own tables tell apart. In doubt two characters stay together: a virama keeps the
letter behind it in every script, and a joiner whatever follows. So a border here is one there,
and not always the other way round.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from typing import Final

__all__ = ["is_border"]

_JOINER: Final = "\u200d"
_VIRAMA: Final = 9  # canonical combining class

# Characters that extend the one before them and are no marks: Thai and Lao AM, the non-joiner,
# half-width sound marks, skin tones, and the tags that spell a flag of a region.
_EXTENDING: Final = frozenset(
    {0xE33, 0xEB3, 0x200C, 0xFF9E, 0xFF9F, *range(0x1F3FB, 0x1F400)}
) | frozenset(range(0xE0020, 0xE0080))
# Grapheme_Cluster_Break=Prepend, Unicode 15.1.
_PREPENDED: Final = frozenset(
    {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0xD4E, 0x110BD, 0x110CD}
) | frozenset(
    {0x111C2, 0x111C3, 0x1193F, 0x11941, 0x11A3A, *range(0x11A84, 0x11A8A), 0x11D46, 0x11F02}
)
_FLAG_LETTERS: Final = range(0x1F1E6, 0x1F200)

# Hangul: leading consonants, vowels, trailing consonants; syllables are computed.
_HANGUL: Final = (
    (0x1100, "L"),
    (0x1160, "V"),
    (0x11A8, "T"),
    (0x1200, ""),
    (0xA960, "L"),
    (0xA97D, ""),
    (0xAC00, "S"),
    (0xD7A4, ""),
    (0xD7B0, "V"),
    (0xD7C7, ""),
    (0xD7CB, "T"),
    (0xD7FC, ""),
)
_HANGUL_STARTS: Final = [start for start, _ in _HANGUL]
_SYLLABLE_FIRST: Final = 0xAC00
_TRAILING_COUNT: Final = 28
_HANGUL_JOINED: Final = frozenset({"LL", "LV", "LA", "LB", "AV", "AT", "VV", "VT", "BT", "TT"})


def is_border(text: str, at: int) -> bool:
    """Return whether a text can be cut before a character, which is not its first."""
    before, after = ord(text[at - 1]), ord(text[at])
    if before < 0x300 and after < 0x300:
        return not (before == 0x0D and after == 0x0A)
    if text[at - 1] == _JOINER or before in _PREPENDED:
        return False
    if text[at] == _JOINER or after in _EXTENDING or _is_mark(text[at]):
        return False
    if after in _FLAG_LETTERS:
        return _flag_letters_before(text, at) % 2 == 0
    if _hangul(before) + _hangul(after) in _HANGUL_JOINED:
        return False
    return not (unicodedata.category(text[at]) == "Lo" and _follows_virama(text, at))


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _flag_letters_before(text: str, at: int) -> int:
    """Return how many letters of flags stand before a place; two make a flag."""
    start = at
    while start > 0 and ord(text[start - 1]) in _FLAG_LETTERS:
        start -= 1
    return at - start


def _hangul(code: int) -> str:
    """Return the kind of a Hangul letter: L, V, T, A for a syllable of two, B for one of three."""
    place = bisect_right(_HANGUL_STARTS, code) - 1
    kind = _HANGUL[place][1] if place >= 0 else ""
    if kind == "S":
        return "A" if (code - _SYLLABLE_FIRST) % _TRAILING_COUNT == 0 else "B"
    return kind


def _follows_virama(text: str, at: int) -> bool:
    """Return whether a virama and nothing but other marks stand before a letter."""
    at -= 1
    while at >= 0 and (text[at] == _JOINER or _is_mark(text[at])):
        if unicodedata.combining(text[at]) == _VIRAMA:
            return True
        at -= 1
    return False
