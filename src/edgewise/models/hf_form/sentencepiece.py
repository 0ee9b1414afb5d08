"""tokenizer.model, SentencePiece's own file: pieces with their scores and types.

tokenizer.json cannot hold the scores from which merges follow; this file can. Only what a
vocabulary needs is written and read, in protobuf's wire format. Nothing read is trusted: lengths
are checked against what is left.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from edgewise.errors import IntegrityError

__all__ = ["Piece", "read_pieces", "write_pieces"]

# Text, score, type. Types have the same numbers as in GGUF.
Piece = tuple[str, float, int]

PIECES_MAX: Final = 1 << 22
_NORMAL: Final = 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MODEL_TYPE_BPE: Final = 2


def write_pieces(pieces: Sequence[Piece], *, add_dummy_prefix: bool) -> bytes:
    """Return a model file of byte-pair merges by score, with byte fallback."""
    out = bytearray()
    for text, score, kind in pieces:
        raw = text.encode()
        body = _field(1, _BYTES) + _varint(len(raw)) + raw
        body += _field(2, _FIXED32) + struct.pack("<f", score)
        if kind != _NORMAL:
            body += _field(3, _VARINT) + _varint(kind)
        out += _field(1, _BYTES) + _varint(len(body)) + body
    trainer = _field(3, _VARINT) + _varint(_MODEL_TYPE_BPE)
    trainer += _field(4, _VARINT) + _varint(len(pieces))
    trainer += _field(35, _VARINT) + _varint(1)  # byte_fallback
    out += _field(2, _BYTES) + _varint(len(trainer)) + trainer
    name = b"identity"
    rules = _field(1, _BYTES) + _varint(len(name)) + name
    rules += _field(3, _VARINT) + _varint(int(add_dummy_prefix))
    rules += _field(4, _VARINT) + _varint(0)  # remove_extra_whitespaces
    rules += _field(5, _VARINT) + _varint(1)  # escape_whitespaces
    out += _field(3, _BYTES) + _varint(len(rules)) + rules
    return bytes(out)


def read_pieces(raw: bytes) -> tuple[Piece, ...]:
    """Return the pieces of a model file.

    Raises:
        IntegrityError: it is no such file (``sentencepiece-malformed``).
    """
    pieces: list[Piece] = []
    try:
        for number, value in _fields(raw):
            if number == 1 and isinstance(value, bytes):
                pieces.append(_piece(value))
            if len(pieces) > PIECES_MAX:
                raise _malformed("it has too many pieces")
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise _malformed(str(error)) from error
    return tuple(pieces)


def _piece(raw: bytes) -> Piece:
    text, score, kind = "", 0.0, _NORMAL
    for number, value in _fields(raw):
        if number == 1 and isinstance(value, bytes):
            text = value.decode()
        elif number == 2 and isinstance(value, float):
            score = value
        elif number == 3 and isinstance(value, int):
            kind = value
    return text, score, kind


def _fields(raw: bytes) -> Iterator[tuple[int, bytes | float | int]]:
    at = 0
    while at < len(raw):
        key, at = _take_varint(raw, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _take_varint(raw, at)
            yield number, value
        elif wire == _FIXED32:
            yield number, struct.unpack_from("<f", raw, at)[0]
            at += 4
        elif wire == _FIXED64:
            at += 8
        elif wire == _BYTES:
            length, at = _take_varint(raw, at)
            if length > len(raw) - at:
                raise _malformed("a field is longer than the file")
            yield number, raw[at : at + length]
            at += length
        else:
            raise _malformed(f"wire type {wire}")


def _take_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _malformed("a number without an end")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _malformed(why: str) -> IntegrityError:
    return IntegrityError(
        "sentencepiece-malformed",
        f"tokenizer.model cannot be read: {why}",
        context={"reason": why},
        hint="fetch the checkpoint again, or remove the file where tokenizer.json is beside it",
    )
