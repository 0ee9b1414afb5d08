"""A text that cannot be anywhere by chance, and every form in which it may turn up.

The canary is five words of 50 random bits each, so that a part of it that somebody cut off, or
wrapped into another line, is found too: any twenty characters of it hold a word. Its characters are
a-z and 2-7: escaping for JSON, URLs, HTML, shells and SQL leaves them as they are. What is
compressed, encrypted, hashed or split inside a word is not found.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from edgewise.errors import InputError

__all__ = ["Canary"]

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_WORDS, _WORD_CHARACTERS = 5, 10
_WORD = re.compile(r"[a-z2-7]{10,}")
_TOKENS_MIN = 6  # in a row; fewer can occur by chance in a file of many numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """What a prompt carries so that it is found again.

    Attributes:
        text: The words, with a space between two. Put it into the prompt as it is.
        tokens: The same as token ids of the model, where those are to be found too.
    """

    text: str
    tokens: tuple[tuple[int, ...], ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.words or not all(_WORD.fullmatch(word) for word in self.words):
            raise InputError(
                "egress-canary-invalid",
                "a canary is words of at least 10 characters from a-z and 2-7",
                hint="make one: Canary.mint()",
            )

    @classmethod
    def mint(cls) -> Canary:
        """Return a canary that nobody has seen before."""
        words = (
            "".join(secrets.choice(_ALPHABET) for _ in range(_WORD_CHARACTERS))
            for _ in range(_WORDS)
        )
        return cls(text=" ".join(words))

    @property
    def words(self) -> list[str]:
        """Return the words."""
        return self.text.split(" ")

    def with_tokens(self, *sequences: Sequence[int]) -> Canary:
        """Return the canary with token ids of its text; the first and last of each are left out.

        Those at the edges depend on what stands beside the canary in the prompt.

        Raises:
            InputError: a sequence is too short to be found with certainty.
        """
        inner = tuple(tuple(sequence[1:-1]) for sequence in sequences)
        if any(len(tokens) < _TOKENS_MIN for tokens in inner):
            raise InputError(
                "egress-canary-invalid",
                f"fewer than {_TOKENS_MIN + 2} token ids could be met by chance",
                hint="tokenise the canary's whole text",
            )
        return Canary(text=self.text, tokens=self.tokens + inner)

    def patterns(self) -> list[tuple[str, bytes]]:
        """Return the forms to look for, each with its name."""
        found: dict[bytes, str] = {}
        for word in self.words:
            for name, data in _forms(word):
                found.setdefault(data, name)
        for tokens in self.tokens:
            for name, data in _token_forms(tokens):
                found.setdefault(data, name)
        return [(name, data) for data, name in found.items()]

    def mask(self, text: str) -> str:
        """Return a text with every textual form of the canary replaced, so that it can be shown."""
        for name, data in sorted(self.patterns(), key=lambda pair: -len(pair[1])):
            if not name.startswith("tokens"):
                text = text.replace(data.decode("latin-1"), f"[canary:{name}]")
        return text


def _forms(word: str) -> Iterable[tuple[str, bytes]]:
    plain = word.encode("ascii")
    yield "plain", plain
    yield "upper case", plain.upper()
    yield "reversed", plain[::-1]
    yield "hex", plain.hex().encode()
    yield "HEX", plain.hex().upper().encode()
    yield "UTF-16", word.encode("utf-16-le")
    yield "UTF-16BE", word.encode("utf-16-be")
    yield "UTF-32", word.encode("utf-32-le")
    yield "UTF-32BE", word.encode("utf-32-be")
    yield "percent", "".join(f"%{byte:02x}" for byte in plain).encode()
    yield "PERCENT", "".join(f"%{byte:02X}" for byte in plain).encode()
    yield "JSON \\u", "".join(f"\\u{byte:04x}" for byte in plain).encode()
    for shift in range(3):
        yield "base64", _base64_inside(plain, shift)


def _base64_inside(data: bytes, shift: int) -> bytes:
    """Return what base64 makes of data ``shift`` bytes after a boundary, less what is shared.

    Six bits of text are a character: those at the edges also hold bits of the neighbours. Letters
    and digits as they come here are the same in the alphabet for URLs.
    """
    encoded = base64.b64encode(bytes(shift) + data)
    start = (0, 2, 3)[shift]
    end = (shift + len(data)) * 8 // 6
    return encoded[start:end]


def _token_forms(tokens: Sequence[int]) -> Iterable[tuple[str, bytes]]:
    for size in (4, 8, 2):
        if max(tokens) < 1 << (8 * size - 1):
            yield f"tokens int{size * 8}", b"".join(t.to_bytes(size, "little") for t in tokens)
    yield "tokens msgpack", b"".join(map(_msgpack_int, tokens))
    yield "tokens JSON", json.dumps(list(tokens))[1:-1].encode()
    yield "tokens JSON", json.dumps(list(tokens), separators=(",", ":"))[1:-1].encode()


def _msgpack_int(value: int) -> bytes:
    """Return an unsigned integer as MessagePack writes it (specification of 2017, int family)."""
    if value < 0x80:
        return bytes([value])
    for mark, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4)):
        if value < 1 << (8 * size):
            return bytes([mark]) + value.to_bytes(size, "big")
    return b"\xcf" + value.to_bytes(8, "big")
