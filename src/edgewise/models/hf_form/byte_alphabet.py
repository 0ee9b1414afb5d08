"""The byte-level alphabet: one printable character for each byte, as GPT-2 introduced it."""

from __future__ import annotations

from typing import Final

__all__ = ["BYTE_OF_CHAR", "CHAR_OF_BYTE", "SPACE_MARK", "byte_of_token", "unescape"]

# SentencePiece writes a space as this.
SPACE_MARK: Final = "\u2581"

_PRINTABLE: Final = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}


def _alphabet() -> dict[int, str]:
    """Printable bytes stand for themselves, the others for characters from 256 up, in order."""
    others = iter(range(256, 512))
    return {byte: chr(byte) if byte in _PRINTABLE else chr(next(others)) for byte in range(256)}


CHAR_OF_BYTE: Final = _alphabet()
BYTE_OF_CHAR: Final = {char: byte for byte, char in CHAR_OF_BYTE.items()}


def unescape(token: str) -> bytes:
    """Return the bytes that a token of the byte-level alphabet stands for.

    A character outside the alphabet, as in an added token, stands for itself.
    """
    out = bytearray()
    for char in token:
        byte = BYTE_OF_CHAR.get(char)
        if byte is None:
            out += char.encode("utf-8", "surrogatepass")
        else:
            out.append(byte)
    return bytes(out)


def byte_of_token(token: str) -> int | None:
    """Return the byte of a fallback token ``<0x..>``, ``None`` for any other token."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return int(token[3:5], 16)
        except ValueError:
            return None
    return None
