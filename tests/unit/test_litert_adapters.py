"""What the LiteRT runtimes declare and refuse where their libraries are absent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise.core.formats import Activation
from edgewise.core.recipe import KvType, Recipe, RunConfig, resolve
from edgewise.errors import EdgewiseError, InputError, IntegrityError, UnsupportedError
from edgewise.runtimes import litert, litert_lm
from edgewise.runtimes.installer import lock_text
from edgewise.runtimes.litert import native
from edgewise.runtimes.litert.artifact import find_bundle, find_model
from edgewise.runtimes.litert.conversion import read_checkpoint
from edgewise.runtimes.litert.engine import _mask, check_context, check_run_config
from edgewise.runtimes.litert.flatbuffer import Layout
from edgewise.runtimes.litert.formats import FORMATS, PLANS
from edgewise.runtimes.protocol import RuntimeAdapter

ABSENT = native.installed_version(native.RUNTIME_PACKAGE) is None
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "max_position_embeddings": 8192,
    "eos_token_id": 2,
}


def checkpoint(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def chosen(**stated: Any) -> str:
    return resolve(Recipe(name="r", **stated), FORMATS, runtime="litert").name


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ({"weights": "int8"}, "dynamic_wi8c"),
        ({"weights": "int8-channel-sym"}, "dynamic_wi8c"),
        ({"weights": "w8a8"}, "dynamic_wi8c"),
        ({"weights": "w8a16"}, "weight_only_wi8c"),
        ({"weights": "int8", "activation": Activation.FLOAT}, "weight_only_wi8c"),
        ({"weights": "int4"}, "dynamic_wi4b32_e8"),
        ({"weights": "w4a8-g32"}, "dynamic_wi4b32_e8"),
        ({"weights": "int4-g32-sym-f16", "output": "int4"}, "dynamic_wi4b32"),
        ({"weights": "f32"}, "f32"),
        ({"weights": "dynamic_wi4b32"}, "dynamic_wi4b32"),
    ],
)
def test_a_recipe_finds_the_format_that_meets_it(stated: dict[str, str], name: str) -> None:
    assert chosen(**stated) == name


@pytest.mark.parametrize(
    ("stated", "nearest"),
    [
        ({"weights": "int4-channel"}, "dynamic_wi4b32_e8"),
        ({"weights": "int4-g32-asym"}, "dynamic_wi4b32_e8"),
        ({"weights": "w4a16"}, "dynamic_wi4b32_e8"),
        ({"weights": "w8a8s"}, "dynamic_wi8c"),
        ({"weights": "f16"}, "f32"),
        ({"weights": "int8", "embedding": "int4"}, "dynamic_wi8c"),
        ({"weights": "int8", "method": "gptq"}, "dynamic_wi8c"),
    ],
)
def test_a_recipe_it_cannot_honour_is_refused_with_the_nearest(
    stated: dict[str, str], nearest: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        chosen(**stated)
    assert caught.value.context["nearest"] == nearest


def test_every_integer_format_has_a_plan() -> None:
    integers = {offer.name for offer in FORMATS if offer.weights.kind == "int"}
    assert integers == set(PLANS)
    for offer in FORMATS:
        assert offer.embedding == offer.output  # a tied matrix is stored once


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model_type": "mamba"}, "architecture-unsupported"),
        ({"quantization_config": {"bits": 4}}, "checkpoint-quantised"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "architecture-unsupported"),
        ({"num_hidden_layers": "two"}, "checkpoint-damaged"),
    ],
)
def test_a_checkpoint_is_refused_before_anything_heavy(
    tmp_path: Path, changes: dict[str, object], code: str
) -> None:
    with pytest.raises(EdgewiseError) as caught:
        read_checkpoint(checkpoint(tmp_path, **changes))
    assert caught.value.code == code


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_checkpoint_names_what_is_missing(tmp_path: Path, name: str) -> None:
    (checkpoint(tmp_path) / name).unlink()
    with pytest.raises(InputError, match=re.escape(Path(name).suffix)):
        read_checkpoint(tmp_path)


def test_a_damaged_configuration_is_no_bug(tmp_path: Path) -> None:
    for text in ("{", "[]"):
        (checkpoint(tmp_path) / "config.json").write_text(text)
        with pytest.raises(IntegrityError):
            read_checkpoint(tmp_path)


def test_the_context_is_the_recipes_or_the_default_and_never_beyond_training(
    tmp_path: Path,
) -> None:
    known = read_checkpoint(checkpoint(tmp_path))
    assert known.context_length(None) == 2048
    assert known.context_length(8192) == 8192
    with pytest.raises(UnsupportedError, match="8192"):
        known.context_length(8193)
    short = read_checkpoint(checkpoint(tmp_path, max_position_embeddings=512))
    assert short.context_length(None) == 512


def test_end_tokens_come_from_the_generation_settings_first(tmp_path: Path) -> None:
    assert read_checkpoint(checkpoint(tmp_path)).stop_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert read_checkpoint(tmp_path).stop_token_ids == (0, 2)


def test_what_litert_has_no_setting_for_is_refused() -> None:
    good: dict[str, Any] = {"context_length": 64, "kv_type": KvType.F32}
    check_run_config("litert", RunConfig(**good))
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"kv_type": KvType.F16}, "kv-type-unsupported"),
        ({"flash_attention": True}, "flash-attention-unsupported"),
        ({"hints": (("x", "y"),)}, "hint-unknown"),
    )
    for change, code in changes:
        with pytest.raises(UnsupportedError) as caught:
            check_run_config("litert", RunConfig(**{**good, **change}))
        assert caught.value.code == code
    layout = Layout(prefill="prefill_128", prefill_tokens=128, cells=64)
    check_context(RunConfig(**good), layout)
    with pytest.raises(UnsupportedError, match="64"):
        check_context(RunConfig(context_length=65), layout)


def test_the_mask_of_a_step_shows_what_came_before_and_nothing_else() -> None:
    width, cells = 4, 10
    rows = _mask(width, cells)
    for at in (0, 3, 6):
        mask = rows[:, cells - at : 2 * cells - at]
        assert mask.shape == (width, cells)
        for row in range(width):
            assert np.array_equal(mask[row] == 0, np.arange(cells) <= at + row)


def test_a_model_is_found_bare_or_in_a_bundle(tmp_path: Path) -> None:
    model = b"\x10\0\0\0TFL3" + b"m" * 100
    (tmp_path / "model.litertlm").write_bytes(b"LITERTLM".ljust(2 << 14, b"\0") + model)
    stored = find_model(tmp_path)
    assert (stored.offset, stored.size) == (2 << 14, len(model))
    assert stored.read() == bytes(stored.map()) == model
    stored.copy_to(tmp_path / "copy", [(4, b"XXXX")])
    assert (tmp_path / "copy").read_bytes() == model.replace(b"TFL3", b"XXXX")
    assert find_bundle(tmp_path).name == "model.litertlm"
    (tmp_path / "model.tflite").write_bytes(model)
    assert find_model(tmp_path).offset == 0


@pytest.mark.parametrize("data", [None, b"", b"x" * 40, b"LITERTLM" + bytes(1 << 15)])
def test_what_is_no_model_is_damage(tmp_path: Path, data: bytes | None) -> None:
    for name in ("model.tflite", "model.litertlm"):
        if data is not None:
            (tmp_path / name).write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        find_model(tmp_path)
    assert caught.value.code == "artifact-damaged"


@pytest.mark.parametrize("adapter", [litert.adapter, litert_lm.adapter], ids=lambda a: a.name)
@pytest.mark.skipif(not ABSENT, reason="the libraries are installed here")
def test_without_its_libraries_a_runtime_says_what_is_missing(
    adapter: RuntimeAdapter, tmp_path: Path
) -> None:
    found = adapter.capabilities()
    assert not found.can_run
    assert not found.can_export
    assert found.missing
    assert adapter.version() == "not-installed"
    source = tmp_path / "hf"
    source.mkdir()
    checkpoint(source)
    (source / "chat_template.jinja").write_text("{{ messages }}")
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UnsupportedError) as caught:
        adapter.exporter().export(source, out, Recipe(name="r", weights="int8"), threads=1)
    assert caught.value.code == "exporter-not-installed"
    assert not list(out.iterdir())


@pytest.mark.parametrize("adapter", [litert.adapter, litert_lm.adapter], ids=lambda a: a.name)
def test_parts_of_a_recipe_that_no_format_states_are_refused(
    adapter: RuntimeAdapter, tmp_path: Path
) -> None:
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"kv": KvType.U8}, "kv-type-unsupported"),
        ({"overrides": (("a", "f32"),)}, "overrides-unsupported"),
    )
    for change, code in changes:
        with pytest.raises(UnsupportedError) as caught:
            adapter.exporter().export(
                tmp_path, tmp_path, Recipe(name="r", weights="int8", **change), threads=1
            )
        assert caught.value.code == code


def test_the_lock_pins_every_requirement() -> None:
    pinned = dict(line.split("==") for line in lock_text(native.ENVIRONMENT).split())
    for requirement in (*native.ENVIRONMENT.run, *native.ENVIRONMENT.export):
        name, _, version = requirement.partition("==")
        assert pinned[name] == version
