"""LiteRT: exports are faithful, both engines keep their word, and bad input leaves nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgewise.runtimes.launch import interpreter, look_for
from edgewise.runtimes.litert import adapter

SRC = Path(__file__).parents[2] / "src"
SCENARIOS = Path(__file__).with_name("litert_scenarios.py")
TIMEOUT_S = 800
ON_THE_CPU = ["CAST", "DYNAMIC_UPDATE_SLICE", "EMBEDDING_LOOKUP", "PACK", "RESHAPE"]

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    presence = look_for(adapter)
    if presence.absent or not presence.can_export:
        pytest.skip(presence.reason)
    folder = tmp_path_factory.mktemp("litert")
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


def test_a_float_export_matches_its_source_and_the_engine_is_exact(
    scenarios: dict[str, Any],
) -> None:
    found = scenarios["float_export"]
    assert found["files"] == ["model.tflite", "tokenizer.json"]
    assert found["context"] == 512
    assert found["types"] == {"f32": 16}  # an untied head is a matrix of its own
    assert not found["tensorflow"]
    assert found["agree"] == 1.0
    assert found["stepped"] < 1e-3
    for way in ("whole", "turned", "copied", "state"):
        assert found[way] == 0.0, way
    assert found["full"] == "context-full"
    assert found["cancelled"] == "cancelled"
    assert found["partition"] == ["XNNPACK", {"XNNPACK": 15}, ON_THE_CPU]
    assert found["refused"] == ["context-too-long", "kv-type-unsupported", "hint-unknown"]


def test_quantised_exports_hold_what_the_recipe_says(scenarios: dict[str, Any]) -> None:
    found = scenarios["quantised"]
    damaged = found.pop("damaged")
    assert {name: one["types"] for name, one in found.items()} == {
        "dynamic_wi8c": {"int8-channel-sym-f32": 15},
        "dynamic_wi4b32_e8": {"int8-channel-sym-f32": 1, "int4-g32-sym-f16": 14},
        "dynamic_wi4b32": {"int4-g32-sym-f16": 15},
        "weight_only_wi8c": {"int8-channel-sym-f32": 15},
        "f32": {"f32": 15},
    }
    noise = {name: one["noise"] for name, one in found.items()}
    assert noise["f32"] < 1e-4
    assert noise["f32"] < noise["weight_only_wi8c"] < noise["dynamic_wi8c"] < 0.15
    assert noise["dynamic_wi8c"] < noise["dynamic_wi4b32_e8"] < noise["dynamic_wi4b32"] < 1.0
    for name, one in found.items():
        assert one["deviations"] == 0, name
        assert one["whole"] == 0.0, name
        widened = ["DEQUANTIZE"] if name == "weight_only_wi8c" else []
        assert one["fallbacks"] == sorted(ON_THE_CPU + widened), name
    # Where the cut falls decides whether our reader or the runtime's sees the damage first.
    assert damaged.pop("empty") == damaged.pop("head") == "artifact-damaged"
    assert set(damaged.values()) <= {
        "artifact-damaged",
        "model-load-failed",
        "model-signature-missing",
    }


def test_a_bundle_takes_the_prompt_as_the_model_does(scenarios: dict[str, Any]) -> None:
    found = scenarios["bundles"]
    chats = ("chatml", "begin-in-template", "begin-by-tokenizer")
    for chat in chats:
        for name, (taken, wanted) in found[chat]["counts"].items():
            assert taken == wanted, (chat, name)
    # The template spells chatml's first token; the others' is put in front by the engine.
    assert [found[chat]["begin"] for chat in chats] == [False, True, True]
    assert found["chatml"]["first"] == 257
    assert found["begin-in-template"]["first"] == found["begin-by-tokenizer"]["first"] == 256
    assert found["chatml"]["ends"] == [[258]]
    assert found["same_bytes"]

    # Once the last three hold too, structures can be handed to LiteRT-LM: see its engine.
    held = {"letters": True, "space": False, "spaces": False, "accent": False}
    assert found["constraints"] == held

    answers = found["answers"]
    assert answers["files"] == ["model.litertlm", "tokenizer.json", "tokenizer_config.json"]
    assert answers["left"] == answers["files"]  # the engine writes nothing beside them
    assert answers["streamed"]
    assert answers["after"]
    assert answers["finish"] in (["length", 24], ["stop", answers["finish"][1]])
    assert answers["seeded"] == [True, False]
    assert answers["cancelled"] == ["cancelled", "cancelled"]
    assert answers["refused"] == [
        "content-spells-control-token",
        "context-full",
        "sampling-unsupported",
        "context-too-long",
        "load-mode-unsupported",
        "artifact-of-another-runtime",
    ]
    assert set(answers["contract"].values()) == {"pass"}, answers["contract"]
    assert answers["partition"] == {"XNNPACK": 15}


def test_a_bad_checkpoint_is_typed_and_leaves_nothing(scenarios: dict[str, Any]) -> None:
    found = scenarios["bad_input"]
    assert found == {
        "architecture": ["architecture-unsupported", []],
        "quantised": ["checkpoint-quantised", []],
        "shape": ["export-failed", []],
    }
