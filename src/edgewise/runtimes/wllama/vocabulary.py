"""The vocabulary of a GGUF file: which bytes a token stands for, and how a text is split.

Splitting ordinary text is the runtime's own work and comes in as a function. What happens here
is the part before it: special tokens are cut out of the text, longest first, as llama.cpp does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path

from edgewise.errors import AdapterError, UnsupportedError
from edgewise.models.gguf import read_gguf
from edgewise.models.gguf_types import GgufFile
from edgewise.models.hf_form.byte_alphabet import SPACE_MARK, unescape
from edgewise.models.tokenizer import END_TOKEN_TEXTS

__all__ = ["Vocabulary"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class _Kind(IntEnum):
    """llama.cpp's numbers for kinds of tokens."""

    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    BYTE = 6


class Vocabulary:
    """A codec over a GGUF vocabulary; see :class:`edgewise.runtimes.stepped.TextCodec`."""

    def __init__(
        self,
        path: Path,
        split: Callable[[Sequence[str]], list[list[int]]],
        surroundings: Callable[[], tuple[list[int], list[int]]],
    ) -> None:
        """Read the vocabulary.

        Args:
            path: The GGUF file.
            split: Token ids of each of several texts, special tokens not recognised.
            surroundings: Ids that belong before and after a text.

        Raises:
            UnsupportedError: the kind of tokenizer is not one whose bytes are known here.
        """
        file = read_gguf(path)
        self._split = split
        self._surroundings = surroundings
        self._around: tuple[list[int], list[int]] | None = None
        tokens = _texts(file)
        kinds = _kinds(file, tokens)
        spell = _spelling(file)
        self._bytes = [
            _bytes_of(text, kind, spell) for text, kind in zip(tokens, kinds, strict=True)
        ]
        special = {_Kind.UNKNOWN, _Kind.CONTROL, _Kind.USER_DEFINED}
        self._special = sorted(
            (
                (text, index)
                for index, (text, kind) in enumerate(zip(tokens, kinds, strict=True))
                if kind in special and text
            ),
            key=lambda entry: -len(entry[0]),
        )

    def __len__(self) -> int:
        """Return how many tokens there are."""
        return len(self._bytes)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the token ids of ``text``."""
        parts: list[str | int] = [text] if text else []
        if parse_special:
            parts = self._cut(parts)
        plain = [part for part in parts if isinstance(part, str)]
        found = iter(self._split(plain) if plain else [])
        ids: list[int] = []
        for part in parts:
            ids += [part] if isinstance(part, int) else next(found)
        if not add_special:
            return ids
        if self._around is None:
            self._around = self._surroundings()
        before, after = self._around
        return [*before, *ids, *after]

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token stands for; empty for a control token.

        Raises:
            AdapterError: there is no such token.
        """
        if not 0 <= token < len(self._bytes):
            raise AdapterError("token-unreadable", f"token {token} is not in the vocabulary")
        return self._bytes[token]

    def _cut(self, parts: list[str | int]) -> list[str | int]:
        for text, index in self._special:
            if not any(isinstance(part, str) and text in part for part in parts):
                continue
            cut: list[str | int] = []
            for part in parts:
                if isinstance(part, int):
                    cut.append(part)
                    continue
                pieces = part.split(text)
                for number, piece in enumerate(pieces):
                    cut += [index] if number else []
                    cut += [piece] if piece else []
            parts = cut
        return parts


def _texts(file: GgufFile) -> tuple[str, ...]:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, tuple) or not tokens:
        raise UnsupportedError("gguf-without-vocabulary", f"{file.path} holds no vocabulary")
    return tuple(str(token) for token in tokens)


def _kinds(file: GgufFile, tokens: tuple[str, ...]) -> list[int]:
    """Return each token's kind; llama.cpp makes every token that ends an answer a control token."""
    told = file.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(told, tuple) or len(told) != len(tokens):
        told = (1,) * len(tokens)
    return [
        _Kind.CONTROL if text in END_TOKEN_TEXTS else int(kind)
        for text, kind in zip(tokens, told, strict=True)
    ]


def _spelling(file: GgufFile) -> Callable[[str], bytes]:
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return unescape
    if kind in {"llama", "gemma4"}:
        return lambda text: text.replace(SPACE_MARK, " ").encode("utf-8", "surrogateescape")
    raise UnsupportedError(
        "tokenizer-unsupported",
        f"the bytes of a tokenizer of the kind {kind!r} are not known to this runtime",
        hint="llamacpp runs such a model",
    )


def _bytes_of(text: str, kind: int, spell: Callable[[str], bytes]) -> bytes:
    if kind in {_Kind.CONTROL, _Kind.UNKNOWN}:
        return b""
    if kind == _Kind.USER_DEFINED:
        return text.encode("utf-8", "surrogateescape")
    match = _BYTE.fullmatch(text) if kind == _Kind.BYTE else None
    return bytes([int(match[1], 16)]) if match else spell(text)
