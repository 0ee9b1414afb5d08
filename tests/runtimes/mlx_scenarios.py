"""What the mlx tests run inside that runtime's environment: one JSON object on the last line."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

import msgspec
import numpy as np

from edgewise.core.recipe import KvType, Recipe, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes.mlx import adapter
from edgewise.runtimes.protocol import CancelledError, Engine

TEXT = "The old bridge was closed for repairs last winter."
# What an artifact is made by and run with.
CASES: dict[str, tuple[dict[str, str], KvType]] = {
    "f32": ({"weights": "f32"}, KvType.F32),
    "int4": ({"weights": "int4"}, KvType.BF16),
    "int4-f32": ({"weights": "int4-g32-asym-f32", "embedding": "int8"}, KvType.U8),
    "int8-f32": ({"weights": "int8-f32", "output": "f32"}, KvType.F16),
}


def code_of(action: Any) -> str:
    try:
        action()
    except EdgewiseError as error:
        return error.code
    return "accepted"


def distance(one: np.ndarray, other: np.ndarray) -> float:
    a, b = (x.astype(np.float64) - x.max() for x in (one, other))
    a -= np.log(np.exp(a).sum())
    b -= np.log(np.exp(b).sum())
    return float((np.exp(a) * (a - b)).sum())


def make(source: Path, folder: Path, fields: dict[str, str]) -> Any:
    folder.mkdir(parents=True)
    recipe = Recipe(name="x", **fields)  # type: ignore[arg-type]
    return adapter.exporter().export(source, folder, recipe, threads=1)


def export(source: Path, root: Path) -> dict[str, Any]:
    made = {}
    for name, (fields, _) in CASES.items():
        result = make(source, root / name, fields)
        make(source, root / "again" / name, fields)
        weights = [folder / "model.safetensors" for folder in (root / name, root / "again" / name)]
        digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in weights}
        made[name] = {
            "types": result.types,
            "deviations": len(result.deviations),
            "resolved": [str(result.resolved.weights), str(result.resolved.embedding)],
            "files": sorted(path.name for path in (root / name).iterdir()),
            "same_bytes": len(digests) == 1,
            "tools": result.tools,
        }
    return made


def run(_source: Path, root: Path) -> dict[str, Any]:
    ran: dict[str, Any] = {}
    reference = None
    for name, (_, kv_type) in CASES.items():
        config = RunConfig(context_length=64, kv_type=kv_type)
        engine = adapter.engine(root / name, config)
        assert isinstance(engine, Engine)
        seen = _steps(engine, config, root / name)
        logits = np.array(seen.pop("logits"))
        reference = logits if reference is None else reference
        ran[name] = {**seen, "kl": distance(reference, logits), **_reports(engine)}
        engine.close()
    return ran


def _steps(engine: Engine, config: RunConfig, artifact: Path) -> dict[str, Any]:
    ids = engine.tokenize(TEXT, add_special=True, parse_special=False)
    at_once = engine.prefill(ids).copy()
    engine.rewind(len(ids) - 1)
    again = engine.decode(ids[-1]).copy()
    state = engine.save_state()
    expected = engine.decode(11).copy()
    fresh = adapter.engine(artifact, config)
    assert isinstance(fresh, Engine)
    fresh.restore_state(state)
    restored = fresh.decode(11).copy()
    damaged = bytearray(state)
    damaged[-1] ^= 1
    refused = code_of(lambda: fresh.restore_state(bytes(damaged)))
    emptied = fresh.position
    fresh.close()
    engine.rewind(4)
    threading.Timer(0.05, engine.cancel).start()
    try:
        for _ in range(50):
            engine.prefill(ids[4:])
            engine.rewind(4)
        cancelled = False
    except CancelledError:
        cancelled = True
    engine.clear_cancel()
    held = engine.position
    engine.rewind(0)
    return {
        "logits": at_once.tolist(),
        "prefill_kl": distance(at_once, again),
        "state_exact": bool((expected == restored).all()),
        "damaged": refused,
        "emptied": emptied,
        "cancelled": cancelled,
        "held": held,
        "full": code_of(lambda: engine.prefill([5] * 65)),
        "clean": bool((engine.prefill(ids) == at_once).all()),
    }


def _reports(engine: Engine) -> dict[str, Any]:
    report, memory = engine.partition(), engine.memory()
    return {
        "requested": report.requested,
        "operators": {name: sum(places.values()) for name, places in report.operators.items()},
        "precision": report.precision,
        "weights_bytes": memory.weights_bytes.number,
        "kv_cache_bytes": memory.kv_cache_bytes.number,
    }


def refuse(source: Path, root: Path) -> dict[str, Any]:
    root = root / "refuse"

    def attempt(name: str, **fields: str) -> str:
        return code_of(lambda: make(source, root / name, fields))

    found = {
        "symmetric": attempt("a", weights="int4-sym"),
        "indivisible": attempt("b", weights="int4-g128"),
        "tied": attempt("c", weights="int4", embedding="int8", output="int4"),
    }
    found["left"] = str(sum(1 for folder in root.iterdir() for _ in folder.iterdir()))
    other = root / "other"
    other.mkdir()
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (other / "config.json").write_text(json.dumps({**config, "model_type": "unheard_of"}))
    (other / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    found["architecture"] = code_of(lambda: make(other, root / "d", {"weights": "f32"}))
    made = root / "e"
    make(source, made, {"weights": "int4"})
    data = (made / "model.safetensors").read_bytes()
    (made / "model.safetensors").write_bytes(data[: len(data) // 2])
    found["cut"] = code_of(lambda: adapter.engine(made, RunConfig()))
    found["hint"] = code_of(lambda: adapter.engine(made, RunConfig(hints=(("x", "1"),))))
    return found


def capabilities(_source: Path, _root: Path) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(adapter.capabilities())
    return {**found, "digest": adapter.operators_digest()}


if __name__ == "__main__":
    scenes = {"export": export, "run": run, "refuse": refuse, "capabilities": capabilities}
    print(json.dumps(scenes[sys.argv[2]](Path(sys.argv[3]), Path(sys.argv[4]))))  # noqa: T201
