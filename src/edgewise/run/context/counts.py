"""How many tokens a text has, remembered: what was said earlier is not tokenised anew."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

__all__ = ["TokenCounts"]

_LIMIT: Final = 4096
# Shorter texts are tokenised in less time than they are looked up in.
_CHARACTERS_MIN: Final = 24


class TokenCounts:
    """Counts tokens for one engine. A text is known by its digest; it is not kept.

    Not for use by several threads at a time.
    """

    def __init__(self, tokenize: Callable[[str], list[int]], limit: int = _LIMIT) -> None:
        """Remember the counts of so many of the latest texts."""
        self._tokenize = tokenize
        self._limit = limit
        self._known: OrderedDict[bytes, int] = OrderedDict()

    def __call__(self, text: str) -> int:
        """Return how many tokens a text has."""
        if len(text) < _CHARACTERS_MIN:
            return len(self._tokenize(text))
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        count = self._known.get(key)
        if count is None:
            count = self._known[key] = len(self._tokenize(text))
            if len(self._known) > self._limit:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return count
