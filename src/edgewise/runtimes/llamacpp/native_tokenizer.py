"""The tokenizer inside a loaded model of the llama.cpp family."""

from __future__ import annotations

import ctypes
from typing import Any

from edgewise.errors import AdapterError
from edgewise.runtimes.llamacpp.library import Library

__all__ = ["NativeTokenizer"]


class NativeTokenizer:
    """The tokenizer inside a loaded model."""

    def __init__(self, library: Library, model: Any) -> None:
        """Take the model's address; it must outlive this."""
        self._library = library
        self._model = model
        self._piece = ctypes.create_string_buffer(256)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the token ids of ``text``.

        Raises:
            AdapterError: the tokenizer failed.
        """
        data = text.encode("utf-8")
        room = len(data) + 8
        for _ in range(2):
            buffer = (ctypes.c_int32 * room)()
            count = self._library.tokenize(
                self._model, data, buffer, add_special=add_special, parse_special=parse_special
            )
            if count >= 0:
                return buffer[:count]
            room = -count
        raise AdapterError(
            "tokenize-failed", f"{self._library.title}'s tokenizer gave no stable length"
        )

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token stands for; empty for a control token.

        Raises:
            AdapterError: the token is longer than the library can say.
        """
        count = self._library.piece(self._model, token, self._piece)
        if count < 0:
            self._piece = ctypes.create_string_buffer(-count)
            count = self._library.piece(self._model, token, self._piece)
            if count < 0:
                raise AdapterError(
                    "token-unreadable", f"{self._library.title} cannot spell token {token}"
                )
        return self._piece.raw[:count]
