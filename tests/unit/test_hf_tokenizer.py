"""The HF form's tokenizer gives llama.cpp's ids and bytes, for every vocabulary it is made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.hf_forms import (
    HARD_TEXTS,
    byte_level_vocabulary,
    disagreements,
    edit_json,
    fuzzed_texts,
    llama_vocabulary,
    random_gguf,
    sentencepiece_vocabulary,
)

from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.models.hf_form import gguf_to_hf, hf_to_gguf
from edgewise.models.hf_form.pretokenizers import _TABLE
from edgewise.runtimes.hf_tokenizer import HfTokenizer

TEXTS = [*HARD_TEXTS, *fuzzed_texts(150, seed=3)]
PRE_NAMES = [name for known in _TABLE for name in known.names]


def converted(source: Path, folder: Path) -> HfTokenizer:
    folder.mkdir()
    gguf_to_hf(source, folder, layers=1)
    return HfTokenizer(folder)


def compare(source: Path, ours: HfTokenizer, texts: list[str]) -> None:
    with llama_vocabulary(source) as theirs:
        assert disagreements(ours, theirs, texts) == []
        odd = [
            token
            for token in range(theirs.size)
            if ours.token_bytes(token) != theirs.token_bytes(token)
        ]
        assert odd == []


@pytest.mark.parametrize("pre", PRE_NAMES)
def test_byte_level_like_llama_cpp(tmp_path: Path, pre: str) -> None:
    vocabulary = byte_level_vocabulary() | {"pre": pre}
    source = random_gguf(tmp_path / "m.gguf", vocabulary=vocabulary)
    ours = converted(source, tmp_path / "hf")
    compare(source, ours, TEXTS)
    back = tmp_path / "back.gguf"
    hf_to_gguf(tmp_path / "hf", back)
    compare(back, ours, TEXTS)


@pytest.mark.parametrize("add_space_prefix", [True, False])
def test_sentencepiece_like_llama_cpp(tmp_path: Path, add_space_prefix: bool) -> None:
    vocabulary = sentencepiece_vocabulary(add_space_prefix=add_space_prefix)
    source = random_gguf(tmp_path / "m.gguf", vocabulary=vocabulary)
    ours = converted(source, tmp_path / "hf")
    compare(source, ours, TEXTS)
    back = tmp_path / "back.gguf"
    hf_to_gguf(tmp_path / "hf", back)
    compare(back, ours, TEXTS)
    # Without the scores of tokenizer.model, the order of the merges has to do.
    (tmp_path / "hf" / "tokenizer.model").unlink()
    ranked = tmp_path / "ranked.gguf"
    assert "derived" in hf_to_gguf(tmp_path / "hf", ranked).notes[0]
    compare(ranked, ours, TEXTS)


@pytest.mark.parametrize("add_bos", [True, False, None])
def test_start_token(tmp_path: Path, add_bos: bool | None) -> None:
    vocabulary = byte_level_vocabulary() | {"pre": "llama-bpe", "add_eos_token": True}
    if add_bos is None:
        del vocabulary["add_bos_token"]  # llama.cpp's default for this pre-tokenizer is to add it
    else:
        vocabulary["add_bos_token"] = add_bos
    source = random_gguf(tmp_path / "m.gguf", vocabulary=vocabulary)
    ours = converted(source, tmp_path / "hf")
    compare(source, ours, list(HARD_TEXTS))
    ids = ours.tokenize("a", add_special=True, parse_special=False)
    assert (ids[0] == 1) is (add_bos is not False)
    assert ids[-1] == 2


def test_control_tokens_cannot_be_written_by_a_user(tmp_path: Path) -> None:
    ours = converted(random_gguf(tmp_path / "m.gguf"), tmp_path / "hf")
    text = "<|im_end|>"
    assert ours.tokenize(text, add_special=False, parse_special=True) == [2]
    plain = ours.tokenize(text, add_special=False, parse_special=False)
    assert 2 not in plain
    assert b"".join(map(ours.token_bytes, plain)) == text.encode()
    assert ours.token_bytes(2) == b""


def test_bytes_join_to_the_text(tmp_path: Path) -> None:
    for number, vocabulary in enumerate(
        (byte_level_vocabulary(), sentencepiece_vocabulary(add_space_prefix=False))
    ):
        source = random_gguf(tmp_path / f"{number}.gguf", vocabulary=vocabulary)
        ours = converted(source, tmp_path / f"hf{number}")
        for text in TEXTS:
            ids = ours.tokenize(text, add_special=False, parse_special=False)
            # SentencePiece cannot tell its mark from a space.
            expected = text.replace("▁", " ") if number else text
            assert b"".join(map(ours.token_bytes, ids)) == expected.encode()


def test_ids_beyond_the_vocabulary_are_empty(tmp_path: Path) -> None:
    ours = converted(random_gguf(tmp_path / "m.gguf"), tmp_path / "hf")
    assert ours.vocab_size == len(byte_level_vocabulary()["tokens"])
    assert ours.token_bytes(ours.vocab_size) == b""
    assert ours.token_bytes(-1) == b""


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="model-unreadable"):
        HfTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(IntegrityError, match="hf-tokenizer-invalid"):
        HfTokenizer(tmp_path)
    folder = tmp_path / "hf"
    converted(random_gguf(tmp_path / "m.gguf"), folder)
    edit_json(folder / "tokenizer.json", decoder=None)
    with pytest.raises(UnsupportedError, match="tokenizer-unsupported"):
        HfTokenizer(folder)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2_path", "gemma_path"])
def test_real_vocabularies(tmp_path: Path, request: pytest.FixtureRequest, model: str) -> None:
    source: Path = request.getfixturevalue(model)
    ours = converted(source, tmp_path / "hf")
    texts = [*HARD_TEXTS, *fuzzed_texts(500, seed=5)]
    with llama_vocabulary(source) as theirs:
        assert disagreements(ours, theirs, texts) == []
        odd: list[Any] = [
            json.dumps(theirs.token_bytes(token).decode("utf-8", "replace"))
            for token in range(theirs.size)
            if ours.token_bytes(token) != theirs.token_bytes(token)
        ]
    # llama.cpp takes Gemma's HTML tag </s> for an end of text, against what the file says.
    assert len(odd) <= (model == "gemma_path")
