"""Text that others wrote, made fit to be shown to a person: on a terminal, in a table, in a page.

A purpose, a name or a server's word must not be able to rewrite what stands around it: by a control
character that acts on the terminal, an override that turns the order of letters round, space that
pushes a made-up line into view, or letters that cannot be seen. Such characters are written out.

Three kinds of text differ in what they need. A name is compared, and everything in it is seen.
Prose of somebody else keeps what shapes its letters. A model's answer is what was asked for, in any
script: it also keeps the marks that give its words their direction, and places where lines may
break.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

__all__ = ["answer", "plain", "quoted", "visible"]

_SPACE = re.compile(r"\s+")
_UNSHOWN: Final = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_MARKS_MAX: Final = 4  # no script stacks more on one letter
# Seen as nothing, though their categories are those of letters, marks and symbols.
_INVISIBLE: Final = frozenset(
    [
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
        *range(0x180B, 0x1810),
        *range(0xFE00, 0xFE10),
        *range(0xE0000, 0xE1000),
    ]
)
# Joiners shape words of many scripts, and the selector shapes emoji: prose needs them, names
# do not.
_OF_PROSE: Final = {"\u200c", "\u200d", "\ufe0f"}
_UNSHOWN_IN_ANSWERS: Final = {"Cc", "Cf", "Cs", "Zl", "Zp"}
# What text in some script needs: direction marks, places to break or not to, selectors of forms,
# signs that stand over numbers, and the empty cell of Braille. Not among them: embeddings,
# overrides and isolates, which show code in another order than it runs, and tags.
_OF_ANSWERS: Final = _OF_PROSE | {
    chr(code)
    for code in (
        *(0x00AD, 0x061C, 0x200B, 0x200E, 0x200F, 0x2060),
        *(*range(0x0600, 0x0606), 0x06DD, 0x070F, 0x0890, 0x0891, 0x08E2, 0x110BD, 0x110CD),
        *(0x034F, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), 0x2800),
    )
}


def plain(text: str, *, prose: bool = False, longest: int = 500) -> str:
    r"""Return a text as one line in which everything is seen.

    Space and line breaks become one space. What cannot be seen, or acts on a terminal or on the
    order of letters, is written out (``\u202e``). What is too long is cut, and says so.

    Args:
        text: By whomever.
        prose: Whether it is read as words, not compared as a name: joiners and the selector of
            emoji stay.
        longest: Most characters that are shown.
    """
    line = _SPACE.sub(" ", text).strip()
    cut = len(line) - longest
    shown = _seen(line[:longest], kept=_OF_PROSE if prose else set())
    return shown + (f" … ({cut} characters more)" if cut > 0 else "")


def quoted(text: str, *, longest: int = 500) -> str:
    """Return words of somebody else between quotes, so that it is seen where they end."""
    return f'"{plain(text, prose=True, longest=longest).replace(chr(34), chr(39))}"'


def visible(text: str) -> str:
    """Return a text of several lines in which everything is seen; line feeds and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return _seen(text, kept=_OF_PROSE | {"\n", "\t"})


def answer(text: str) -> str:
    """Return a model's answer, or a piece of it, without what acts on a terminal or hides."""
    if text.isprintable():
        return text
    return "".join(
        _written_out(character)
        if unicodedata.category(character) in _UNSHOWN_IN_ANSWERS
        and character not in _OF_ANSWERS
        and character not in "\n\t"
        else character
        for character in text
    )


def _seen(text: str, *, kept: set[str]) -> str:
    shown, marks = [], 0
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category in {"Mn", "Me"} else 0
        hidden = category in _UNSHOWN or ord(character) in _INVISIBLE or marks > _MARKS_MAX
        shown.append(_written_out(character) if hidden and character not in kept else character)
    return "".join(shown)


def _written_out(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
