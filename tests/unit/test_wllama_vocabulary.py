"""Token bytes, and how special tokens are cut out of a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.builders import tiny_gguf

from edgewise.errors import AdapterError, UnsupportedError
from edgewise.runtimes.wllama.vocabulary import Vocabulary

TOKENS = ["<unk>", "<s>", "<|im|>", "<|im|>2", "a", "\u0120b", "\u00c3\u00a9", "\u00f0\u0141", "xx"]
TYPES = [2, 3, 3, 4, 1, 1, 1, 1, 4]


def vocabulary(path: Path, **metadata: object) -> tuple[Vocabulary, list[list[str]]]:
    seen: list[list[str]] = []

    def split(texts: Sequence[str]) -> list[list[int]]:
        seen.append(list(texts))
        return [[100 + len(text)] for text in texts]

    values = {"tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.token_type": TYPES, **metadata}
    file = tiny_gguf(path / "a.gguf", metadata=values)
    return Vocabulary(file, split, lambda: ([1], [])), seen


def test_bytes_of_byte_pair_tokens(tmp_path: Path) -> None:
    known, _ = vocabulary(tmp_path)
    found = [known.token_bytes(token) for token in range(len(known))]
    assert found == [
        b"", b"", b"", b"<|im|>2", b"a", b" b", "\u00e9".encode(), b"\xf0\x9f", b"xx"
    ]  # fmt: skip


def test_bytes_of_sentencepiece_tokens(tmp_path: Path) -> None:
    known, _ = vocabulary(
        tmp_path,
        **{
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "</s>", "\u2581the", "<0xE2>", "<0x0A>", "<tool>"],
            "tokenizer.ggml.token_type": [2, 4, 1, 6, 6, 4],
        },
    )
    found = [known.token_bytes(token) for token in range(len(known))]
    assert found == [b"", b"", b" the", b"\xe2", b"\n", b"<tool>"]


def test_specials_are_cut_out_longest_first(tmp_path: Path) -> None:
    known, seen = vocabulary(tmp_path)
    text = "hi<|im|>2<|im|>you<s>"
    ids = known.tokenize(text, add_special=False, parse_special=True)
    assert ids == [102, 3, 2, 103, 1]
    assert seen == [["hi", "you"]]


def test_specials_stay_text_unless_asked_for(tmp_path: Path) -> None:
    known, seen = vocabulary(tmp_path)
    assert known.tokenize("<s>", add_special=False, parse_special=False) == [103]
    assert seen == [["<s>"]]


def test_around_a_text(tmp_path: Path) -> None:
    known, _ = vocabulary(tmp_path)
    assert known.tokenize("abc", add_special=True, parse_special=False) == [1, 103]
    assert known.tokenize("", add_special=True, parse_special=True) == [1]
    assert known.tokenize("", add_special=False, parse_special=True) == []


def test_unknown_tokens_and_kinds(tmp_path: Path) -> None:
    known, _ = vocabulary(tmp_path)
    for token in (-1, len(TOKENS)):
        with pytest.raises(AdapterError):
            known.token_bytes(token)
    with pytest.raises(UnsupportedError, match="'t5'"):
        vocabulary(tmp_path, **{"tokenizer.ggml.model": "t5"})
