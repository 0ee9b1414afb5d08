"""From a text to the features that a classifier sees: hashed words, pairs of words, and no more.

The same text gives the same features in every process and on every machine. What looks the same
gives the same: Unicode forms, letter case, invisible and direction characters, spaces and the
values of digits make no difference.

Invariants: of a long text its first and its last part are read, so that the work is bounded; no
text raises anything.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from typing import Final

__all__ = ["BUCKETS", "FORM", "READ_CHARACTERS", "features", "folded"]

# Specified: name of what this module does. A change of it is another name, and old models end.
FORM: Final = "hashed-words-1"
BUCKETS: Final = 1 << 14
# Half from the front and half from the end, where instructions stand.
READ_CHARACTERS: Final = 4096

_PIECES: Final = re.compile(r"\w+|[^\w\s]")
_SPACE: Final = "\t\n\v\f\r\x85\u2028\u2029"
_ASCII: Final = {
    **{code: None for code in (*range(32), 127) if chr(code) not in _SPACE},
    **{ord(digit): "0" for digit in "123456789"},
}
# Start values of the checksum, so that the three kinds of features do not meet.
_WORD, _PAIR, _LETTERS = 1, 2, 3


def folded(text: str) -> str:
    """Return what of a text a classifier sees; texts with the same result are the same to it."""
    half = READ_CHARACTERS // 2
    if len(text) > READ_CHARACTERS:
        text = f"{text[:half]} {text[-half:]}"
    if text.isascii():
        text = text.lower().translate(_ASCII)
    else:
        text = unicodedata.normalize("NFKC", text).casefold()
        # Once more: what was left out may have stood between a letter and its accent.
        text = unicodedata.normalize("NFKC", "".join(map(_seen, text)))
    return " ".join(text.split())


def features(text: str) -> tuple[int, ...]:
    """Return the buckets of a text, ascending and each once; none where nothing is to be seen."""
    found: set[int] = set()
    before = b""
    for piece in _PIECES.findall(folded(text)):
        data = piece.encode()
        found.add(zlib.crc32(data, _WORD) % BUCKETS)
        found.add(zlib.crc32(before + b" " + data, _PAIR) % BUCKETS)
        before = data
        if len(data) > len(piece) > 1:  # scripts without spaces make one long word
            for at in range(len(piece) - 1):
                found.add(zlib.crc32(piece[at : at + 2].encode(), _LETTERS) % BUCKETS)
    return tuple(sorted(found))


def _seen(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == "Nd":
        return "0"
    if kind[0] == "C" and character not in _SPACE:  # control, format, surrogate, unassigned
        return ""
    return character
