"""The shape of a model, from metadata that its tensors confirm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders import N_EMBD, N_FF, TOKENS, tiny_gguf, tiny_tensors

from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.models import KNOWN_ARCHITECTURES, model_shape, read_gguf


def shape_of(tmp_path: Path, **overrides: Any) -> Any:
    return model_shape(read_gguf(tiny_gguf(tmp_path / "m.gguf", **overrides)))


def test_tiny_llama(tmp_path: Path) -> None:
    shape = shape_of(tmp_path)
    elements = sum(int(np.prod(s)) for s in tiny_tensors().values())
    assert shape.architecture == "llama"
    assert (shape.n_layers, shape.n_embd) == (2, N_EMBD)
    assert shape.n_ff == (N_FF, N_FF)
    assert shape.n_heads == (4, 4)
    assert shape.n_kv_heads == (2, 2)
    assert (shape.head_dim_k, shape.head_dim_v) == (8, 8)
    assert shape.vocab_size == len(TOKENS)
    assert shape.context_length_trained == 128
    assert shape.rope_theta == 10000.0
    assert shape.sliding_window is None
    assert shape.is_sliding == (False, False)
    assert shape.tied_embeddings
    assert shape.parameter_count == elements
    assert shape.weights_bytes == shape.weights_bytes_per_token == elements * 4
    assert shape.bytes_by_type == {"F32": elements * 4}
    assert (shape.name, shape.licence) == ("Tiny", "apache-2.0")


def test_untied_model_reads_one_row_of_the_embedding(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, shapes=tiny_tensors(tied=False))
    assert not shape.tied_embeddings
    table = len(TOKENS) * N_EMBD * 4
    assert shape.weights_bytes_per_token == shape.weights_bytes - table + N_EMBD * 4


def test_defaults_of_optional_keys(tmp_path: Path) -> None:
    shape = shape_of(
        tmp_path,
        drop=["llama.rope.freq_base", "llama.attention.head_count_kv", "general.name"],
        shapes=tiny_tensors(n_kv_heads=4),
    )
    assert shape.rope_theta == 10000.0
    assert shape.n_kv_heads == (4, 4)
    assert shape.name is None


def test_explicit_head_dimension(tmp_path: Path) -> None:
    shape = shape_of(
        tmp_path,
        metadata={"llama.attention.key_length": 16, "llama.attention.value_length": 16},
        shapes=tiny_tensors(head_dim=16),
    )
    assert (shape.head_dim_k, shape.head_dim_v) == (16, 16)


def test_numbers_per_layer(tmp_path: Path) -> None:
    shapes = tiny_tensors()
    shapes["blk.1.attn_k.weight"] = shapes["blk.1.attn_v.weight"] = (8, N_EMBD)
    shape = shape_of(tmp_path, metadata={"llama.attention.head_count_kv": [2, 1]}, shapes=shapes)
    assert shape.n_kv_heads == (2, 1)


def gemma(tmp_path: Path, architecture: Any = "gemma3", n_layers: Any = 12, **metadata: Any) -> Any:
    return shape_of(
        tmp_path,
        architecture=architecture,
        metadata={
            f"{architecture}.block_count": n_layers,
            **{f"{architecture}.{key}": value for key, value in metadata.items()},
        },
        shapes=tiny_tensors(n_layers=n_layers),
    )


def test_gemma3_every_sixth_layer_is_global(tmp_path: Path) -> None:
    shape = gemma(tmp_path, **{"attention.sliding_window": 512})
    assert shape.sliding_window == 512
    assert [i for i, slides in enumerate(shape.is_sliding) if not slides] == [5, 11]


def test_gemma3_period_named_by_the_file(tmp_path: Path) -> None:
    shape = gemma(
        tmp_path, **{"attention.sliding_window": 512, "attention.sliding_window_pattern": 4}
    )
    assert [i for i, slides in enumerate(shape.is_sliding) if not slides] == [3, 7, 11]


def test_gemma3_flags_named_by_the_file(tmp_path: Path) -> None:
    flags = [True, False] * 6
    shape = gemma(
        tmp_path, **{"attention.sliding_window": 512, "attention.sliding_window_pattern": flags}
    )
    assert shape.is_sliding == tuple(flags)


@pytest.mark.parametrize("window", [None, 0])
def test_gemma3_without_a_window_does_not_slide(tmp_path: Path, window: Any) -> None:
    keys = {} if window is None else {"attention.sliding_window": window}
    shape = gemma(tmp_path, **keys)
    assert shape.sliding_window is None
    assert not any(shape.is_sliding)


def test_gemma2_has_a_default_window_on_every_other_layer(tmp_path: Path) -> None:
    shape = gemma(tmp_path, "gemma2", 4)
    assert shape.sliding_window == 4096
    assert shape.is_sliding == (True, False, True, False)


@pytest.mark.parametrize("architecture", ["llama", "phi3", "qwen2"])
def test_a_window_that_the_loader_ignores_is_ignored(tmp_path: Path, architecture: Any) -> None:
    shapes = tiny_tensors()
    if architecture == "phi3":
        for layer in range(2):
            shapes[f"blk.{layer}.ffn_up.weight"] = (2 * N_FF, N_EMBD)
            del shapes[f"blk.{layer}.ffn_gate.weight"]
    shape = shape_of(
        tmp_path,
        architecture=architecture,
        metadata={f"{architecture}.attention.sliding_window": 64},
        shapes=shapes,
    )
    assert shape.sliding_window is None


def test_fused_attention(tmp_path: Path) -> None:
    shapes = tiny_tensors()
    for layer in range(2):
        for part in "qkv":
            del shapes[f"blk.{layer}.attn_{part}.weight"]
        shapes[f"blk.{layer}.attn_qkv.weight"] = (32 + 16 + 16, N_EMBD)
    assert shape_of(tmp_path, shapes=shapes).n_kv_heads == (2, 2)


@pytest.mark.parametrize(
    "key",
    [
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
    ],
)
def test_missing_key(tmp_path: Path, key: Any) -> None:
    with pytest.raises(IntegrityError) as caught:
        shape_of(tmp_path, drop=[key])
    assert caught.value.code == "gguf-missing-metadata"
    assert caught.value.context["field"] == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 0),
        ("llama.block_count", 100_000),
        ("llama.block_count", "two"),
        ("llama.block_count", True),
        ("llama.context_length", 0),
        ("llama.embedding_length", 4_000_000_000),
        ("llama.feed_forward_length", [64]),
        ("llama.feed_forward_length", [64, -1]),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.head_count_kv", 0),
        ("llama.attention.key_length", 0),
        ("llama.rope.freq_base", 0.0),
        ("llama.rope.freq_base", float("nan")),
        ("llama.rope.freq_base", "big"),
        ("general.name", 7),
    ],
)
def test_absurd_key(tmp_path: Path, key: Any, value: Any) -> None:
    with pytest.raises(IntegrityError) as caught:
        shape_of(tmp_path, metadata={key: value})
    assert caught.value.code == "gguf-bad-metadata"
    assert caught.value.context["field"] == key


def test_absurd_sliding_pattern(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError) as caught:
        gemma(
            tmp_path,
            **{"attention.sliding_window": 512, "attention.sliding_window_pattern": [True] * 3},
        )
    assert caught.value.context["field"] == "gemma3.attention.sliding_window_pattern"


def test_unknown_architecture_names_the_known(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        shape_of(tmp_path, architecture="mamba9")
    assert caught.value.code == "architecture-unsupported"
    assert caught.value.context["known"] == list(KNOWN_ARCHITECTURES)
    assert {"llama", "gemma3"} <= set(KNOWN_ARCHITECTURES)


def test_mixture_of_experts_is_refused_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        shape_of(tmp_path, metadata={"llama.expert_count": 8})
    assert caught.value.code == "architecture-unsupported"


def test_one_part_of_several_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        shape_of(tmp_path, metadata={"split.count": 2})
    assert caught.value.code == "gguf-split"


@pytest.mark.parametrize(
    "name",
    [name for name in tiny_tensors() if not name.startswith("blk.0.")],
)
def test_missing_tensor(tmp_path: Path, name: str) -> None:
    shapes = tiny_tensors()
    del shapes[name]
    with pytest.raises(IntegrityError) as caught:
        shape_of(tmp_path, shapes=shapes)
    assert caught.value.code == "gguf-missing-tensor"
    assert caught.value.context["field"] == name


@pytest.mark.parametrize(
    "name", [n for n in tiny_tensors(tied=False) if not n.startswith("blk.0.")]
)
def test_tensor_of_another_shape(tmp_path: Path, name: str) -> None:
    shapes = tiny_tensors(tied=False)
    shapes[name] = (*shapes[name][:-1], shapes[name][-1] + 32)
    with pytest.raises(IntegrityError) as caught:
        shape_of(tmp_path, shapes=shapes)
    assert caught.value.code == "gguf-tensor-shape-mismatch"
    assert caught.value.context["field"] == name
    assert caught.value.context["found"] == list(shapes[name][::-1])


def test_vocabulary_of_another_size(tmp_path: Path) -> None:
    shapes = tiny_tensors()
    shapes["token_embd.weight"] = (len(TOKENS) + 1, N_EMBD)
    with pytest.raises(IntegrityError) as caught:
        shape_of(tmp_path, shapes=shapes)
    assert caught.value.code == "gguf-tensor-shape-mismatch"


@pytest.mark.parametrize("name", ["blk.2.attn_q.weight", "blk.x.attn_q.weight"])
def test_tensor_of_no_layer(tmp_path: Path, name: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        shape_of(tmp_path, shapes={**tiny_tensors(), name: (32, N_EMBD)})
    assert caught.value.code == "gguf-unexpected-tensor"
    assert caught.value.context["field"] == name


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    shape = model_shape(read_gguf(smollm2_path))
    assert (shape.architecture, shape.n_layers, shape.n_embd) == ("llama", 30, 576)
    assert set(shape.n_heads) == {9}
    assert set(shape.n_kv_heads) == {3}
    assert shape.head_dim_k == shape.head_dim_v == 64
    assert shape.parameter_count == 134_515_008  # as published: 135M
    assert shape.tied_embeddings
    assert shape.bytes_by_type == {"Q4_1": 66_355_200, "Q8_0": 30_081_024, "F32": 140_544}
    assert shape.licence == "apache-2.0"
