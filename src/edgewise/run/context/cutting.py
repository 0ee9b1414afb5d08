"""Texts cut between tokens, and never inside a character.

A character is what a reader takes for one: marks that combine with the letter before them, the
parts of a joined emoji, the two letters of a flag and the parts of a syllable stay together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edgewise.run.context.characters import is_border

__all__ = ["halves", "head", "tail"]

Tokens = list[int]

# A code point has at most 4 bytes, and so at most as many tokens.
_CHARACTER_TOKENS_MAX: Final = 4


def tail(text: str, tokens: Tokens, gone: int, detokenize: Callable[[Tokens], str]) -> str:
    """Return the text without its first tokens, or without slightly more.

    Args:
        text: The text.
        tokens: Its tokens.
        gone: How many of them are to go.
        detokenize: From tokens to text; bytes that are no character may become anything.
    """
    for at in range(gone, min(gone + _CHARACTER_TOKENS_MAX, len(tokens) + 1)):
        rest = detokenize(tokens[at:])
        if text.endswith(rest):
            return text[_later(text, len(text) - len(rest)) :]
    # These tokens do not spell the text, as where a tokenizer rewrites it.
    return text[_later(text, -(-len(text) * gone // max(1, len(tokens)))) :]


def head(text: str, tokens: Tokens, kept: int, detokenize: Callable[[Tokens], str]) -> str:
    """Return the text's first tokens, or slightly fewer; arguments are those of :func:`tail`."""
    if kept >= len(tokens):
        return text
    for at in range(kept, max(kept - _CHARACTER_TOKENS_MAX, -1), -1):
        begin = detokenize(tokens[:at])
        if text.startswith(begin):
            return text[: _earlier(text, len(begin))]
    return text[: _earlier(text, len(text) * kept // len(tokens))]


def halves(text: str) -> tuple[str, str]:
    """Return the text in two; the second is empty when it is a single character."""
    at = _later(text, (len(text) + 1) // 2)
    return text[:at], text[at:]


def _later(text: str, at: int) -> int:
    while 0 < at < len(text) and not is_border(text, at):
        at += 1
    return at


def _earlier(text: str, at: int) -> int:
    while 0 < at < len(text) and not is_border(text, at):
        at -= 1
    return at
