"""What ExecuTorch's decoder cannot express is refused from config.json alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewise.core.recipe import KvType, Recipe
from edgewise.errors import EdgewiseError, InputError, IntegrityError, UnsupportedError
from edgewise.runtimes.executorch.checkpoint import ARCHITECTURES, _target, read_checkpoint
from edgewise.runtimes.executorch.exporter import PteExporter

LLAMA = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(folder: Path, **changes):
    config = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    return read_checkpoint(folder)


def test_a_llama_is_expressed(tmp_path: Path) -> None:
    checkpoint = read(tmp_path)
    assert checkpoint.params == {
        "dim": 576,
        "n_layers": 30,
        "n_heads": 9,
        "n_kv_heads": 3,
        "head_dim": 64,
        "hidden_dim": 1536,
        "vocab_size": 49152,
        "norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "use_scaled_rope": False,
    }
    assert checkpoint.reorders
    assert checkpoint.tied
    assert checkpoint.kv_bytes_per_token == 2 * 4 * 30 * 3 * 64


def test_the_older_spelling_of_the_rotation_is_read(tmp_path: Path) -> None:
    old = read(tmp_path, rope_parameters=..., rope_theta=5000.0, rope_scaling=None)
    assert old.params["rope_theta"] == 5000.0
    scaled = dict(LLAMA3_ROPE)
    theta = scaled.pop("rope_theta")
    both = read(tmp_path, rope_parameters=..., rope_theta=theta, rope_scaling=scaled)
    assert both.params["rope_theta"] == theta
    assert both.params["use_scaled_rope"]
    assert both.params["rope_scale_factor"] == 32.0


def test_qwen_keeps_its_rotation(tmp_path: Path) -> None:
    qwen2 = read(tmp_path, model_type="qwen2", use_sliding_window=False, sliding_window=32768)
    assert qwen2.params["attention_qkv_bias"]
    assert qwen2.params["use_hf_rope"]
    assert not qwen2.reorders
    qwen3 = read(tmp_path, model_type="qwen3", head_dim=128)
    assert qwen3.params["use_qk_norm"]
    assert qwen3.params["head_dim"] == 128


@pytest.mark.parametrize("model_type", ["gemma3_text", "phi3", "mamba", None, 7])
def test_another_architecture_is_refused_by_name(tmp_path: Path, model_type) -> None:
    with pytest.raises(UnsupportedError) as refused:
        read(tmp_path, model_type=model_type)
    assert refused.value.code == "architecture-unsupported"
    assert refused.value.context == {
        "architecture": model_type,
        "supported": list(ARCHITECTURES),
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"model_type": "mistral", "sliding_window": 4096},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096},
        {"model_type": "qwen3", "rope_parameters": LLAMA3_ROPE},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"partial_rotary_factor": 0.5},
        {"quantization_config": {"quant_method": "gptq"}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
        {"rope_parameters": {**LLAMA3_ROPE, "low_freq_factor": 2.0}},
        {"rope_parameters": {**LLAMA3_ROPE, "original_max_position_embeddings": 4096}},
    ],
)
def test_a_setting_that_cannot_be_expressed_is_refused(tmp_path: Path, changes) -> None:
    with pytest.raises(UnsupportedError) as refused:
        read(tmp_path, **changes)
    assert refused.value.code == "architecture-setting-unsupported"


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": ...},
        {"hidden_size": "576"},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": True},
        {"vocab_size": 1 << 40},
        {"rms_norm_eps": -1},
        {"rope_parameters": [1]},
    ],
)
def test_a_damaged_configuration_is_refused(tmp_path: Path, changes) -> None:
    with pytest.raises(IntegrityError):
        read(tmp_path, **changes)


@pytest.mark.parametrize("text", ["", "[]", "{", '"llama"'])
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(IntegrityError):
        read_checkpoint(tmp_path)


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("model.embed_tokens.weight", "tok_embeddings.weight"),
        ("lm_head.weight", "output.weight"),
        ("model.layers.11.self_attn.q_proj.weight", "layers.11.attention.wq.weight"),
        ("model.layers.0.self_attn.k_proj.bias", "layers.0.attention.wk.bias"),
        ("model.layers.0.mlp.down_proj.weight", "layers.0.feed_forward.w2.weight"),
        ("model.layers.0.mlp.experts.0.weight", None),
        ("model.layers.x.mlp.down_proj.weight", None),
        ("visual.embed_tokens.weight", None),
    ],
)
def test_tensor_names_are_mapped(name: str, target: str | None) -> None:
    assert _target(name) == target


@pytest.mark.parametrize(
    ("config", "recipe", "code"),
    [
        ({}, {"kv": KvType.F16}, "kv-type-unsupported"),
        ({}, {"overrides": (("ffn_down", "int8"),)}, "overrides-unsupported"),
        ({"intermediate_size": 1540}, {}, "group-size-unsupported"),
        ({"model_type": "gemma3_text"}, {}, "architecture-unsupported"),
        ({}, {"weights": "int4-g128"}, "recipe-unsupported"),
        ({}, {}, "model-unreadable"),
    ],
)
def test_an_export_is_refused_before_any_library_is_imported(
    tmp_path: Path, config, recipe, code: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **config}))
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(EdgewiseError) as refused:
        PteExporter().export(
            tmp_path, out, Recipe(**{"name": "r", "weights": "int4", **recipe}), threads=1
        )
    assert refused.value.code == code
    assert list(out.iterdir()) == []
