"""Exporting with the native quantiser: exact types, importances, and every refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise.core.recipe import KvType, Recipe, RunConfig
from edgewise.errors import EdgewiseError, InputError, UnsupportedError
from edgewise.models.gguf import read_gguf
from edgewise.runtimes.llamacpp import imatrix
from edgewise.runtimes.llamacpp.engine import LlamaCppEngine
from edgewise.runtimes.llamacpp.exporter import GgufExporter
from edgewise.runtimes.llamacpp.upstream import LlamaCppLibrary
from edgewise.runtimes.reports import ExportResult

pytestmark = pytest.mark.model

SAMPLES = [
    "The lighthouse keeper wrote in his journal every evening before he lit the lamp.",
    "Bread needs flour, water, salt and time; the rest is patience and a hot oven.",
    "A river that floods each spring leaves its fields richer than before.",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "calibration.txt"
    path.write_text("\n".join(SAMPLES) + "\n\n", encoding="utf-8")
    return path


def export(
    source: Path, folder: Path, *, calibration: Path | None = None, **fields: object
) -> ExportResult:
    folder.mkdir()
    recipe = Recipe(name="x", **fields)  # type: ignore[arg-type]
    return GgufExporter().export(source, folder, recipe, threads=1, calibration=calibration)


def test_an_exact_format_is_exact(smollm2_path: Path, tmp_path: Path) -> None:
    result = export(smollm2_path, tmp_path / "a", weights="int4-g32-sym", embedding="int4")
    assert result.types == {"q4_0": 211, "f32": 61}
    assert result.deviations == ()
    assert result.resolved is not None
    assert str(result.resolved.weights) == "int4-g32-sym-f16"
    assert str(result.resolved.output) == "int4-g32-sym-f16"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model.gguf"]


def test_a_mixture_says_what_became_of_the_embedding(smollm2_path: Path, tmp_path: Path) -> None:
    result = export(smollm2_path, tmp_path / "a", weights="q4_k_m", kv=KvType.F16)
    assert result.resolved is not None
    assert str(result.resolved.embedding) == "int8-g32-sym-f16"
    assert len(result.deviations) == 195
    assert len(result.notes) == 1


def test_an_importance_matrix_is_measured_and_recorded(
    smollm2_path: Path, tmp_path: Path, text: Path
) -> None:
    plain = export(smollm2_path, tmp_path / "a", weights="int4")
    tuned = export(smollm2_path, tmp_path / "b", weights="int4", method="imatrix", calibration=text)
    assert plain.calibration is None
    assert tuned.types == plain.types
    report = tuned.calibration
    assert report is not None
    assert (report.method, report.samples) == ("imatrix", 3)
    assert report.tokens > 40
    metadata = read_gguf(tmp_path / "b" / "model.gguf").metadata
    assert metadata["quantize.imatrix.dataset"] == f"sha256:{report.revision}"
    assert metadata["quantize.imatrix.entries"] == "210"
    first, second = (tmp_path / name / "model.gguf" for name in "ab")
    assert first.read_bytes()[-1000000:] != second.read_bytes()[-1000000:]
    engine = LlamaCppEngine(second.parent, RunConfig(context_length=256))
    try:
        assert np.isfinite(engine.prefill([1, 2, 3])).all()
    finally:
        engine.close()


def test_importances_are_the_inputs_mean_squares(smollm2_path: Path, text: Path) -> None:
    found = imatrix.collect(LlamaCppLibrary(), smollm2_path, text, threads=1)
    assert len(found.columns) == 30 * 7
    query, key = (found.columns[f"blk.0.attn_{name}.weight"] for name in "qk")
    np.testing.assert_array_equal(query, key)  # both read the same input
    assert query.shape == (576,)
    assert query.dtype == np.float32
    assert (query > 0).all()
    assert found.columns["blk.0.ffn_down.weight"].shape == (1536,)
    again = imatrix.collect(LlamaCppLibrary(), smollm2_path, text, threads=1)
    np.testing.assert_array_equal(again.columns["blk.7.ffn_down.weight"], again_of(found))


def again_of(found: imatrix.Importance) -> object:
    return found.columns["blk.7.ffn_down.weight"]


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"weights": "int4", "method": "imatrix"}, InputError, "calibration-missing"),
        ({"weights": "int8", "method": "imatrix"}, UnsupportedError, "recipe-unsupported"),
        ({"weights": "int4", "method": "awq"}, UnsupportedError, "recipe-unsupported"),
        (
            {"weights": "int4", "embedding": "int8", "output": "int4"},
            InputError,
            "recipe-contradiction",  # one tensor in this model
        ),
        ({"weights": "as-is", "method": "imatrix"}, InputError, "recipe-contradiction"),
        ({"weights": "as-is", "embedding": "f16"}, InputError, "recipe-contradiction"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    smollm2_path: Path,
    tmp_path: Path,
    fields: dict[str, Any],
    error: type[EdgewiseError],
    code: str,
) -> None:
    with pytest.raises(error) as caught:
        export(smollm2_path, tmp_path / "a", **fields)
    assert caught.value.code == code
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "calibration-empty"),
        (b"\n \n", "calibration-empty"),
        (b"\xff\xfe\xff", "calibration-unreadable"),
        (b"a line\n" + b"word " * 100_000, "calibration-line-too-long"),
    ],
)
def test_a_bad_calibration_set_is_refused(
    smollm2_path: Path, tmp_path: Path, content: bytes, code: str
) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(content)
    with pytest.raises(InputError) as caught:
        export(smollm2_path, tmp_path / "a", weights="int4", method="imatrix", calibration=bad)
    assert caught.value.code == code
