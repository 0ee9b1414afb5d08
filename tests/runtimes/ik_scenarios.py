"""What the ik tests run inside that runtime's environment: one JSON object on the last line."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

import msgspec
import numpy as np

from edgewise.core.recipe import KvType, LoadMode, Recipe, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.qualify.draft_checks import agrees, changes_nothing
from edgewise.run.messages import LoadParams
from edgewise.run.pairing import load_draft
from edgewise.runtimes.ik import adapter
from edgewise.runtimes.protocol import CancelledError, Engine

TEXT = "The old bridge was closed for repairs last winter, so everyone took the long road."
LONG = """In the spring of 1871 a clerk called Amos Field walked from Leeds to the coast with a
ledger under his arm. He had been told that the harbour master at Whitby paid well for copies of old
tide tables, and that nobody else in the county could read the hand of the monk who had drawn them.
The road was worse than he remembered. Twice he slept in barns, once under a cart, and on the fourth
day a farmer's daughter gave him bread, two apples and the news that the harbour master had died in
January. Amos sat down on a wall and laughed. Then he opened the ledger, sharpened his pencil and
began to write what he had seen, mile by mile, since he had nothing better to do with the paper."""
BASE = RunConfig(context_length=1024, threads=1, flash_attention=True)
CONFIGS = {
    "flash": BASE,
    "plain": msgspec.structs.replace(BASE, flash_attention=False),
    "q8_0": msgspec.structs.replace(BASE, kv_type=KvType.Q8_0),
    "repacked": msgspec.structs.replace(BASE, load_mode=LoadMode.MALLOC, hints=(("repack", "1"),)),
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


def contract(model: Path) -> dict[str, Any]:
    return {name: one(model, config) for name, config in CONFIGS.items()}


def one(model: Path, config: RunConfig) -> dict[str, Any]:
    engine = adapter.engine(model, config)
    assert isinstance(engine, Engine)
    try:
        return {**_steps(engine), **_cancel(engine), **_reports(engine)}
    finally:
        engine.close()


def _steps(engine: Engine) -> dict[str, Any]:
    ids = engine.tokenize(TEXT, add_special=True, parse_special=False)
    at_once = engine.prefill(ids).copy()
    engine.rewind(len(ids) - 1)
    again = engine.decode(ids[-1]).copy()
    engine.rewind(len(ids) - 1)
    third = engine.decode(ids[-1]).copy()
    state = engine.save_state()
    expected = engine.decode(11).copy()
    engine.rewind(0)
    engine.prefill(ids[::-1])
    engine.restore_state(state)
    restored = engine.decode(11).copy()
    damaged = bytearray(state)
    damaged[len(state) // 2] ^= 1
    refused = code_of(lambda: engine.restore_state(bytes(damaged)))
    long = (ids * 80)[:900]
    engine.rewind(0)
    engine.prefill(long)
    engine.rewind(300)  # past a sliding window of 512
    late = engine.decode(long[300]).copy()
    engine.rewind(0)
    engine.prefill(long[:300])
    return {
        "prefill_kl": distance(at_once, again),
        "rewind_exact": bool((again == third).all()),
        "state_exact": bool((expected == restored).all()),
        "damaged": refused,
        "long_rewind_kl": distance(engine.decode(long[300]).copy(), late),
        "full": code_of(lambda: engine.prefill([5] * 1000)),
        "text": all(_round_trip(engine, t) for t in ("naïve café", "数字123と漢字", "é", " x")),
        "parsed": engine.tokenize("<|im_end|>", add_special=False, parse_special=True),
    }


def steps(model: Path) -> dict[str, Any]:
    """A prompt in the steps that it takes by itself, against one token at a time."""
    engine = adapter.engine(model, BASE)
    assert isinstance(engine, Engine)
    try:
        ids = engine.tokenize(LONG, add_special=True, parse_special=False)
        ends = range(40, len(ids), 20)
        at_once = []
        for end in ends:
            engine.rewind(0)
            at_once.append(engine.prefill(ids[:end]).copy())
        engine.rewind(0)
        singly = {i + 1: engine.prefill([token]).copy() for i, token in enumerate(ids)}
        kl = [distance(singly[end], one) for end, one in zip(ends, at_once, strict=True)]
        return {"tokens": len(ids), "kl_mean": float(np.mean(kl))}
    finally:
        engine.close()


def _round_trip(engine: Engine, text: str) -> bool:
    ids = engine.tokenize(text, add_special=False, parse_special=False)
    return b"".join(engine.token_bytes(i) for i in ids).decode() == text


def _cancel(engine: Engine) -> dict[str, Any]:
    engine.rewind(0)
    ids = engine.tokenize(TEXT, add_special=True, parse_special=False)
    engine.prefill(ids[:8])
    before = engine.decode(ids[8]).copy()
    engine.rewind(8)
    began = threading.Event()
    asked: list[float] = []

    def cancel() -> None:
        began.wait()
        time.sleep(0.02)
        asked.append(time.perf_counter())
        engine.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        engine.prefill((ids * 80)[8:1000], progress=lambda _done: began.set())
        stopped = None
    except CancelledError:
        stopped = time.perf_counter() - asked[0]
    thread.join()
    engine.clear_cancel()
    held = engine.position
    return {
        "cancel_s": stopped,
        "held": held,
        "after_cancel": bool((engine.decode(ids[8]) == before).all()),
    }


def _reports(engine: Engine) -> dict[str, Any]:
    report, memory = engine.partition(), engine.memory()
    return {
        "operators": {name: sum(places.values()) for name, places in report.operators.items()},
        "weights": report.weights,
        "precision": report.precision,
        "fallbacks": report.fallbacks,
        "features": report.features,
        "memory_bytes": {
            name: getattr(memory, f"{name}_bytes").number
            for name in ("weights", "kv_cache", "workspace")
        },
    }


def export(model: Path) -> dict[str, Any]:
    made: dict[str, Any] = {}
    reference = None
    for weights in ("f16", "int8", "int4", "q4_k_m"):
        folder = Path(sys.argv[4]) / weights
        folder.mkdir()
        recipe = Recipe(name=weights, weights=weights)
        result = adapter.exporter().export(model, folder, recipe, threads=1)
        engine = adapter.engine(folder, BASE)
        assert isinstance(engine, Engine)
        ids = engine.tokenize(TEXT, add_special=True, parse_special=False)
        logits = engine.prefill(ids).copy()
        reference = logits if reference is None else reference
        made[weights] = {
            "types": result.types,
            "deviations": len(result.deviations),
            "files": [path.name for path in folder.iterdir()],
            "kl": distance(reference, logits),
            "tools": result.tools,
        }
        engine.close()
    return made


def draft(model: Path) -> dict[str, Any]:
    """The model with itself in 4 bits as its draft, in one process, as a worker loads them."""
    folder = Path(sys.argv[4]) / "draft"
    folder.mkdir()
    adapter.exporter().export(model, folder, Recipe(name="int4", weights="int4"), threads=1)
    refused = code_of(lambda: _pair(model, folder, BASE))
    engine, guesses = _pair(model, folder, CONFIGS["plain"])
    try:
        ids = engine.tokenize(TEXT, add_special=True, parse_special=False)
        plain, likeliest = _greedy(engine, ids), _likeliest(engine, ids)
        with_draft, accepted = _guessed(engine, guesses, ids, len(plain))
        checks = agrees(guesses, ids, likeliest), changes_nothing(engine, guesses, ids)
        return {
            "refused": refused,
            "same": with_draft == plain,
            "accepted": accepted,
            "checks": {one.name: [one.passed, one.figure.number] for one in checks},
        }
    finally:
        guesses.close()
        engine.close()


def _pair(model: Path, folder: Path, config: RunConfig) -> tuple[Any, Any]:
    params = LoadParams(runtime="ik", artifact=str(model), run_config=config, draft=str(folder))
    engine = adapter.engine(model, config)
    return engine, load_draft(adapter, engine, params)


def _greedy(engine: Any, ids: list[int], tokens: int = 24) -> list[int]:
    engine.rewind(0)
    said = [int(np.argmax(engine.prefill(ids)))]
    while len(said) < tokens:
        said.append(int(np.argmax(engine.decode(said[-1]))))
    return said


def _likeliest(engine: Any, ids: list[int]) -> list[int]:
    engine.rewind(0)
    logits = engine.prefill(ids[:1])
    found = []
    for token in ids[1:]:
        found.append(int(np.argmax(logits)))
        logits = engine.decode(token)
    return found


def _guessed(engine: Any, guesses: Any, ids: list[int], tokens: int) -> tuple[list[int], int]:
    """The same answer where the draft proposes three tokens and the model verifies them."""
    engine.rewind(0)
    said = [int(np.argmax(engine.prefill(ids)))]
    accepted = 0
    while len(said) < tokens:
        proposed = _after(guesses, [*ids, *said])
        base = engine.position
        for row, token in zip(engine.verify([said[-1], *proposed]), [*proposed, None], strict=True):
            said.append(int(np.argmax(row)))
            if said[-1] != token:
                break
            accepted += 1
        engine.rewind(min(base + len(proposed) + 1, len(ids) + len(said) - 1))
    return said[:tokens], accepted


def _after(guesses: Any, history: list[int]) -> list[int]:
    guesses.rewind(0)
    found = [int(np.argmax(guesses.prefill(history)))]
    while len(found) < 3:
        found.append(int(np.argmax(guesses.decode(found[-1]))))
    return found


def refuse(model: Path) -> dict[str, Any]:
    def run(**fields: Any) -> str:
        return code_of(lambda: adapter.engine(model, RunConfig(**fields)))

    cut = Path(sys.argv[4]) / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:5_000_000])
    return {
        "hint": run(hints=(("x", "1"),)),
        "mapped": run(hints=(("repack", "1"),)),
        "kv": run(kv_type=KvType.U8),
        "cut": code_of(lambda: adapter.engine(cut, RunConfig())),
    }


def capabilities(_model: Path) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(adapter.capabilities())
    return {**found, "digest": adapter.operators_digest()}


if __name__ == "__main__":
    scenes = {
        "contract": contract,
        "export": export,
        "refuse": refuse,
        "capabilities": capabilities,
        "steps": steps,
        "draft": draft,
    }
    print(json.dumps(scenes[sys.argv[2]](Path(sys.argv[3]))))  # noqa: T201
