"""The openvino runtime in its own environment: formats exported, run and compared."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgewise.runtimes.launch import interpreter, look_for
from edgewise.runtimes.openvino import adapter

SRC = Path(__file__).parents[2] / "src"
SCENARIOS = Path(__file__).with_name("openvino_scenarios.py")
TIMEOUT_S = 850
# Mean KL against the float source, on a random model: far from any broken graph (above 1).
KL_MAX = {
    "f32": 1e-6,
    "f16": 1e-3,
    "int8": 0.01,
    "int8-channel-asym": 0.01,
    "int4-g32": 0.5,
    "w4a8-g32-sym": 0.5,
    "w8a8s": 0.1,
}

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(
        look_for(adapter).absent or not look_for(adapter).can_export,
        reason="not installed: edgewise runtime install openvino",
    ),
]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("openvino")
    command = [interpreter(adapter), "-P", str(SCENARIOS), str(SRC), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", KL_MAX)
def test_an_artifact_is_what_was_promised_and_nothing_more(
    scene: dict[str, Any], name: str
) -> None:
    made = scene["made"][name]
    assert made["deviations"] == 0
    assert {"openvino_model.xml", "openvino_model.bin", "tokenizer.json"} <= set(made["files"])
    assert not [file for file in made["files"] if file.startswith(".")]
    assert {"nncf", "openvino", "optimum-intel"} <= set(made["tools"])


def test_the_same_export_gives_the_same_bytes(scene: dict[str, Any]) -> None:
    assert scene["again"] == scene["made"]["int8"]["files"]


@pytest.mark.parametrize("name", KL_MAX)
def test_logits_are_those_of_the_source(scene: dict[str, Any], name: str) -> None:
    ran = scene["ran"][name]
    assert ran["kl"] < KL_MAX[name]
    if name == "f32":
        assert ran["top1"] >= 0.99


@pytest.mark.parametrize("name", KL_MAX)
def test_the_cache_is_cut_saved_and_kept_exactly(scene: dict[str, Any], name: str) -> None:
    ran = scene["ran"][name]
    assert ran["cancelled"]
    assert ran["position"] == 40
    assert (ran["rewound"], ran["restored"], ran["after_cancel"]) == (0.0, 0.0, 0.0)
    assert ran["damaged"] == "state-damaged"


def test_settings_in_force_are_read_back(scene: dict[str, Any]) -> None:
    for name, group in (("int4-g32", "0"), ("w4a8-g32-sym", "32")):
        precision = scene["ran"][name]["precision"]
        assert precision["INFERENCE_PRECISION_HINT"] == "f32"
        assert precision["KEY_CACHE_PRECISION"] == "f16"
        assert precision["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == group


def test_reference_kernels_are_named(scene: dict[str, Any]) -> None:
    assert "Range" in scene["ran"]["f32"]["fallbacks"]
    assert scene["ran"]["f32"]["products"] == 2 * 7 + 1


def test_static_ranges_are_reported(scene: dict[str, Any]) -> None:
    ranges = scene["made"]["w8a8s"]["ranges"]
    assert len(ranges) == 2 * 4 + 1  # inputs of qkv, o, gate and up, down; and of the head
    for low, high, clipped in ranges:
        assert low < 0 < high
        assert 0 <= clipped < 0.05


def test_what_cannot_be_exact_is_refused(scene: dict[str, Any]) -> None:
    assert scene["refused"] == {
        "rewind-u8": "rewind-unsupported",
        "save-u8": "rewind-unsupported",
        "hint": "hint-unknown",
        "precision": "precision-unsupported",
    }
