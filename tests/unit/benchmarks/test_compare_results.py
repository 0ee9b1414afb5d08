"""The comparison in the docs: generated from results that are committed with their evidence."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import msgspec
import pytest
from benchmarks.compare import EVIDENCE, PAGE, RESULTS, page

from edgewise.core.evidence import Evidence
from edgewise.workflow.comparing import Comparison

pytestmark = pytest.mark.skipif(
    not RESULTS.exists(), reason="no results are committed yet: python -m benchmarks.compare"
)


def rows() -> list[dict[str, Any]]:
    return [row for one in json.loads(RESULTS.read_text()) for row in one["rows"]]


def test_the_page_is_what_the_results_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_figure_has_its_evidence_and_the_evidence_is_whole() -> None:
    cited = {digest for row in rows() for digest in row["evidence"]}
    kept = {path.stem for path in EVIDENCE.glob("*.json")}
    assert cited == kept
    for digest in kept:
        data = (EVIDENCE / f"{digest}.json").read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
        msgspec.json.decode(data, type=Evidence)


def test_nothing_of_the_machine_that_measured_is_in_it() -> None:
    files = [RESULTS, PAGE, *EVIDENCE.glob("*.json")]
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'"/(?:home|root|tmp|work|usr|opt|var)/', text), path.name


def test_every_runtime_that_runs_here_has_a_row() -> None:
    found = {row["runtime"] for row in rows()}
    assert found >= {
        "transformers",
        "llamacpp",
        "ik",
        "onnx-genai",
        "openvino",
        "executorch",
        "litert",
        "litert-lm",
        "mlx",
        "tvm",
        "wllama",
    }


def test_the_gate_tells_the_unfaithful_path_from_the_float_exports() -> None:
    by_label = {row["label"]: row for row in rows()}
    assert by_label["openvino/gguf-direct"]["gate"]["passed"] is False
    for label in ("onnx-genai/fp32", "openvino/f32", "executorch/f32", "litert/f32"):
        assert by_label[label]["gate"]["passed"], label
        assert by_label[label]["top1_agreement"]["value"] >= 0.99


def test_the_results_are_of_the_form_that_is_read() -> None:
    for one in json.loads(RESULTS.read_text()):
        msgspec.convert(one, type=Comparison)
