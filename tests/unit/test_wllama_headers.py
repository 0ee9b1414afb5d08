"""The headers that show wllama the same tensors under another vocabulary."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from tests.builders import TOKENS, tiny_gguf

from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.models.gguf import read_gguf
from edgewise.runtimes.wllama.headers import numbered_header, splitter_header


@pytest.mark.parametrize("alignment", [None, 64, 8])
def test_numbering_changes_the_vocabulary_and_nothing_else(
    tmp_path: Path, alignment: int | None
) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", alignment=alignment)
    header = numbered_header(path)
    data = path.read_bytes()[header.data_offset_bytes :]
    other = tmp_path / "b.gguf"
    other.write_bytes(header.body + data)
    before, after = read_gguf(path), read_gguf(other)
    assert after.data_offset_bytes == len(header.body)
    assert after.metadata["tokenizer.ggml.tokens"] == tuple(f"<{i}>" for i in range(len(TOKENS)))
    assert set(after.metadata["tokenizer.ggml.token_type"]) == {4}  # type: ignore[arg-type]
    assert after.metadata["tokenizer.ggml.add_bos_token"] is False
    kept = {k: v for k, v in before.metadata.items() if not k.startswith("tokenizer.")}
    assert {k: after.metadata[k] for k in kept} == kept
    assert not any(key.startswith("tokenizer.chat") for key in after.metadata)
    shift = after.data_offset_bytes - before.data_offset_bytes
    moved = [(t.name, t.shape, t.type, t.offset_bytes + shift) for t in before.tensors]
    assert moved == [(t.name, t.shape, t.type, t.offset_bytes) for t in after.tensors]


def test_value_types_survive(tmp_path: Path) -> None:
    """llama.cpp refuses a key whose type changed, so raw bytes are copied, not values."""
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("llama.a", 7)
    writer.add_int64("llama.b", -1)
    writer.add_float64("llama.c", 0.5)
    writer.add_array("llama.d", [1.0, 2.0])
    writer.add_array("llama.e", ["x", "yy"])
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tmp_path / "b.gguf").write_bytes(numbered_header(path).body)
    reader = gguf.GGUFReader(tmp_path / "b.gguf")
    kinds = {name: [t.name for t in reader.fields[f"llama.{name}"].types] for name in "abcde"}
    assert kinds == {
        "a": ["UINT16"],
        "b": ["INT64"],
        "c": ["FLOAT64"],
        "d": ["ARRAY", "FLOAT32"],
        "e": ["ARRAY", "STRING"],
    }


def test_the_splitter_is_a_whole_file_with_the_real_vocabulary(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", architecture="gemma3")
    header = splitter_header(path)
    other = tmp_path / "b.gguf"
    other.write_bytes(header.body + bytes(header.padding_bytes))
    before, after = read_gguf(path), read_gguf(other)
    assert after.trailing_bytes == 0
    assert after.metadata["general.architecture"] == "llama"
    for name in ("model", "pre", "tokens", "token_type", "merges", "bos_token_id"):
        key = f"tokenizer.ggml.{name}"
        assert after.metadata[key] == before.metadata[key]
    assert "tokenizer.chat_template" not in after.metadata
    assert after.tensors[0].shape[1] == len(TOKENS)
    assert other.stat().st_size < 200_000


@pytest.mark.parametrize("make", [numbered_header, splitter_header])
def test_a_file_without_a_vocabulary(tmp_path: Path, make: object) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", drop=["tokenizer.ggml.tokens"])
    with pytest.raises(UnsupportedError, match="no vocabulary"):
        make(path)


@pytest.mark.parametrize("make", [numbered_header, splitter_header])
def test_a_damaged_file(tmp_path: Path, make: object) -> None:
    path = tiny_gguf(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(IntegrityError):
        make(path)
