"""Scenes for the transformers tests, run by the interpreter of its environment.

``python transformers_scenarios.py SRC SCENE FOLDER`` prints one JSON line.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

import numpy as np

from edgewise.core.recipe import KvType, Recipe, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes.protocol import CancelledError
from edgewise.runtimes.transformers import adapter

CONTEXT = 96
RUN = RunConfig(context_length=CONTEXT, kv_type=KvType.F32, threads=1, batch_tokens=16)
IDS = [4 + (index * index * 7 + index * 13) % 250 for index in range(64)]


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except EdgewiseError as error:
        return error.code
    return "nothing"


def distance(one: Any, other: Any) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def export(folder: Path) -> dict[str, Any]:
    made = {}
    for name in ("f32", "f16"):
        target = folder / f"{name}-artifact"
        target.mkdir()
        result = adapter.exporter().export(
            folder / name, target, Recipe(name="float", weights="f32"), threads=1
        )
        made[name] = {
            "copied": result.copied,
            "notes": result.notes,
            "types": result.types,
            "resolved": str(result.resolved.weights) if result.resolved else "",
            "files": {
                path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted(target.iterdir())
            },
        }
    empty = folder / "empty"
    empty.mkdir()
    codes = {
        weights: refusal(
            lambda weights=weights: adapter.exporter().export(  # type: ignore[misc]
                folder / "f32", empty, Recipe(name="x", weights=weights), threads=1
            )
        )
        for weights in ("int4", "f16")
    }
    return {"made": made, "codes": codes, "left": [path.name for path in empty.iterdir()]}


def run(folder: Path) -> dict[str, Any]:
    engine: Any = adapter.engine(folder, RUN)
    scores = engine.score(IDS)
    found: dict[str, Any] = {"score": list(scores.shape), "position": engine.position}
    found["prefill"] = distance(engine.prefill(IDS[:40]), scores[39])
    found["decode"] = max(distance(engine.decode(IDS[at]), scores[at]) for at in range(40, 64))
    state = engine.save_state()
    engine.rewind(20)
    found["rewind"] = max(distance(engine.decode(IDS[at]), scores[at]) for at in range(20, 30))
    engine.restore_state(state)
    found["restored"] = engine.position
    more = engine.decode(5).copy()
    engine.rewind(0)
    found["restore"] = distance(more, engine.prefill([*IDS, 5]))
    damaged = bytearray(state)
    damaged[-1] ^= 1
    found["damaged"] = refusal(lambda: engine.restore_state(bytes(damaged)))
    found["after damage"] = engine.position
    other: Any = adapter.engine(folder, RunConfig(**{**_fields(RUN), "flash_attention": True}))
    found["foreign"] = refusal(lambda: other.restore_state(state))
    found["fused"] = distance(other.prefill(IDS), scores[-1])
    engine.rewind(0)
    for size, name in ((CONTEXT - 1, "n-1"), (CONTEXT, "n"), (CONTEXT + 1, "n+1")):
        tokens = [IDS[at % 64] for at in range(size)]
        found[name] = refusal(lambda tokens=tokens: engine.prefill(tokens))  # type: ignore[misc]
        engine.rewind(0)
    found["cancel"] = _cancel(engine, scores)
    report = engine.partition()
    found["partition"] = {
        "requested": report.requested,
        "delegated": report.delegated,
        "fallen_back": report.fallen_back,
        "fallbacks": report.fallbacks,
        "linear": report.operators.get("aten.linear", {}) or report.operators.get("aten.mm", {}),
        "precision": report.precision,
    }
    engine.rewind(0)
    found["after partition"] = distance(engine.prefill(IDS), scores[-1])
    found["weights_bytes"] = engine.memory().weights_bytes.value
    found["hint"] = refusal(
        lambda: adapter.engine(folder, RunConfig(**{**_fields(RUN), "hints": (("x", "y"),)}))
    )
    found["kv"] = refusal(
        lambda: adapter.engine(folder, RunConfig(**{**_fields(RUN), "kv_type": KvType.F16}))
    )
    found["tokens"] = engine.tokenize("a<|im_end|>", add_special=True, parse_special=True)
    engine.close()
    return found


def _fields(config: RunConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__struct_fields__}


def _cancel(engine: Any, scores: Any) -> dict[str, Any]:
    engine.prefill(IDS[:10])
    seen: list[int] = []

    def stop(done: int) -> None:
        seen.append(done)
        threading.Thread(target=engine.cancel).start()
        while not engine.cancelled:
            pass

    try:
        engine.prefill(IDS[10:60], progress=stop)
        outcome = "ended"
    except CancelledError:
        outcome = "cancelled"
    engine.clear_cancel()
    position = engine.position
    again = distance(engine.prefill(IDS[10:]), scores[-1])
    return {"outcome": outcome, "seen": seen, "position": position, "again": again}


def score(folder: Path) -> dict[str, Any]:
    done = []
    for path in sorted(folder.glob("*.hf")):
        engine: Any = adapter.engine(path, RUN)
        np.save(path.with_suffix(".npy"), engine.score(IDS))
        engine.close()
        done.append(path.stem)
    return {"done": done, "ids": IDS}


def broken(folder: Path) -> dict[str, Any]:
    copy = folder.parent / "broken"
    shutil.copytree(folder, copy)
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[:-4])
    codes = {"truncated": refusal(lambda: adapter.engine(copy, RUN))}
    (copy / "model.safetensors").unlink()
    codes["missing"] = refusal(lambda: adapter.engine(copy, RUN))
    (copy / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n.")
    codes["pickle"] = refusal(lambda: adapter.engine(copy, RUN))
    capabilities = adapter.capabilities()
    return {
        "codes": codes,
        "can_run": capabilities.can_run,
        "backends": capabilities.backends,
        "version": adapter.version(),
        "digest": adapter.operators_digest(),
    }


SCENES = {"export": export, "run": run, "score": score, "broken": broken}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(SCENES[sys.argv[2]](Path(sys.argv[3]))) + "\n")
