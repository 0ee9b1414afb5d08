"""GGUF headers that show wllama the same tensors under another vocabulary.

wllama 3 takes text and answers with text: a prompt cannot be given as token numbers, and the
probability of a token whose bytes are no UTF-8 by themselves cannot be had at all (its JSON
writer gives up). Both are questions of spelling only. :func:`numbered_header` spells token 12 as
``<12>``, leaving every tensor and every setting of the architecture as it is, so prompts are
exact and the whole distribution can be read. :func:`splitter_header` does the reverse: the real
vocabulary on a model of one empty layer, which costs a few MB and tokenizes as the runtime does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edgewise.errors import UnsupportedError
from edgewise.models.gguf import read_gguf
from edgewise.models.gguf_types import GgmlType, GgufFile, ValueType

__all__ = ["Header", "numbered_header", "splitter_header"]

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_HEAD_BYTES: Final = 24
_ALIGNMENT: Final = 32
_USER_DEFINED: Final = 4  # llama.cpp's number for tokens that are found in text before all others
_WIDTH: Final = 32  # one quantisation block; the least a layer can have
_BYTES_EACH: Final = {
    ValueType.UINT8: 1,
    ValueType.INT8: 1,
    ValueType.BOOL: 1,
    ValueType.UINT16: 2,
    ValueType.INT16: 2,
    ValueType.UINT32: 4,
    ValueType.INT32: 4,
    ValueType.FLOAT32: 4,
    ValueType.UINT64: 8,
    ValueType.INT64: 8,
    ValueType.FLOAT64: 8,
}
_DROPPED: Final = ("tokenizer.", "split.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What to put before tensor data.

    Attributes:
        body: The header, padded to where tensor data starts.
        data_offset_bytes: Where tensor data starts in the original file; 0 when there is none.
        padding_bytes: Zero bytes that follow instead of data.
    """

    body: bytes
    data_offset_bytes: int = 0
    padding_bytes: int = 0


def numbered_header(path: Path) -> Header:
    """Return a header under which token N of the model is spelled ``<N>``.

    Raises:
        InputError: the file cannot be read.
        IntegrityError: it is no sound GGUF file.
        UnsupportedError: it names no vocabulary.
    """
    file = read_gguf(path)
    count = len(_tokens(file))
    raw = _Raw(path, file)
    entries = [entry for key, entry in raw.entries if not key.startswith(_DROPPED)]
    entries += [
        _text("tokenizer.ggml.model", "llama"),
        _texts("tokenizer.ggml.tokens", [f"<{index}>".encode() for index in range(count)]),
        _floats("tokenizer.ggml.scores", [0.0] * count),
        _ints("tokenizer.ggml.token_type", [_USER_DEFINED] * count),
        *(
            _flag(f"tokenizer.ggml.{name}", value=False)
            for name in ("add_bos_token", "add_eos_token", "add_space_prefix")
        ),
    ]
    head = _head(file.version, len(file.tensors), entries) + raw.tensor_index
    return Header(
        body=head + bytes(-len(head) % file.alignment), data_offset_bytes=file.data_offset_bytes
    )


def splitter_header(path: Path) -> Header:
    """Return the header of a model of one empty layer with the real vocabulary.

    Raises:
        InputError: the file cannot be read.
        IntegrityError: it is no sound GGUF file.
        UnsupportedError: it names no vocabulary.
    """
    file = read_gguf(path)
    count = len(_tokens(file))
    raw = _Raw(path, file)
    entries = [
        _text("general.architecture", "llama"),
        *(
            _count(f"llama.{name}", value)
            for name, value in (
                ("vocab_size", count),
                ("context_length", 256),
                ("embedding_length", _WIDTH),
                ("block_count", 1),
                ("feed_forward_length", _WIDTH),
                ("rope.dimension_count", _WIDTH),
                ("attention.head_count", 1),
                ("attention.head_count_kv", 1),
            )
        ),
        _float("llama.attention.layer_norm_rms_epsilon", 1e-5),
        *(
            entry
            for key, entry in raw.entries
            if key.startswith("tokenizer.") and not key.startswith("tokenizer.chat_template")
        ),
    ]
    square = (_WIDTH, _WIDTH)
    shapes = {"token_embd.weight": (_WIDTH, count), "output_norm.weight": (_WIDTH,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}.weight"] = square
    for name in ("attn_norm", "ffn_norm"):
        shapes[f"blk.0.{name}.weight"] = (_WIDTH,)
    index, size = _index(shapes)
    head = _head(3, len(shapes), entries) + index
    return Header(body=head + bytes(-len(head) % _ALIGNMENT), padding_bytes=size)


def _tokens(file: GgufFile) -> tuple[object, ...]:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, tuple) or not tokens:
        raise UnsupportedError(
            "gguf-without-vocabulary",
            f"{file.path} holds no vocabulary, so nothing can be asked of it in a browser",
            hint="convert the checkpoint again, with its tokenizer",
        )
    return tokens


class _Raw:
    """The bytes of a header that :func:`read_gguf` has already found sound."""

    def __init__(self, path: Path, file: GgufFile) -> None:
        with path.open("rb") as source:
            self._bytes = source.read(file.data_offset_bytes)
        self._at = _HEAD_BYTES
        (n_kv,) = _U64.unpack_from(self._bytes, 16)
        self.entries = [self._entry() for _ in range(n_kv)]
        start = self._at
        for _ in file.tensors:
            self._skip_text()
            self._at += 4 + 8 * self._u32() + 4 + 8
        self.tensor_index = self._bytes[start : self._at]

    def _entry(self) -> tuple[str, bytes]:
        start = self._at
        key = self._skip_text().decode()
        self._at += 4
        self._skip_value(ValueType(_U32.unpack_from(self._bytes, self._at - 4)[0]))
        return key, self._bytes[start : self._at]

    def _skip_value(self, kind: ValueType) -> None:
        if kind is ValueType.STRING:
            self._skip_text()
        elif kind is ValueType.ARRAY:
            element = ValueType(self._u32())
            (count,) = _U64.unpack_from(self._bytes, self._at + 4)
            self._at += 12
            if element is ValueType.STRING:
                for _ in range(count):
                    self._skip_text()
            else:
                self._at += count * _BYTES_EACH[element]
        else:
            self._at += _BYTES_EACH[kind]

    def _skip_text(self) -> bytes:
        (length,) = _U64.unpack_from(self._bytes, self._at)
        start = self._at + 8
        self._at = start + length
        return self._bytes[start : self._at]

    def _u32(self) -> int:
        """Return the number here, without moving on."""
        return int(_U32.unpack_from(self._bytes, self._at)[0])


def _head(version: int, n_tensors: int, entries: list[bytes]) -> bytes:
    start = b"GGUF" + struct.pack("<IQQ", version, n_tensors, len(entries))
    return start + b"".join(entries)


def _index(shapes: dict[str, tuple[int, ...]]) -> tuple[bytes, int]:
    """Return the tensor index of empty tensors, and how many bytes of data they take."""
    parts, offset = [], 0
    for name, shape in shapes.items():
        kind = GgmlType.F32 if len(shape) == 1 else GgmlType.Q8_0
        elements = shape[0] * (shape[1] if len(shape) > 1 else 1)
        parts.append(_string(name.encode()) + _U32.pack(len(shape)))
        parts.append(struct.pack(f"<{len(shape)}QIQ", *shape, kind.value, offset))
        offset += elements // kind.block_size * kind.type_size
        offset += -offset % _ALIGNMENT
    return b"".join(parts), offset


def _string(text: bytes) -> bytes:
    return _U64.pack(len(text)) + text


def _key(key: str, kind: ValueType) -> bytes:
    return _string(key.encode()) + _U32.pack(kind)


def _array(key: str, kind: ValueType, count: int, body: bytes) -> bytes:
    return _key(key, ValueType.ARRAY) + _U32.pack(kind) + _U64.pack(count) + body


def _text(key: str, value: str) -> bytes:
    return _key(key, ValueType.STRING) + _string(value.encode())


def _texts(key: str, values: list[bytes]) -> bytes:
    return _array(key, ValueType.STRING, len(values), b"".join(map(_string, values)))


def _floats(key: str, values: list[float]) -> bytes:
    return _array(key, ValueType.FLOAT32, len(values), struct.pack(f"<{len(values)}f", *values))


def _ints(key: str, values: list[int]) -> bytes:
    return _array(key, ValueType.INT32, len(values), struct.pack(f"<{len(values)}i", *values))


def _flag(key: str, *, value: bool) -> bytes:
    return _key(key, ValueType.BOOL) + bytes([value])


def _count(key: str, value: int) -> bytes:
    return _key(key, ValueType.UINT32) + _U32.pack(value)


def _float(key: str, value: float) -> bytes:
    return _key(key, ValueType.FLOAT32) + struct.pack("<f", value)
