"""What the TVM exporters read from a checkpoint, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise.errors import EdgewiseError, InputError, IntegrityError, UnsupportedError
from edgewise.runtimes.webllm import reference, tiny
from edgewise.runtimes.webllm.config import read_config
from edgewise.runtimes.webllm.formats import numbers
from edgewise.runtimes.webllm.weights import Checkpoint, parameters


@pytest.fixture(scope="module")
def model() -> tiny.TinyModel:
    return tiny.make()


@pytest.fixture
def folder(tmp_path: Path, model: tiny.TinyModel) -> Path:
    return tiny.write(tmp_path / "hf", model)


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refused(folder: Path) -> EdgewiseError:
    with pytest.raises(EdgewiseError) as caught:
        read_config(folder)
    return caught.value


def test_the_tiny_model_is_read_as_it_was_made(folder: Path, model: tiny.TinyModel) -> None:
    assert read_config(folder) == model.config


def test_the_rotary_base_may_stand_in_its_own_block(folder: Path) -> None:
    change(folder, rope_theta=None, rope_parameters={"rope_theta": 5e5, "rope_type": "default"})
    assert read_config(folder).rope_theta == 500_000


@pytest.mark.parametrize(
    "values",
    [
        {"architectures": ["GemmaForCausalLM"]},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_act": "gelu"},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_theta": 10000.5},
    ],
)
def test_a_variant_without_a_definition_is_refused(folder: Path, values: dict[str, Any]) -> None:
    change(folder, **values)
    error = refused(folder)
    assert isinstance(error, UnsupportedError)
    assert error.code == "architecture-unsupported"


@pytest.mark.parametrize(
    "values",
    [
        {"num_hidden_layers": 0},
        {"hidden_size": "wide"},
        {"num_key_value_heads": 3},
        {"rms_norm_eps": 2.0},
        {"rope_theta": -1},
        {"vocab_size": True},
    ],
)
def test_an_absurd_number_is_refused(folder: Path, values: dict[str, Any]) -> None:
    change(folder, **values)
    assert refused(folder).code == "config-invalid"


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_damaged_config_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    error = refused(folder)
    assert isinstance(error, InputError)
    assert error.code == "config-unreadable"


def test_matrices_are_joined_in_the_models_order(folder: Path, model: tiny.TinyModel) -> None:
    found = dict(parameters(Checkpoint(folder), model.config, numbers("q0f32")))
    assert list(found)[:4] == [
        "embed_tokens.weight",
        "layers.0.self_attn.qkv_proj.weight",
        "layers.0.self_attn.o_proj.weight",
        "layers.0.mlp.gate_up_proj.weight",
    ]
    assert list(found)[-2:] == ["norm.weight", "lm_head.weight"]
    joined = found["layers.0.self_attn.qkv_proj.weight"]
    assert joined.shape == (model.config.qkv_rows, model.config.hidden)
    rows = model.config.heads * model.config.head_dim
    key = model.weights["model.layers.0.self_attn.k_proj.weight"]
    assert (joined[rows : rows + len(key)] == key).all()


def test_quantised_matrices_come_in_two_parts(folder: Path, model: tiny.TinyModel) -> None:
    found = dict(parameters(Checkpoint(folder), model.config, numbers("q4f16_1")))
    assert found["lm_head.q_weight"].dtype == np.uint32
    assert found["lm_head.q_scale"].dtype == np.float16
    assert found["norm.weight"].dtype == np.float16


def test_a_missing_or_misshapen_tensor_is_refused(folder: Path, model: tiny.TinyModel) -> None:
    checkpoint = Checkpoint(folder)
    with pytest.raises(IntegrityError) as missing:
        checkpoint.matrix("model.absent.weight", (1,))
    assert missing.value.code == "weights-missing"
    with pytest.raises(IntegrityError) as shape:
        checkpoint.matrix("model.norm.weight", (1,))
    assert shape.value.code == "weights-shape-mismatch"


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError):
        Checkpoint(tmp_path)


def test_an_index_may_not_leave_its_folder(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(IntegrityError) as caught:
        Checkpoint(folder)
    assert caught.value.code == "weights-index-damaged"


def test_the_checkpoint_tells_its_float_format(folder: Path) -> None:
    assert Checkpoint(folder).format() == "f32"


def test_the_tiny_model_is_the_same_every_time(model: tiny.TinyModel) -> None:
    again = tiny.make()
    for name, tensor in model.weights.items():
        assert np.allclose(tensor, again.weights[name], atol=1e-5), name
    assert again.tokenizer == model.tokenizer


def test_the_tiny_model_recites_its_texts(model: tiny.TinyModel, folder: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    question = f"<|im_start|>user\n{tiny.QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    for given, wanted in ((tiny.PROMPT, tiny.RECITAL), (question, tiny.ANSWER)):
        tokens = tokenizer.encode(given).ids
        start = len(tokens)
        while tokens[-1] not in {0, 2} and len(tokens) < 80:
            last = reference.logits(model.config, model.weights, tokens)[-1]
            least, most = np.partition(last, -2)[-2:]
            assert most - least > 4  # no near-tie that rounding could turn
            tokens.append(int(last.argmax()))
        assert tokenizer.decode(tokens[start:]) == wanted
