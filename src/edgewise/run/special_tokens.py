"""Which control tokens a text spells, in time that hardly depends on how many there are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["SpecialTokens"]

# How many characters of a token narrow down the rest. One would be the same "<" for most.
_HEAD_CHARACTERS: Final = 3
_NOTHING: Final[frozenset[int]] = frozenset()


class SpecialTokens:
    """The control tokens of a model.

    A token is looked up by its first characters and its length: models have thousands of tokens,
    and few beginnings and lengths.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        """Prepare for texts."""
        self._places = {token: place for place, token in enumerate(dict.fromkeys(tokens)) if token}
        lengths: dict[str, set[int]] = {}
        for token in self._places:
            lengths.setdefault(token[:_HEAD_CHARACTERS], set()).add(len(token))
        self._lengths = {head: frozenset(found) for head, found in lengths.items()}
        self._head_sizes = sorted({len(head) for head in lengths})
        first = "".join(sorted({head[0] for head in lengths}))
        self._begins = re.compile(f"[{re.escape(first)}]") if first else None

    def spelled_in(self, text: str) -> list[str]:
        """Return the tokens that stand in a text, in the order in which they were given."""
        found: set[str] = set()
        for match in self._begins.finditer(text) if self._begins is not None else ():
            at = match.start()
            for size in self._head_sizes:
                for length in self._lengths.get(text[at : at + size], _NOTHING):
                    piece = text[at : at + length]
                    if piece in self._places:
                        found.add(piece)
        return sorted(found, key=self._places.__getitem__)
