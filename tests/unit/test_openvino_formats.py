"""What the openvino adapter offers, refuses and reports, without OpenVINO."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgewise.core.formats import Activation
from edgewise.core.recipe import KvType, Recipe, resolve
from edgewise.errors import EdgewiseError, InputError, UnsupportedError
from edgewise.runtimes.openvino import adapter
from edgewise.runtimes.openvino.calibration import module_of, outliers_of
from edgewise.runtimes.openvino.exporter import OpenVinoExporter
from edgewise.runtimes.openvino.feed import FrontendFeed, IrFeed
from edgewise.runtimes.openvino.formats import (
    FORMATS,
    GGUF_FORMATS,
    HF_FORMATS,
    KV_ELEMENT_BYTES,
    KV_PROPERTY,
    dynamic_group,
)
from edgewise.runtimes.openvino.report import is_reference, partition_of


def chosen(**stated: object) -> str:
    recipe = Recipe(name="x", **stated)  # type: ignore[arg-type]
    return resolve(recipe, HF_FORMATS, runtime="openvino").name


def test_every_format_has_a_name_of_its_own() -> None:
    assert len({offer.name for offer in FORMATS}) == len(FORMATS)


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        ("f32", "f32"),
        ("f16", "f16"),
        ("int8", "int8-sym"),
        ("int8-channel-asym", "int8-asym"),
        ("int4", "int4-g32-sym-e8"),
        ("int4-g64-asym", "int4-g64-asym-e8"),
        ("w4a16", "int4-g32-sym-e8"),
        ("w4a8", "w4a8-g32-sym-e8"),
        ("w8a8", "w8a8-sym"),
        ("w8a8s", "w8a8s"),
    ],
)
def test_a_recipe_comes_to_the_first_format_that_meets_it(weights: str, name: str) -> None:
    assert chosen(weights=weights) == name


def test_embedding_and_head_are_chosen_with_the_weights() -> None:
    assert chosen(weights="int4-g32-sym", embedding="int4", output="int4") == "int4-g32-sym-e4"
    assert chosen(weights="int4", output="int8-channel-sym") == "int4-g32-sym-e8s"


@pytest.mark.parametrize(
    "weights", ["bf16", "int4-g16", "int5", "q4_k_m", "int8-g32", "gguf-direct"]
)
def test_what_an_ir_cannot_carry_is_refused_with_what_it_can(weights: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        chosen(weights=weights)
    assert raised.value.code == "recipe-unsupported"
    assert raised.value.hint


def test_methods_are_part_of_the_offer() -> None:
    assert chosen(weights="int4", method="awq") == "int4-g32-sym-e8"
    with pytest.raises(UnsupportedError):
        chosen(weights="int8", method="gptq")


def test_only_dynamic_formats_round_activations_at_run_time() -> None:
    for offer in FORMATS:
        assert bool(dynamic_group(offer)) is (offer.activation is Activation.INT8_DYNAMIC)


def test_every_kv_type_has_a_property_and_a_size() -> None:
    assert KV_PROPERTY.keys() == KV_ELEMENT_BYTES.keys()
    assert KvType.Q8_0 not in KV_PROPERTY


def test_direct_recipes_are_made_from_a_gguf() -> None:
    for offer in GGUF_FORMATS:
        assert adapter.source_form_of(Recipe(name="x", weights=offer.name)) == "gguf"
    assert adapter.source_form_of(Recipe(name="x", weights="int4")) == "hf"


def folder_with(tmp_path: Path, columns: int = 576) -> Path:
    source = tmp_path / "hf"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"dtype": "bfloat16"}))
    (source / "tokenizer.json").write_text("{}")
    header = json.dumps(
        {
            "model.layers.0.self_attn.q_proj.weight": {
                "dtype": "F32",
                "shape": [1, columns],
                "data_offsets": [0, 4 * columns],
            }
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    data = len(header).to_bytes(8, "little") + header + bytes(4 * columns)
    (source / "model.safetensors").write_bytes(data)
    return source


def refusal(source: Path, tmp_path: Path, **stated: object) -> EdgewiseError:
    destination = tmp_path / "out"
    destination.mkdir()
    with pytest.raises(EdgewiseError) as raised:
        OpenVinoExporter().export(
            source,
            destination,
            Recipe(name="x", **stated),  # type: ignore[arg-type]
            threads=1,
        )
    assert not list(destination.iterdir())
    return raised.value


def test_a_group_that_does_not_divide_the_rows_is_refused_early(tmp_path: Path) -> None:
    error = refusal(folder_with(tmp_path), tmp_path, weights="int4-g128")
    assert error.code == "recipe-unsupported"
    assert error.context["nearest"] == "int4-g64-sym-e8"


def test_rows_that_no_group_divides_leave_int8(tmp_path: Path) -> None:
    error = refusal(folder_with(tmp_path, columns=72), tmp_path, weights="int4")
    assert error.context["nearest"] == "int8-sym"


@pytest.mark.parametrize(
    ("stated", "code"),
    [
        ({"weights": "w8a8s"}, "calibration-missing"),
        ({"weights": "int4", "method": "awq"}, "calibration-missing"),
        ({"weights": "int8", "overrides": (("q_proj", "f32"),)}, "overrides-unsupported"),
        ({"weights": "as-is"}, "recipe-unsupported"),  # bfloat16
        ({"weights": "gguf-direct"}, "source-form-wrong"),
    ],
)
def test_recipes_that_cannot_be_honoured_are_refused_before_any_work(
    tmp_path: Path, stated: dict[str, object], code: str
) -> None:
    assert refusal(folder_with(tmp_path), tmp_path, **stated).code == code


def test_an_incomplete_checkpoint_is_named(tmp_path: Path) -> None:
    source = folder_with(tmp_path)
    (source / "tokenizer.json").unlink()
    error = refusal(source, tmp_path, weights="int8")
    assert isinstance(error, InputError)
    assert error.context["missing"] == ["tokenizer.json"]


def test_reference_kernels_count_as_fallbacks_by_name() -> None:
    executed = [
        ("FullyConnectedCompressed", "brgemm_avx512_f32"),
        ("FullyConnectedCompressed", "brgemm_avx512_f32"),
        ("RoPE", "ref_any_f32"),
        ("Convert", "ref_i64"),
        ("Add", "jit_avx512_f32"),
    ]
    report = partition_of(executed, {"Odd": 2}, {"INFERENCE_PRECISION_HINT": "f32"}, ())
    assert report.fallbacks == ("Convert", "RoPE", "Odd")
    assert report.weights == {"CPU brgemm_avx512_f32": 2}
    assert (report.delegated, report.fallen_back) == (3, 4)
    assert not is_reference("reorder_f32")


def test_outliers_stand_eight_times_above_the_median_channel() -> None:
    peaks = np.array([1.0, 1.0, 2.0, 7.9, 8.0, 40.0, 1.0, 1.0, 1.0], np.float32)
    found = outliers_of({"model.layers.0.mlp.down_proj": peaks, "silent": np.zeros(4)})
    assert [(item.channel, item.ratio) for item in found] == [(5, 40.0), (4, 8.0)]
    assert found[0].tensor == "input of model.layers.0.mlp.down_proj"


def test_an_operator_bears_its_modules_name() -> None:
    operator = "__module.model.layers.0.self_attn.q_proj/aten::linear/MatMul"
    assert module_of(operator) == "model.layers.0.self_attn.q_proj"


def test_ir_inputs_continue_where_the_cache_ends() -> None:
    feed = IrFeed({"input_ids", "attention_mask", "position_ids", "beam_idx"}, 16)
    inputs = feed.inputs([7, 8], 3)
    assert inputs["attention_mask"].shape == (1, 5)
    assert inputs["position_ids"].tolist() == [[3, 4]]
    assert set(IrFeed({"input_ids"}, 16).inputs([1], 0)) == {"input_ids"}


def test_frontend_mask_hides_only_what_comes_later() -> None:
    names = {"inp_tokens", "inp_pos", "inp_out_ids", "self_kq_mask"}
    inputs = FrontendFeed(names, 16).inputs([7, 8], 1)
    assert inputs["self_kq_mask"][0, 0].tolist() == [[0.0, 0.0, -np.inf], [0.0, 0.0, 0.0]]
    assert inputs["inp_out_ids"].tolist() == [[[[1]]]]
