"""The reference runtime in its own environment, and the conversions measured against it.

llama.cpp and transformers run the same random weights of every architecture: whatever a
conversion gets wrong (row order, norm offset, rotary base, window) shows in the logits.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.hf_forms import byte_level_vocabulary, llama_logits, random_gguf, random_tensors

from edgewise.models.hf_form import HF_ARCHITECTURES, gguf_to_hf
from edgewise.runtimes.launch import interpreter, look_for
from edgewise.runtimes.transformers import adapter

SRC = Path(__file__).parents[2] / "src"
SCENARIOS = Path(__file__).with_name("transformers_scenarios.py")
TIMEOUT_S = 600
ROWS = len(byte_level_vocabulary()["tokens"])
SAME = 2e-3
# llama.cpp looks Gemma's activation up in a table of 16-bit floats; the others agree to 1e-12.
KL_MAX = 1e-5
LAYERS = 7

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(
        look_for(adapter).absent, reason="not installed: edgewise runtime install transformers"
    ),
]


def scene(name: str, folder: Path) -> dict[str, Any]:
    command = [interpreter(adapter), "-P", str(SCENARIOS), str(SRC), name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def lively(architecture: str, n_layers: int) -> dict[str, np.ndarray]:
    """Return weights large enough for predictions that differ."""
    made = random_tensors(architecture, rows=ROWS, n_layers=n_layers)
    return {
        name: values if name.endswith("norm.weight") else values * 3
        for name, values in made.items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reference")
    # Windows of 8 tokens, so that cutting the cache behind one is covered.
    source = random_gguf(
        root / "m.gguf", "gemma3", tensors=lively("gemma3", LAYERS), n_layers=LAYERS
    )
    for name in ("f32", "f16"):
        (root / name).mkdir()
        gguf_to_hf(source, root / name, dtype=name)
    return root


@pytest.fixture(scope="module")
def ran(folder: Path) -> dict[str, Any]:
    return scene("run", folder / "f32")


def test_the_artifact_is_the_checkpoint_in_32_bits(folder: Path) -> None:
    found = scene("export", folder)
    exact, widened = found["made"]["f32"], found["made"]["f16"]
    assert exact["copied"]
    assert not widened["copied"]
    assert "widened" in widened["notes"][0]
    assert exact["types"] == widened["types"]
    assert set(exact["types"]) == {"f32"}
    assert exact["resolved"] == "f32"
    source = {path.name for path in (folder / "f32").iterdir()}
    assert set(exact["files"]) == set(widened["files"]) == source
    assert set(found["codes"].values()) == {"recipe-unsupported"}
    assert found["left"] == []


def test_prefill_decode_and_score_agree(ran: dict[str, Any]) -> None:
    assert ran["score"] == [64, ROWS]
    assert ran["position"] == 0
    assert max(ran["prefill"], ran["decode"], ran["fused"]) < SAME


def test_rewinding_equals_evaluating_again_also_behind_a_window(ran: dict[str, Any]) -> None:
    assert ran["rewind"] < SAME


def test_state(ran: dict[str, Any]) -> None:
    assert ran["restored"] == 64
    assert ran["restore"] < SAME
    assert (ran["damaged"], ran["after damage"]) == ("state-damaged", 0)
    assert ran["foreign"] == "state-of-another-engine"


def test_context_edge(ran: dict[str, Any]) -> None:
    assert [ran[name] for name in ("n-1", "n", "n+1")] == ["nothing", "nothing", "context-full"]


def test_cancel_between_steps_and_go_on(ran: dict[str, Any]) -> None:
    cancel = ran["cancel"]
    assert (cancel["outcome"], cancel["seen"], cancel["position"]) == ("cancelled", [16], 10)
    assert cancel["again"] < SAME


def test_partition(ran: dict[str, Any]) -> None:
    report = ran["partition"]
    assert report["requested"] == "torch CPU"
    assert report["fallbacks"] == []
    assert report["fallen_back"] == 0
    assert report["delegated"] > 100
    assert sum(report["linear"].values()) >= 7 * LAYERS
    assert report["precision"]["weights"] == "float32"
    assert ran["after partition"] < SAME


def test_refusals(ran: dict[str, Any]) -> None:
    assert ran["hint"] == "hint-unknown"
    assert ran["kv"] == "kv-type-unsupported"


def test_the_rest(ran: dict[str, Any], folder: Path) -> None:
    weights = random_tensors("gemma3", rows=ROWS, n_layers=LAYERS)
    assert ran["weights_bytes"] == sum(array.nbytes for array in weights.values())
    assert ran["tokens"][-1] == 2
    found = scene("broken", folder / "f32")
    assert found["codes"] == {
        "truncated": "safetensors-data-truncated",
        "missing": "hf-file-missing",
        "pickle": "hf-pickle-weights",
    }
    assert found["can_run"]
    assert found["backends"][0].startswith("torch CPU")
    assert "torch-2.13.0" in found["version"]
    assert len(found["digest"]) == 64


def test_every_architecture_like_llama_cpp(tmp_path: Path) -> None:
    for architecture in HF_ARCHITECTURES:
        source = random_gguf(
            tmp_path / f"{architecture}.gguf",
            architecture,
            tensors=lively(architecture, LAYERS),
            n_layers=LAYERS,
        )
        (tmp_path / f"{architecture}.hf").mkdir()
        gguf_to_hf(source, tmp_path / f"{architecture}.hf")
    found = scene("score", tmp_path)
    assert found["done"] == sorted(HF_ARCHITECTURES)
    ids = found["ids"]
    for architecture in HF_ARCHITECTURES:
        reference = np.load(tmp_path / f"{architecture}.npy").astype(np.float64)
        other = llama_logits(tmp_path / f"{architecture}.gguf", ids)
        assert reference.std() > 1
        assert np.mean(reference.argmax(1) == other.argmax(1)) >= 0.98, architecture
        assert _divergence(reference, other) < KL_MAX, architecture


def _divergence(reference: np.ndarray, other: np.ndarray) -> float:
    """Return the mean KL divergence of two sets of logits."""

    def log_probabilities(logits: np.ndarray) -> np.ndarray:
        shifted = logits - logits.max(axis=1, keepdims=True)
        total: np.ndarray = np.exp(shifted).sum(axis=1, keepdims=True)
        result: np.ndarray = shifted - np.log(total)
        return result

    ours, theirs = log_probabilities(reference), log_probabilities(other)
    return float((np.exp(ours) * (ours - theirs)).sum(axis=1).mean())
