"""ExecuTorch: exports are faithful, engines keep the contract, and bad input leaves nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgewise.runtimes.executorch import adapter
from edgewise.runtimes.launch import interpreter, look_for

SRC = Path(__file__).parents[2] / "src"
SCENARIOS = Path(__file__).with_name("executorch_scenarios.py")
TIMEOUT_S = 800

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    presence = look_for(adapter)
    if presence.absent or not presence.can_export:
        pytest.skip(presence.reason)
    folder = tmp_path_factory.mktemp("executorch")
    done = subprocess.run(
        [interpreter(adapter), "-P", str(SCENARIOS), str(SRC), str(folder)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_float_export_matches_the_reference_and_its_engine_keeps_the_contract(
    scenarios: dict[str, Any],
) -> None:
    # The folder of the float artifact is called 8da4w, which the library would take for a format.
    found = scenarios["float_export"]
    assert found["files"] == ["export.json", "model.pte", "tokenizer.json"]
    assert found["same_bytes"]
    assert found["format"] == ["f32", "f32"]
    for way in ("stepped", "whole", "turned"):
        assert found[way] < 1e-3, way
    assert found["repeatable"]
    assert found["edge"] == ["context-full", "none"]
    assert found["full"] == [150, "context-full"]
    assert found["text"] == 0xC3
    assert found["cancelled"] == "cancelled"
    position, difference = found["after_cancel"]
    assert position == 3
    assert difference < 1e-3
    assert found["state"] == "state-save-unsupported"
    requested, same, linears, fallbacks = found["partition"]
    assert requested == "XnnpackBackend"
    assert same
    assert linears == {"XnnpackBackend": 8}
    assert "llama::custom_sdpa.out" in fallbacks
    assert found["cut"] == "pte-truncated"
    assert found["refused"] == ["context-too-long", "kv-type-unsupported", "hint-unknown"]


def test_quantised_exports_lose_what_their_bits_say(scenarios: dict[str, Any]) -> None:
    found = scenarios["quantised"]
    assert found["f32@portable"]["noise"] < 1e-4
    # Random weights are the worst case: their noise adds up, where trained ones' mostly does not.
    assert found["8da8w-channel"]["noise"] < 0.15
    for name, one in found.items():
        assert one["context"] == 128
        assert one["linear_fallbacks"] == [], name
        if name != "f32@portable":
            assert one["linears"] == {"XnnpackBackend": 8}, name
    assert found["8da8w-channel"]["types"] == {"int8-channel-sym-f32": 9, "f32": 3}


def test_other_backends_are_lowered_and_refused_to_run_here(scenarios: dict[str, Any]) -> None:
    found = scenarios["elsewhere"]
    assert found["vulkan"][0] == "VulkanBackend"
    assert found["vulkan"][1]["VulkanBackend"] >= 8
    assert found["coreml"][:2] == ["CoreMLBackend", True]
    assert found["coreml"][2] == ["export.json", "model.pte", "tokenizer.json"]
    assert found["run"] == ["backend-missing", "backend-missing"]
    backends, coreml_runs = found["capabilities"]
    assert "XnnpackBackend" in backends
    assert "portable" in backends
    assert coreml_runs is False


def test_bad_input_is_typed_and_leaves_nothing(scenarios: dict[str, Any]) -> None:
    found = scenarios["bad_input"]
    for case in ("missing", "shape", "unknown"):
        assert found[case] == "hf-tensor-wrong", case
    assert found["damaged"] == "hf-weights-damaged"
    assert found["absent"] == "hf-weights-missing"
    assert found["left"] == []
    assert found["tokenizer"] == "tokenizer-mismatch"
