"""GGUF to the HF form and back: nothing is lost, nothing is left half-built, bytes are the same."""

from __future__ import annotations

import hashlib
import json
import resource
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.hf_forms import random_gguf, random_tensors

from edgewise.errors import InputError, IntegrityError, ResourceError, UnsupportedError
from edgewise.models import model_shape, read_gguf, read_safetensors, tokenizer_identity
from edgewise.models.hf_form import (
    HF_ARCHITECTURES,
    convert,
    gguf_to_hf,
    hf_to_gguf,
    read_hf,
    streams,
)
from edgewise.models.hf_form.rope import llama3_factors

QUANT = gguf.GGMLQuantizationType
ROWS = 273


def to_hf(source: Path, folder: Path, **options: Any) -> Path:
    folder.mkdir()
    gguf_to_hf(source, folder, **options)
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def raw_tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    body = path.read_bytes()
    return {
        one.name: (
            one.type.name,
            one.shape,
            body[one.offset_bytes : one.offset_bytes + one.size_bytes],
        )
        for one in read_gguf(path).tensors
    }


@pytest.mark.parametrize("matrices", [QUANT.F32, QUANT.F16, QUANT.BF16])
@pytest.mark.parametrize("architecture", HF_ARCHITECTURES)
def test_round_trip_is_exact(
    tmp_path: Path, architecture: str, matrices: gguf.GGMLQuantizationType
) -> None:
    source = random_gguf(tmp_path / "m.gguf", architecture, matrices=matrices)
    folder = to_hf(source, tmp_path / "hf")
    back = tmp_path / "back.gguf"
    made = hf_to_gguf(folder, back, dtype=matrices.name.lower())
    assert raw_tensors(back) == raw_tensors(source)
    assert made.notes == ()
    before, after = read_gguf(source), read_gguf(back)
    assert tokenizer_identity(after).digest == tokenizer_identity(before).digest
    assert model_shape(after) == model_shape(before)


@pytest.mark.parametrize("architecture", HF_ARCHITECTURES)
def test_the_folder_is_described_as_the_gguf_is(tmp_path: Path, architecture: str) -> None:
    source = random_gguf(
        tmp_path / "m.gguf", architecture, metadata={"tokenizer.chat_template": "{{ 'hi' }}"}
    )
    file = read_gguf(source)
    read = read_hf(to_hf(source, tmp_path / "hf"))
    assert read.shape == model_shape(file)
    identity = tokenizer_identity(file)
    assert read.tokenizer.digest == identity.digest
    assert read.tokenizer.end_token_ids == identity.end_token_ids == (0, 2)
    assert read.tokenizer.special_tokens == identity.special_tokens
    assert read.generation["eos_token_id"] == [0, 2]
    assert read.template().source == "{{ 'hi' }}"
    assert read.template().name == "hf:chat_template"


def test_untied_output(tmp_path: Path) -> None:
    source = random_gguf(
        tmp_path / "m.gguf", tensors=random_tensors("llama", rows=ROWS, tied=False)
    )
    folder = to_hf(source, tmp_path / "hf")
    assert read_hf(folder).shape.tied_embeddings is False
    hf_to_gguf(folder, tmp_path / "back.gguf", dtype="f32")
    assert raw_tensors(tmp_path / "back.gguf") == raw_tensors(source)


def test_values_by_the_reference_package(tmp_path: Path) -> None:
    # Rows of 64 divide blocks of 32 only; K-quants are covered by the real Gemma file.
    for kind in (QUANT.Q8_0, QUANT.Q4_0, QUANT.Q4_1, QUANT.Q5_0, QUANT.Q5_1):
        tensors = random_tensors("qwen3", rows=ROWS)
        source = random_gguf(
            tmp_path / f"{kind.name}.gguf", "qwen3", tensors=tensors, matrices=kind
        )
        folder = tmp_path / kind.name
        folder.mkdir()
        made = gguf_to_hf(source, folder)
        assert made.dequantised
        assert made.tools["gguf"]
        name = "model.layers.1.mlp.down_proj.weight"
        written = _values(folder, name)
        array = tensors["blk.1.ffn_down.weight"]
        expected = gguf.quants.dequantize(gguf.quants.quantize(array, kind), kind)
        assert np.array_equal(written, expected)


def _values(folder: Path, name: str) -> np.ndarray:
    file = read_safetensors(folder / "model.safetensors")
    info = next(one for one in file.tensors if one.name == name)
    raw = (folder / "model.safetensors").read_bytes()
    piece = raw[info.offset_bytes : info.offset_bytes + info.size_bytes]
    return np.frombuffer(piece, dtype="<f4").reshape(info.shape)


def test_rows_of_query_and_key_are_interleaved_in_llama_only(tmp_path: Path) -> None:
    for architecture, changes in (("llama", True), ("smollm3", True), ("qwen3", False)):
        tensors = random_tensors(architecture, rows=ROWS)
        source = random_gguf(tmp_path / f"{architecture}.gguf", architecture, tensors=tensors)
        folder = to_hf(source, tmp_path / architecture)
        rows = tensors["blk.0.attn_k.weight"]
        if changes:
            rows = rows.reshape(2, 8, 2, 64).swapaxes(1, 2).reshape(32, 64)
        assert np.array_equal(_values(folder, "model.layers.0.self_attn.k_proj.weight"), rows)
        value = _values(folder, "model.layers.0.self_attn.v_proj.weight")
        assert np.array_equal(value, tensors["blk.0.attn_v.weight"])


def test_pieces_of_any_size_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random_gguf(tmp_path / "m.gguf", matrices=QUANT.Q8_0)
    whole = digests(to_hf(source, tmp_path / "whole"))
    monkeypatch.setattr(streams, "CHUNK_ELEMENTS", 100)
    assert digests(to_hf(source, tmp_path / "pieces")) == whole


def test_first_layers(tmp_path: Path) -> None:
    source = random_gguf(tmp_path / "m.gguf", "gemma3", n_layers=8)
    folder = to_hf(source, tmp_path / "hf", layers=7)
    shape = read_hf(folder).shape
    assert shape.n_layers == 7
    assert shape.is_sliding == (True,) * 5 + (False, True)
    whole = model_shape(read_gguf(source))
    assert shape.is_sliding == whole.is_sliding[:7]
    assert shape.vocab_size == whole.vocab_size
    (tmp_path / "none").mkdir()
    for asked in (0, 9):
        with pytest.raises(InputError, match="layers-out-of-range"):
            gguf_to_hf(source, tmp_path / "none", layers=asked)


def test_matrices_in_sixteen_bits(tmp_path: Path) -> None:
    source = random_gguf(tmp_path / "m.gguf", matrices=QUANT.F16)
    folder = to_hf(source, tmp_path / "hf", dtype="f16")
    types = {one.name: one.dtype for one in read_safetensors(folder / "model.safetensors").tensors}
    assert types["model.norm.weight"] == "F32"
    assert types["model.embed_tokens.weight"] == "F16"
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float16"
    hf_to_gguf(folder, tmp_path / "back.gguf", dtype="f16")
    assert raw_tensors(tmp_path / "back.gguf") == raw_tensors(source)


def test_too_large_for_sixteen_bits(tmp_path: Path) -> None:
    tensors = random_tensors("llama", rows=ROWS)
    tensors["blk.1.ffn_up.weight"][3, 5] = 70_000
    source = random_gguf(tmp_path / "m.gguf", tensors=tensors)
    folder = tmp_path / "hf"
    folder.mkdir()
    with pytest.raises(UnsupportedError, match="float16-overflow"):
        gguf_to_hf(source, folder, dtype="f16")
    assert list(folder.iterdir()) == []


def test_bfloat16_rounds_to_even(tmp_path: Path) -> None:
    tensors = random_tensors("llama", rows=ROWS)
    source = random_gguf(tmp_path / "m.gguf", tensors=tensors)
    folder = to_hf(source, tmp_path / "hf")
    hf_to_gguf(folder, tmp_path / "b.gguf", dtype="bf16")
    expected = gguf.quants.quantize(tensors["blk.0.ffn_up.weight"], QUANT.BF16)
    assert raw_tensors(tmp_path / "b.gguf")["blk.0.ffn_up.weight"][2] == expected.tobytes()


def test_llama3_factors_become_parameters(tmp_path: Path) -> None:
    parameters = {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    tensors = random_tensors("llama", rows=ROWS)
    tensors["rope_freqs.weight"] = llama3_factors(parameters, theta=500_000.0, head_dim=16)
    theta = {"llama.rope.freq_base": 500_000.0}
    source = random_gguf(tmp_path / "m.gguf", tensors=tensors, metadata=theta)
    folder = to_hf(source, tmp_path / "hf")
    scaling = json.loads((folder / "config.json").read_text())["rope_scaling"]
    assert scaling == {"rope_type": "llama3", **parameters}
    hf_to_gguf(folder, tmp_path / "back.gguf", dtype="f32")
    assert raw_tensors(tmp_path / "back.gguf") == raw_tensors(source)

    tensors["rope_freqs.weight"][2] += 1
    other = random_gguf(tmp_path / "o.gguf", tensors=tensors, metadata=theta)
    (tmp_path / "none").mkdir()
    with pytest.raises(UnsupportedError, match="rope-scaling-unsupported"):
        gguf_to_hf(other, tmp_path / "none")


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "rope-scaling-unsupported"),
        ({"llama.attention.scale": 0.5}, "hf-setting-unsupported"),
        ({"llama.rope.dimension_count": 8}, "hf-setting-unsupported"),
        ({"tokenizer.ggml.pre": "falcon"}, "pre-tokenizer-unsupported"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer-unsupported"),
    ],
)
def test_what_cannot_be_carried_is_refused(
    tmp_path: Path, metadata: dict[str, Any], code: str
) -> None:
    source = random_gguf(tmp_path / "m.gguf", metadata=metadata)
    folder = tmp_path / "hf"
    folder.mkdir()
    with pytest.raises(UnsupportedError, match=code):
        gguf_to_hf(source, folder)
    assert list(folder.iterdir()) == []


def test_linear_scaling_is_carried(tmp_path: Path) -> None:
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    source = random_gguf(tmp_path / "m.gguf", metadata=scaling)
    folder = to_hf(source, tmp_path / "hf")
    hf_to_gguf(folder, tmp_path / "back.gguf")
    back = read_gguf(tmp_path / "back.gguf").metadata
    assert {key: back[key] for key in scaling} == scaling


def test_other_architectures_are_named(tmp_path: Path) -> None:
    source = random_gguf(tmp_path / "m.gguf", "gemma")
    (tmp_path / "hf").mkdir()
    with pytest.raises(UnsupportedError, match="'gemma'") as caught:
        gguf_to_hf(source, tmp_path / "hf")
    assert caught.value.code == "hf-architecture-unsupported"
    assert "gemma3" in (caught.value.hint or "")


def test_a_tensor_without_a_place(tmp_path: Path) -> None:
    tensors = random_tensors("llama", rows=ROWS)
    tensors["blk.0.attn_q.bias"] = np.ones(64, dtype=np.float32)
    source = random_gguf(tmp_path / "m.gguf", tensors=tensors)
    (tmp_path / "hf").mkdir()
    with pytest.raises(UnsupportedError, match=r"blk\.0\.attn_q\.bias"):
        gguf_to_hf(source, tmp_path / "hf")


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    tensors = random_tensors("llama", rows=ROWS)
    tensors["blk.0.ffn_up.weight"][0, 0] = np.nan
    source = random_gguf(tmp_path / "m.gguf", tensors=tensors)
    folder = tmp_path / "hf"
    folder.mkdir()
    with pytest.raises(IntegrityError, match="tensor-not-finite"):
        gguf_to_hf(source, folder)
    assert list(folder.iterdir()) == []


def test_without_the_package_that_reads_quantised_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = random_gguf(tmp_path / "plain.gguf")
    quantised = random_gguf(tmp_path / "q.gguf", matrices=QUANT.Q8_0)
    monkeypatch.setitem(sys.modules, "gguf", None)
    to_hf(plain, tmp_path / "hf")  # floats do not need it
    (tmp_path / "none").mkdir()
    with pytest.raises(UnsupportedError, match="gguf-package-missing"):
        gguf_to_hf(quantised, tmp_path / "none")
    assert list((tmp_path / "none").iterdir()) == []


def test_disk_full(tmp_path: Path) -> None:
    source = random_gguf(tmp_path / "m.gguf")
    folder = to_hf(source, tmp_path / "hf")
    (tmp_path / "small").mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(ResourceError, match="file-too-large"):
            gguf_to_hf(source, tmp_path / "small")
        with pytest.raises(ResourceError, match="file-too-large"):
            hf_to_gguf(folder, tmp_path / "small.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "small").iterdir()) == []
    assert not (tmp_path / "small.gguf").exists()


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random_gguf(tmp_path / "m.gguf")
    folder = tmp_path / "hf"
    folder.mkdir()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "write_safetensors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gguf_to_hf(source, folder)
    assert list(folder.iterdir()) == []


def test_destinations_in_use(tmp_path: Path) -> None:
    source = random_gguf(tmp_path / "m.gguf")
    folder = to_hf(source, tmp_path / "hf")
    with pytest.raises(InputError, match="destination-not-empty"):
        gguf_to_hf(source, folder)
    assert read_hf(folder).shape.n_layers == 2
    with pytest.raises(InputError, match="destination-exists"):
        hf_to_gguf(folder, source)
    with pytest.raises(InputError, match="dtype-unknown"):
        hf_to_gguf(folder, tmp_path / "x.gguf", dtype="q4_0")


@pytest.mark.model
@pytest.mark.slow
def test_real_weights_twice(tmp_path: Path, smollm2_path: Path) -> None:
    first = to_hf(smollm2_path, tmp_path / "a", layers=2)
    second = to_hf(smollm2_path, tmp_path / "b", layers=2)
    assert digests(first) == digests(second)
    read = read_hf(first)
    identity = tokenizer_identity(read_gguf(smollm2_path))
    assert read.tokenizer.digest == identity.digest
    assert read.tokenizer.end_token_ids == identity.end_token_ids
    hf_to_gguf(first, tmp_path / "a.gguf", dtype="f32")
    again = to_hf(tmp_path / "a.gguf", tmp_path / "c")
    assert digests(again)["model.safetensors"] == digests(first)["model.safetensors"]
    assert digests(again)["tokenizer.json"] == digests(first)["tokenizer.json"]
