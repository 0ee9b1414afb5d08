"""A checkpoint whose numbers are not finite is refused, in whatever encoding they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.hf_forms import random_gguf, random_tensors

from edgewise.errors import IntegrityError
from edgewise.models import read_gguf
from edgewise.models.hf_form import check_finite, finite, gguf_to_hf, read_hf

QUANT = gguf.GGMLQuantizationType
ROWS = 273


def poisoned(path: Path, *, place: int, kind: str) -> None:
    tensor = next(one for one in read_gguf(path).tensors if one.type.name == kind)
    body = bytearray(path.read_bytes())
    at = tensor.offset_bytes + 3 * tensor.type.type_size + place
    body[at : at + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(body)


@pytest.mark.parametrize("matrices", [QUANT.F32, QUANT.F16, QUANT.Q8_0, QUANT.Q4_1, QUANT.Q5_0])
def test_sound_checkpoints_pass(tmp_path: Path, matrices: Any) -> None:
    assert check_finite(random_gguf(tmp_path / "m.gguf", matrices=matrices)) == ()


@pytest.mark.parametrize(
    ("matrices", "place"),
    [(QUANT.F16, 0), (QUANT.Q8_0, 0), (QUANT.Q4_0, 0), (QUANT.Q4_1, 0), (QUANT.Q4_1, 2)],
)
def test_a_scale_that_is_not_finite(tmp_path: Path, matrices: Any, place: int) -> None:
    path = random_gguf(tmp_path / "m.gguf", matrices=matrices)
    poisoned(path, place=place, kind=matrices.name)
    with pytest.raises(IntegrityError, match="tensor-not-finite"):
        check_finite(path)


@pytest.mark.parametrize("kind", sorted(finite._SCALES))
def test_places_of_scales_are_those_of_the_format(kind: str) -> None:
    """The format's own reference decodes a block to NaN exactly when such a scale is NaN."""
    number = gguf.GGMLQuantizationType[kind]
    _, size = gguf.GGML_QUANT_SIZES[number]
    for place in finite._SCALES[kind]:
        block = np.ones((1, size), dtype=np.uint8)
        block[0, place : place + 2] = np.frombuffer(np.float16(np.nan).tobytes(), dtype=np.uint8)
        try:
            values = gguf.quants.dequantize(block, number)
        except NotImplementedError:
            pytest.skip(f"the reference has no {kind}")
        assert np.isnan(values).any()
        assert np.isfinite(gguf.quants.dequantize(np.ones_like(block), number)).all()


def test_a_folder_with_nan(tmp_path: Path) -> None:
    tensors = random_tensors("llama", rows=ROWS)
    folder = tmp_path / "hf"
    folder.mkdir()
    gguf_to_hf(random_gguf(tmp_path / "m.gguf", tensors=tensors), folder)
    assert check_finite(folder) == ()
    found = read_hf(folder).tensors["model.layers.0.mlp.up_proj.weight"]
    body = bytearray(found.shard.read_bytes())
    body[found.info.offset_bytes : found.info.offset_bytes + 4] = np.float32(np.nan).tobytes()
    found.shard.write_bytes(body)
    with pytest.raises(IntegrityError, match=r"mlp\.up_proj"):
        check_finite(folder)


def test_a_type_nobody_looks_into_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = random_gguf(tmp_path / "m.gguf", matrices=QUANT.Q8_0)
    monkeypatch.delitem(finite._SCALES, "Q8_0")
    assert check_finite(path) == ("q8_0",)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("field", ["bos_token_id", "eos_token_id", "pad_token_id"])
@pytest.mark.parametrize("value", [ROWS, -2, True, "x", [0, ROWS]])
def test_a_special_token_outside_of_the_vocabulary(
    tmp_path: Path, file: str, field: str, value: Any
) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    gguf_to_hf(random_gguf(tmp_path / "m.gguf"), folder)
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(IntegrityError, match=field):
        read_hf(folder)
