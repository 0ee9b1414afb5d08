"""Text out of token bytes: whole characters only, and nothing of a stop text.

A token can end inside a character, and a stop text can be spread over tokens. Bytes that are
not yet a character and text that may still become a stop text are held back.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["TextStream"]


class TextStream:
    """Turns token bytes into text that is safe to show."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False
        self.replaced = False

    def push(self, data: bytes) -> str:
        """Return the text that can be shown after one more token's bytes."""
        return self._release(self._decode(data, final=False), final=False)

    def finish(self, *, cut: bool = False) -> str:
        """Return what was held back, now that no token follows.

        Args:
            cut: Whether the answer was cut off from outside; then half a character at its end
                is dropped, since it is nobody's mistake.
        """
        return self._release("" if cut else self._decode(b"", final=True), final=True)

    def _decode(self, data: bytes, *, final: bool) -> str:
        text = self._decoder.decode(data, final)
        if "\ufffd" in text:
            self.replaced = True
        return text

    def _release(self, text: str, *, final: bool) -> str:
        if self.stopped:
            return ""
        if not self._stop:
            return text
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = 0 if final else self._possible_stop(text)
        self._held = text[len(text) - keep :] if keep else ""
        return text[: len(text) - keep]

    def _possible_stop(self, text: str) -> int:
        """Return the length of the longest end of ``text`` that begins a stop text."""
        longest = min(len(text), max(len(stop) for stop in self._stop) - 1)
        for size in range(longest, 0, -1):
            tail = text[len(text) - size :]
            if any(stop.startswith(tail) for stop in self._stop):
                return size
        return 0
