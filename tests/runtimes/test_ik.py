"""The ik runtime in its own environment: the engine on two real models, and its quantiser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgewise.runtimes.ik import adapter
from edgewise.runtimes.launch import interpreter, look_for

SRC = Path(__file__).parents[2] / "src"
SCENARIOS = Path(__file__).with_name("ik_scenarios.py")
TIMEOUT_S = 850
MIB = 1 << 20
CONFIGS = ["flash", "plain", "q8_0", "repacked"]

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.model,
    pytest.mark.skipif(
        look_for(adapter).absent, reason="not installed: edgewise runtime install ik"
    ),
]


def scene(name: str, model: Path, folder: Path) -> dict[str, Any]:
    script = [str(SCENARIOS), str(SRC), name, str(model), str(folder)]
    done = subprocess.run(
        [interpreter(adapter), "-P", *script],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return scene("contract", smollm2_path, tmp_path_factory.mktemp("ik"))


@pytest.fixture(scope="module")
def gemma(gemma_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return scene("contract", gemma_path, tmp_path_factory.mktemp("ik"))


def _holds(seen: dict[str, Any]) -> None:
    assert seen["prefill_kl"] < 0.02
    assert seen["rewind_exact"]
    assert seen["state_exact"]
    assert seen["damaged"] == "state-damaged"
    assert seen["long_rewind_kl"] < 0.02
    assert seen["full"] == "context-full"
    assert seen["text"]
    # A step that was aborted reports success to its caller; the engine must not believe it.
    assert seen["cancel_s"] is not None
    assert seen["cancel_s"] < 1.0
    assert seen["held"] == 8
    assert seen["after_cancel"]
    assert seen["fallbacks"] == []
    assert "AVX2" in seen["features"]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_engine_keeps_the_contract(smollm2: dict[str, Any], config: str) -> None:
    _holds(smollm2[config])
    assert smollm2[config]["parsed"] == [2]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_sliding_window_is_only_a_mask(gemma: dict[str, Any], config: str) -> None:
    _holds(gemma[config])


@pytest.mark.parametrize("config", CONFIGS)
def test_placement_is_observed(smollm2: dict[str, Any], config: str) -> None:
    seen = smollm2[config]
    # Gate and up projection are one operator: 5 matrices a layer, 2 in the fused one, and the head.
    assert seen["operators"]["FUSED_UP_GATE"] == 30
    assert sum(seen["weights"].values()) == 30 * 7 + 1
    assert seen["precision"] == {"kv": "q8_0" if config == "q8_0" else "f16"}
    assert ("FLASH_ATTN_EXT" in seen["operators"]) == (config != "plain")


def test_repacking_shows_in_the_types(gemma: dict[str, Any]) -> None:
    assert not any("_r" in name for name in gemma["flash"]["weights"])
    assert {"CPU q4_k_r4", "CPU q8_0_r8"} <= set(gemma["repacked"]["weights"])


def test_memory_lines_come_from_its_log(smollm2: dict[str, Any]) -> None:
    held = smollm2["flash"]["memory_bytes"]
    assert held["weights"] / MIB == pytest.approx(92.1, rel=0.01)
    assert held["kv_cache"] / MIB == pytest.approx(22.5, rel=0.01)
    assert held["workspace"] > 5 * MIB


def test_long_steps_lose_nothing_of_a_type_with_a_minimum(
    smollm2_path: Path, tmp_path: Path
) -> None:
    found = scene("steps", smollm2_path, tmp_path)
    assert found["tokens"] > 128
    assert found["kl_mean"] < 0.03  # 0.2 to 0.4 where steps of 32 tokens are taken


def test_a_draft_model_guesses_and_changes_nothing(smollm2_path: Path, tmp_path: Path) -> None:
    found = scene("draft", smollm2_path, tmp_path)
    assert found["refused"] == "draft-unsupported"  # with flash attention nothing can be verified
    assert found["same"]
    assert found["accepted"] > 0
    assert found["checks"]["draft-agrees"][0]
    assert 0.4 < found["checks"]["draft-agrees"][1] < 1
    assert found["checks"]["draft-changes-nothing"] == [True, 0.0]


def test_its_quantiser_is_exact(smollm2_path: Path, tmp_path: Path) -> None:
    made = scene("export", smollm2_path, tmp_path)
    assert made["int4"]["types"] == {"q4_0": 210, "q8_0": 1, "f32": 61}
    assert made["int8"]["types"] == {"q8_0": 211, "f32": 61}
    assert made["f16"]["types"] == {"f16": 211, "f32": 61}
    assert [made[name]["deviations"] for name in ("int4", "int8", "f16")] == [0, 0, 0]
    assert made["q4_k_m"]["deviations"] > 100
    assert made["int8"]["kl"] < 0.05
    assert made["int4"]["kl"] < 1.5
    assert all(each["files"] == ["model.gguf"] for each in made.values())


def test_what_it_cannot_do_is_refused(smollm2_path: Path, tmp_path: Path) -> None:
    assert scene("refuse", smollm2_path, tmp_path) == {
        "hint": "hint-unknown",
        "mapped": "repack-needs-malloc",
        "kv": "kv-type-unsupported",
        "cut": "model-load-failed",
    }


def test_what_it_can_do_is_found_out_by_loading(smollm2_path: Path, tmp_path: Path) -> None:
    found = scene("capabilities", smollm2_path, tmp_path)
    assert found["can_run"]
    assert found["can_export"]
    assert found["version"] == "0.1.5"
    assert found["hints"] == ["repack"]
    assert len(found["digest"]) == 64
