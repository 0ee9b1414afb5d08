"""Reading a checkpoint given as a folder: what is missing, malformed or hostile is named."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hf_forms import edit_json, random_gguf, sentencepiece_vocabulary

from edgewise.errors import EdgewiseError, InputError, IntegrityError, UnsupportedError
from edgewise.models import read_safetensors
from edgewise.models.hf_form import gguf_to_hf, read_hf
from edgewise.models.hf_form.sentencepiece import read_pieces, write_pieces


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound")
    source = random_gguf(root / "m.gguf", metadata={"tokenizer.chat_template": "{{ 1 }}"})
    folder = root / "hf"
    folder.mkdir()
    gguf_to_hf(source, folder)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "hf"))


def refusal(folder: Path) -> EdgewiseError:
    with pytest.raises(EdgewiseError) as caught:
        read_hf(folder)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    error = refusal(folder)
    assert isinstance(error, InputError)
    assert (error.code, error.context["file"]) == ("hf-file-missing", name)


def test_no_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none").code == "model-not-found"


def test_optional_files(folder: Path) -> None:
    for name in ("generation_config.json", "tokenizer_config.json"):
        (folder / name).unlink()
    read = read_hf(folder)
    assert (read.tokenizer.bos_id, read.tokenizer.eos_id) == (1, 2)  # config.json names them
    assert read.tokenizer.end_token_ids == (0, 2)
    with pytest.raises(UnsupportedError, match="template-missing"):
        read.template()


def test_template_in_a_file_of_its_own(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ 2 }}")
    assert read_hf(folder).template().source == "{{ 2 }}"


def test_templates_by_name(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    edit_json(folder / "tokenizer_config.json", chat_template=named)
    assert read_hf(folder).template().source == "b"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff\xfe{}", b"[" * 100_000])
def test_no_json(folder: Path, name: str, raw: bytes) -> None:
    (folder / name).write_bytes(raw)
    error = refusal(folder)
    assert isinstance(error, IntegrityError)
    assert (error.code, error.context["file"]) == ("hf-json-invalid", name)


def test_too_large(folder: Path) -> None:
    with (folder / "config.json").open("r+b") as stream:
        stream.truncate(1 << 30)
    assert refusal(folder).code == "hf-json-invalid"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_pipe_is_never_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert refusal(folder).code in {"model-unreadable", "model-not-a-file"}


def test_pickles_are_never_opened(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    error = refusal(folder)
    assert isinstance(error, UnsupportedError)
    assert error.code == "hf-pickle-weights"


def split(folder: Path) -> dict[str, str]:
    """Split the weights into two shards and return the index's map."""
    whole = folder / "model.safetensors"
    raw, file = whole.read_bytes(), read_safetensors(whole)
    placed = {}
    for number in (0, 1):
        name = f"model-0000{number + 1}-of-00002.safetensors"
        header: dict[str, Any] = {"__metadata__": file.metadata}
        body = b""
        for info in file.tensors[number::2]:
            data = raw[info.offset_bytes : info.offset_bytes + info.size_bytes]
            header[info.name] = {
                "dtype": info.dtype,
                "shape": list(info.shape),
                "data_offsets": [len(body), len(body) + len(data)],
            }
            body += data
            placed[info.name] = name
        head = json.dumps(header).encode()
        (folder / name).write_bytes(struct.pack("<Q", len(head)) + head + body)
    whole.unlink()
    return placed


def write_index(folder: Path, placed: Any) -> None:
    text = json.dumps({"metadata": {}, "weight_map": placed})
    (folder / "model.safetensors.index.json").write_text(text)


def test_shards(folder: Path) -> None:
    shape = read_hf(folder).shape
    write_index(folder, split(folder))
    assert read_hf(folder).shape == shape


@pytest.mark.parametrize(
    "change",
    [
        lambda placed: {**placed, "model.norm.weight": "../outside.safetensors"},
        lambda placed: {**placed, "model.norm.weight": "/etc/passwd"},
        lambda placed: {**placed, "model.norm.weight": "model.bin"},
        lambda placed: {**placed, "model.norm.weight": 3},
        lambda placed: {**placed, "extra.weight": placed["model.norm.weight"]},
        lambda placed: {key: min(set(placed.values())) for key in placed},
        lambda _: {},
        lambda _: None,
    ],
)
def test_hostile_index(folder: Path, change: Callable[[Any], Any]) -> None:
    write_index(folder, change(split(folder)))
    assert refusal(folder).code == "hf-index-invalid"


def test_missing_shard(folder: Path) -> None:
    placed = split(folder)
    write_index(folder, placed)
    (folder / placed["model.norm.weight"]).unlink()
    assert refusal(folder).code == "model-not-found"


def test_truncated_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert refusal(folder).code == "safetensors-data-truncated"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"hidden_size": 32}, "gguf-tensor-shape-mismatch"),
        ({"vocab_size": 274}, "gguf-tensor-shape-mismatch"),
        ({"num_hidden_layers": 3}, "hf-tensor-missing"),
        ({"num_hidden_layers": 1}, "hf-tensor-unexpected"),
        ({"num_attention_heads": 0}, "hf-config-invalid"),
        ({"num_attention_heads": "4"}, "hf-config-invalid"),
        ({"rms_norm_eps": -1}, "hf-config-invalid"),
        ({"max_position_embeddings": ...}, "hf-config-invalid"),
        ({"model_type": ...}, "hf-config-invalid"),
        ({"model_type": "mamba"}, "hf-architecture-unsupported"),
        ({"quantization_config": {"bits": 4}}, "hf-quantized"),
        ({"attention_bias": True}, "hf-setting-unsupported"),
        ({"hidden_act": "gelu"}, "hf-setting-unsupported"),
        ({"tie_word_embeddings": False}, "hf-tensor-missing"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
            "rope-scaling-unsupported",
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "hf-config-invalid"),
    ],
)
def test_config_that_is_not_this_models(folder: Path, changes: dict[str, Any], code: str) -> None:
    edit_json(folder / "config.json", **changes)
    assert refusal(folder).code == code


def test_mistral_is_llama_by_another_name(folder: Path) -> None:
    view = read_hf(folder).view
    edit_json(folder / "config.json", model_type="mistral", sliding_window=None)
    assert read_hf(folder).view == view
    edit_json(folder / "config.json", sliding_window=128)
    assert refusal(folder).code == "hf-setting-unsupported"


def test_older_spelling_of_the_rotary_settings(folder: Path) -> None:
    theta = read_hf(folder).shape.rope_theta
    edit_json(folder / "config.json", rope_parameters=...)
    assert read_hf(folder).shape.rope_theta == theta == 20000
    scaling = {"type": "linear", "factor": 2.0}
    edit_json(folder / "config.json", rope_scaling=scaling)
    assert read_hf(folder).view.metadata["llama.rope.scaling.factor"] == 2


def test_a_tokenizer_with_more_tokens_than_rows(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["one too many"] = 273
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    error = refusal(folder)
    assert isinstance(error, IntegrityError)
    assert (error.code, error.context["rows"]) == ("hf-tokenizer-mismatch", 273)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("tokenizer_config.json", {"eos_token": "<not there>"}),
        ("generation_config.json", {"eos_token_id": [2, 9999]}),
        ("generation_config.json", {"eos_token_id": -1}),
    ],
)
def test_special_tokens_of_another_model(folder: Path, name: str, changes: dict[str, Any]) -> None:
    edit_json(folder / name, **changes)
    error = refusal(folder)
    assert isinstance(error, IntegrityError)
    assert error.code == "hf-tokenizer-mismatch"


def test_fewer_tokens_than_rows_are_filled_up(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    del tokenizer["model"]["vocab"]["ìķ"]
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:-1]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    view = read_hf(folder).view.metadata
    tokens, types = view["tokenizer.ggml.tokens"], view["tokenizer.ggml.token_type"]
    assert isinstance(tokens, tuple)
    assert isinstance(types, tuple)
    assert (tokens[-1], types[-1]) == ("[PAD272]", 5)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "tokenizer-unsupported"),
        ({"model": {"type": "BPE", "vocab": []}}, "hf-tokenizer-invalid"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}}}, "hf-tokenizer-invalid"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}}}, "hf-tokenizer-invalid"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": ["ab"]}}, "hf-tokenizer-invalid"),
        ({"added_tokens": [{"id": 3}]}, "hf-tokenizer-invalid"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre-tokenizer-unsupported"),
        ({"pre_tokenizer": {"type": "Sequence"}}, "hf-tokenizer-invalid"),
        ({"normalizer": {"type": "Lowercase"}}, "tokenizer-unsupported"),
    ],
)
def test_tokenizers_that_llama_cpp_would_read_otherwise(
    folder: Path, changes: dict[str, Any], code: str
) -> None:
    edit_json(folder / "tokenizer.json", **changes)
    assert refusal(folder).code == code


def test_normalisation_that_gguf_cannot_carry_is_said(folder: Path) -> None:
    edit_json(folder / "tokenizer.json", normalizer={"type": "NFC"})
    assert "NFC" in read_hf(folder).notes[0]


def test_a_second_output_matrix_is_said(folder: Path) -> None:
    edit_json(folder / "config.json", tie_word_embeddings=True)
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    body = raw[8 + length :]
    header["lm_head.weight"] = {
        "dtype": "F32",
        "shape": [1, 1],
        "data_offsets": [len(body), len(body) + 4],
    }
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body + b"\0\0\0\0")
    assert "lm_head" in read_hf(folder).notes[0]


def test_unknown_number_format(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"'))
    assert refusal(folder).code == "hf-dtype-unsupported"


def test_pieces_survive() -> None:
    words = sentencepiece_vocabulary(add_space_prefix=True)
    pieces = tuple(zip(words["tokens"], words["scores"], words["token_type"], strict=True))
    assert read_pieces(write_pieces(pieces, add_dummy_prefix=True)) == pieces


def test_damaged_pieces_raise_nothing_else() -> None:
    words = sentencepiece_vocabulary(add_space_prefix=True)
    pieces = tuple(zip(words["tokens"], words["scores"], words["token_type"], strict=True))
    raw = write_pieces(pieces[:40], add_dummy_prefix=True)
    rng = random.Random(1)
    for _ in range(3000):
        damaged = bytearray(raw[: rng.randint(0, len(raw))])
        for _ in range(rng.randint(0, 4)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            read_pieces(bytes(damaged))
        except IntegrityError as error:
            assert error.code == "sentencepiece-malformed"  # noqa: PT017 - or nothing is raised


def test_pieces_of_another_vocabulary_are_not_used(tmp_path: Path) -> None:
    vocabulary = sentencepiece_vocabulary(add_space_prefix=False)
    source = random_gguf(tmp_path / "m.gguf", vocabulary=vocabulary)
    folder = tmp_path / "hf"
    folder.mkdir()
    gguf_to_hf(source, folder)
    raw = write_pieces([("x", 0.0, 1)], add_dummy_prefix=True)
    (folder / "tokenizer.model").write_bytes(raw)
    assert "another vocabulary" in read_hf(folder).notes[0]
