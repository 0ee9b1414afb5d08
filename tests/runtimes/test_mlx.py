"""The mlx runtime in its own environment: exported, run on the CPU, and compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgewise.runtimes.launch import interpreter, look_for
from edgewise.runtimes.mlx import adapter

SRC = Path(__file__).parents[2] / "src"
SCENARIOS = Path(__file__).with_name("mlx_scenarios.py")
TIMEOUT_S = 850
# Mean KL against the float artifact, on two layers: a broken graph is above 1.
KL_MAX = {"f32": 1e-9, "int4": 0.8, "int4-f32": 0.8, "int8-f32": 0.01}

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.model,
    pytest.mark.skipif(
        look_for(adapter).absent, reason="not installed: edgewise runtime install mlx"
    ),
]


def scene(name: str, source: Path, folder: Path) -> dict[str, Any]:
    script = [str(SCENARIOS), str(SRC), name, str(source), str(folder)]
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mlx")


@pytest.fixture(scope="module")
def exported(two_layer_hf: Path, folder: Path) -> dict[str, Any]:
    return scene("export", two_layer_hf, folder)


@pytest.fixture(scope="module")
def ran(two_layer_hf: Path, folder: Path, exported: dict[str, Any]) -> dict[str, Any]:
    assert exported
    return scene("run", two_layer_hf, folder)


@pytest.mark.parametrize(
    ("name", "types", "resolved"),
    [
        ("f32", {"f32": 20}, ["f32", "f32"]),
        ("int4", {"int4-g64": 15, "bf16": 5}, ["int4-g64-asym-bf16", "int4-g64-asym-bf16"]),
        (
            "int4-f32",
            {"int4-g32": 14, "int8-g64": 1, "f32": 5},
            ["int4-g32-asym-f32", "int8-g64-asym-f32"],
        ),
        ("int8-f32", {"int8-g64": 14, "f32": 6}, ["int8-g64-asym-f32", "f32"]),
    ],
)
def test_an_artifact_is_what_was_promised(
    exported: dict[str, Any], name: str, types: dict[str, int], resolved: list[str]
) -> None:
    made = exported[name]
    assert made["types"] == types
    assert made["resolved"] == resolved
    assert made["deviations"] == 0
    assert made["same_bytes"]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(made["files"])
    assert set(made["tools"]) == {"mlx", "mlx-lm"}


@pytest.mark.parametrize("name", list(KL_MAX))
def test_an_engine_keeps_the_contract(ran: dict[str, Any], name: str) -> None:
    seen = ran[name]
    assert seen["kl"] <= KL_MAX[name]
    assert seen["prefill_kl"] < 0.02
    assert seen["state_exact"]
    assert seen["damaged"] == "state-damaged"
    assert seen["emptied"] == 0
    assert seen["cancelled"]
    assert seen["held"] == 4
    assert seen["full"] == "context-full"
    assert seen["clean"]


def test_the_graph_is_observed(ran: dict[str, Any]) -> None:
    assert ran["int4"]["operators"]["QuantizedMatmul"] == 2 * 7 + 1
    assert "QuantizedMatmul" not in ran["f32"]["operators"]
    assert ran["int4"]["precision"]["compute"] == "bfloat16"
    assert ran["int4-f32"]["precision"]["kv"] == "u8"
    if sys.platform == "linux":
        assert {each["requested"] for each in ran.values()} == {"CPU"}


def test_what_cannot_be_honoured_is_refused(two_layer_hf: Path, tmp_path: Path) -> None:
    assert scene("refuse", two_layer_hf, tmp_path) == {
        "symmetric": "recipe-unsupported",
        "indivisible": "group-size-indivisible",
        "tied": "recipe-contradiction",
        "left": "0",
        "architecture": "architecture-unsupported",
        "cut": "model-load-failed",
        "hint": "hint-unknown",
    }


def test_what_it_can_do_is_found_out_by_loading(two_layer_hf: Path, tmp_path: Path) -> None:
    found = scene("capabilities", two_layer_hf, tmp_path)
    assert found["can_run"]
    assert found["can_export"]
    assert found["unverified"]
    assert len(found["digest"]) == 64
    if sys.platform == "linux":
        assert found["backends"] == ["CPU, for parity and export tests, not for use"]
