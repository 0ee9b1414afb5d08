"""The onnx-genai runtime in its own environment: every format exported, run and compared."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgewise.runtimes.launch import interpreter, look_for
from edgewise.runtimes.onnx_genai import adapter
from edgewise.runtimes.onnx_genai.formats import FORMATS

SRC = Path(__file__).parents[2] / "src"
SCENARIOS = Path(__file__).with_name("onnx_genai_scenarios.py")
TIMEOUT_S = 850
CPU = "CPUExecutionProvider"
ALL = [offer.name for offer in FORMATS]
# Mean KL against the float source, on a random model: far from any broken graph (above 1).
KL_MAX = {"fp32": 1e-9, "rtn-int8": 0.01, "rtn-int8-float": 0.01}

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(
        look_for(adapter).absent or not look_for(adapter).can_export,
        reason="not installed: edgewise runtime install onnx-genai",
    ),
]


def scene(name: str, folder: Path) -> dict[str, Any]:
    command = [interpreter(adapter), "-P", str(SCENARIOS), str(SRC), name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx")


@pytest.fixture(scope="module")
def exported(folder: Path) -> dict[str, Any]:
    return scene("export", folder)


@pytest.fixture(scope="module")
def ran(folder: Path, exported: dict[str, Any]) -> dict[str, Any]:
    assert exported
    return scene("run", folder)


@pytest.mark.parametrize("name", ALL)
def test_an_artifact_is_what_was_promised_and_nothing_more(
    exported: dict[str, Any], name: str
) -> None:
    made = exported["made"][name]
    offer = next(one for one in FORMATS if one.name == name)
    expected = {str(offer.weights), str(offer.embedding), str(offer.output)}
    assert set(made["types"]) == expected
    assert made["deviations"] == 0
    assert made["end_tokens"] == [0, 5]
    assert made["context"] == 512
    assert {"torch", "transformers", "onnxruntime-genai"} <= set(made["tools"])
    assert set(made["files"]) - {"chat_template.jinja"} == {
        "genai_config.json",
        "model.onnx",
        "model.onnx.data",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_the_same_export_gives_the_same_bytes(exported: dict[str, Any]) -> None:
    for name, files in exported["again"].items():
        assert files == exported["made"][name]["files"]


def test_a_shorter_context_is_kept_and_said(exported: dict[str, Any]) -> None:
    assert exported["short"]["context"] == 128
    assert exported["short"]["notes"] == ["context length set from 512 to 128"]


@pytest.mark.parametrize("name", ALL)
def test_logits_are_those_of_the_source(ran: dict[str, Any], name: str) -> None:
    seen = ran[name]
    assert seen["kl"] < KL_MAX.get(name, 0.5)
    assert seen["prefill_kl"] < 1e-2
    assert seen["rewind_kl"] < 1e-2
    if name == "fp32":
        assert seen["top1"] >= 0.99


@pytest.mark.parametrize("name", ALL)
def test_an_engine_keeps_the_contract(ran: dict[str, Any], name: str) -> None:
    seen = ran[name]
    assert seen["cancelled"]
    assert seen["after_cancel"]
    assert seen["growth_bytes"] < 8 << 20
    assert seen["kv_bytes"] == 2 * 2 * 2 * 16 * 512 * 4  # layers, heads, keys and values of 16
    assert len(seen["text"]) == 4
    assert seen["refused"] == {
        "full": "context-full",
        "empty": "prompt-empty",
        "token": "token-invalid",
        "rewind": "rewind-invalid",
        "save": "state-save-unsupported",
    }


@pytest.mark.parametrize("name", ALL)
def test_placement_is_observed(ran: dict[str, Any], name: str) -> None:
    seen = ran[name]
    assert seen["requested"] == CPU
    assert seen["fallbacks"] == []
    assert seen["products"] == 2 * 5 + 1  # fused qkv, o, gate, up, down; and the head
    offer = next(one for one in FORMATS if one.name == name)
    assert str(offer.activation) in seen["precision"]["activations"]


def test_a_model_with_a_head_of_its_own(folder: Path, exported: dict[str, Any]) -> None:
    assert exported["untied"]["types"] == {"int4-g32-sym-f32": 12}
    seen = scene("untied", folder)
    assert seen["fp32"]["top1"] >= 0.99
    assert seen["fp32"]["kl"] < 1e-9
    assert seen["rtn-int4"]["kl"] < 0.5


def test_a_bad_checkpoint_is_refused(folder: Path, exported: dict[str, Any]) -> None:
    assert exported
    assert scene("refuse", folder) == {
        "incomplete": "checkpoint-incomplete",
        "cut": "source-damaged",
        "architecture": "architecture-unsupported",
        "tokenizer": "tokenizer-mismatch",
    }


def test_a_damaged_artifact_is_refused(folder: Path, exported: dict[str, Any]) -> None:
    assert exported
    found = scene("broken", folder)
    assert found["model.onnx"] == "onnx-malformed"
    assert found["model.onnx.data"] == "model-load-failed"
    assert found["genai_config.json"] == "json-malformed"
    assert found["tokenizer.json"] == "hf-tokenizer-invalid"


def test_what_it_can_do_is_found_out_by_loading(folder: Path) -> None:
    found = scene("capabilities", folder)
    assert found["can_run"]
    assert found["can_export"]
    assert found["backends"] == [CPU]
    assert len(found["digest"]) == 64
    assert "+onnxruntime-" in found["version"]
