"""TVM and WebLLM: exports are faithful, engines keep the contract, and a page answers as it must."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgewise.runtimes.browser.chromium import find_browser
from edgewise.runtimes.launch import interpreter, look_for
from edgewise.runtimes.protocol import RuntimeAdapter
from edgewise.runtimes.tvm import adapter as tvm_adapter
from edgewise.runtimes.webllm import adapter as webllm_adapter
from edgewise.runtimes.webllm.native import compiler, emcc

SRC = Path(__file__).parents[2] / "src"
SCENARIOS = Path(__file__).with_name("webllm_scenarios.py")
# Compiling TVM's runtime for WebAssembly takes minutes, once for an environment.
TIMEOUT_S = 1500

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(TIMEOUT_S + 60)]


def scenario(adapter: RuntimeAdapter, name: str, folder: Path) -> dict[str, Any]:
    presence = look_for(adapter)
    if presence.absent or not presence.can_export:
        pytest.skip(presence.reason)
    if compiler() is None:
        pytest.skip("no C++ compiler")
    done = subprocess.run(
        [interpreter(adapter), "-P", str(SCENARIOS), str(SRC), name, str(folder)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_float_export_matches_the_reference_and_its_engine_keeps_the_contract(
    tmp_path: Path,
) -> None:
    found = scenario(tvm_adapter, "float_export", tmp_path)
    assert found["files"] == [
        "edgewise.json",
        "mlc-chat-config.json",
        "model.so",
        "params_shard_0.bin",
        "tensor-cache.json",
        "tokenizer.json",
    ]
    assert found["format"] == "q0f32"
    assert found["same_bytes"]
    for way in ("whole", "stepped", "rewound"):
        assert found[way] < 2e-3, way
    assert found["agree"]
    assert found["texts"]
    assert found["restored"] == 0
    assert found["refused_state"] == ["state-damaged", 0]
    assert found["cancelled"] == ["cancelled", 0]
    assert found["edge"] == ["context-full", "none", "context-full"]
    requested, fallbacks, operators = found["partition"]
    assert (requested, fallbacks) == ("cpu", [])
    assert {"attention_kv_cache_attention_with_fused_qkv", "product", "rms_norm"} <= set(operators)
    assert found["position"] == 9
    assert found["weights_bytes"] == 2_264_832
    assert found["refused"] == ["kv-type-unsupported", "context-too-long", "hint-unknown"]
    assert found["refused_web"] == "artifact-incomplete"


def test_other_formats_compute_what_their_rounded_weights_mean(tmp_path: Path) -> None:
    found = scenario(tvm_adapter, "number_formats", tmp_path)
    assert found["q4f32_1"]["distance"] < 2e-3
    assert found["q4f32_1"]["types"] == {"uint32": 10, "float32": 15}
    assert found["q4f32_1"]["resolved"].startswith("int4-g32-sym-f32 weights")
    for name in ("q0f16", "q4f16_1"):  # arithmetic in half precision
        assert found[name]["distance"] < 0.1, name


def test_what_cannot_be_built_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    found = scenario(tvm_adapter, "refusals", tmp_path)
    for name in ("int8", "group", "asymmetric", "kv", "overrides"):
        assert found[name] == "recipe-unsupported", name
    assert found["context"] == "context-too-long"
    assert found["layers"] == "weights-missing"
    assert found["architecture"] == "architecture-unsupported"
    assert found["left"] == []


def test_the_gpu_functions_sort_sample_and_change_logits_as_they_must(tmp_path: Path) -> None:
    found = scenario(tvm_adapter, "sampling", tmp_path)
    assert found["sorted"]
    assert found["sampled"] < 1e-3
    assert found["outside"] == 0
    assert found["masked"] == [0, 2, 96]
    assert found["biased"] == [3, 4]
    assert found["bias"] < 1e-6
    assert found["penalty"] < 1e-6


@pytest.mark.skipif(find_browser() is None, reason="no Chromium-class browser")
@pytest.mark.skipif(emcc() is None, reason="no emscripten")
def test_a_page_recites_the_tiny_model_to_the_letter(tmp_path: Path) -> None:
    found = scenario(webllm_adapter, "in_browser", tmp_path)
    assert found["files"] == [
        "edgewise.json",
        "mlc-chat-config.json",
        "model.wasm",
        "params_shard_0.bin",
        "tensor-cache.json",
        "tokenizer.json",
    ]
    assert found["tools"] == ["apache-tvm", "emscripten", "numpy"]
    assert found["distance"] < 5e-3
    assert found["agree"]
    assert found["rewound"] < 5e-3
    assert found["engine_text"]
    assert found["page_text"]
    assert found["pieces"]
    assert found["told"] == {"finish": "stop", "tokens": 35, "prompt_tokens": 1}
    assert found["measured"]
    assert found["chat"] == [True, "stop"]
    assert found["forced"] == ">>>"
    assert found["json"].lstrip()[:1] == "{"
    assert found["drawn"] == [True, True]
    assert found["limits"] >= 10
    assert set(found["contract"].values()) <= {"pass", "refused-as-declared"}, found["contract"]
    assert found["contract"]["state-restores-or-refuses"] == "refused-as-declared"
    assert found["refused"] == []
