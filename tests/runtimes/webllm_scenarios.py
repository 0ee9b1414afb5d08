"""Scenarios of ``tvm`` and ``webllm``, run by the interpreter of their environment.

``python webllm_scenarios.py SRC NAME FOLDER`` writes one JSON line. The model is the tiny one,
whose right answers are known to the letter.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

import numpy as np

from edgewise.core.recipe import KvType, Recipe, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes import tvm as tvm_runtime
from edgewise.runtimes import webllm
from edgewise.runtimes.protocol import CancelledError
from edgewise.runtimes.webllm import reference, tiny
from edgewise.runtimes.webllm.formats import numbers
from edgewise.runtimes.webllm.quantise import pack_groups, unpack_groups
from edgewise.testing import check_engine

CONTEXT = 96
# WebLLM fails on this type without a schema.
JSON_ONLY = {"type": "json_object", "schema": '{"type": "object"}'}


def code_of(action: Any) -> str:
    try:
        action()
    except EdgewiseError as error:
        return error.code
    except CancelledError:
        return "cancelled"
    return "none"


def export(adapter: Any, source: Path, folder: Path, weights: str, **changes: Any) -> Any:
    folder.mkdir(parents=True)
    recipe = Recipe(name="test", weights=weights, **changes)
    made = adapter.exporter().export(source, folder, recipe, threads=2)
    for path in folder.iterdir():
        path.chmod(0o444)
    return made


def run_config(**changes: Any) -> RunConfig:
    facts = {"context_length": CONTEXT, "kv_type": KvType.F32, "threads": 2, "batch_tokens": 16}
    return RunConfig(**{**facts, **changes})


def greedy(engine: Any, tokens: list[int], count: int = 60) -> bytes:
    engine.rewind(0)
    token, text = int(engine.prefill(tokens).argmax()), b""
    while token not in {0, 2} and count:
        text, count = text + engine.token_bytes(token), count - 1
        token = int(engine.decode(token).argmax())
    return text


def asked(engine: Any) -> list[int]:
    question = f"<|im_start|>user\n{tiny.QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    return list(engine.tokenize(question, add_special=False, parse_special=True))


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference, in parts of the wanted logits' own spread."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def float_export(folder: Path) -> dict[str, Any]:
    model = tiny.make()
    source = tiny.write(folder / "hf", model)
    made = export(tvm_runtime.adapter, source, folder / "one", "as-is")
    export(tvm_runtime.adapter, source, folder / "two", "f32")
    digests = [
        {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((folder / name).iterdir())
            if path.name != "model.so"  # LLVM may swap two stores that do not depend on each other
        }
        for name in ("one", "two")
    ]
    engine = tvm_runtime.adapter.engine(folder / "one", run_config())
    tokens = engine.tokenize(tiny.PROMPT + tiny.RECITAL, add_special=False, parse_special=False)
    wanted = reference.logits(model.config, model.weights, tokens)
    whole = engine.prefill(tokens).copy()
    engine.rewind(0)
    stepped = np.array([engine.prefill(tokens[:1]), *(engine.decode(t) for t in tokens[1:])])
    engine.rewind(7)
    again = engine.prefill(tokens[7:]).copy()
    state = engine.save_state()
    after = engine.decode(5).copy()
    engine.restore_state(state)
    restored = engine.decode(5).copy()
    damaged = state[:-1] + bytes([state[-1] ^ 1])
    refused_state = [code_of(lambda: engine.restore_state(damaged)), engine.position]
    engine.cancel()
    cancelled = [code_of(lambda: engine.prefill(tokens)), engine.position]
    engine.clear_cancel()
    texts = [greedy(engine, tokens[:1]).decode(), greedy(engine, asked(engine)).decode()]
    engine.rewind(0)
    engine.prefill((tokens * 4)[: CONTEXT - 1])
    edge = [code_of(lambda: engine.prefill([3, 4])), code_of(lambda: engine.decode(3))]
    edge.append(code_of(lambda: engine.decode(4)))
    engine.rewind(9)
    report, memory = engine.partition(), engine.memory()
    return {
        "files": sorted(path.name for path in (folder / "one").iterdir()),
        "format": made.resolved.name,
        "same_bytes": digests[0] == digests[1],
        "whole": distance(whole, wanted[-1]),
        "stepped": distance(stepped, wanted),
        "agree": bool((stepped.argmax(-1) == wanted.argmax(-1)).all()),
        "rewound": distance(again, whole),
        "restored": float(np.abs(after - restored).max()),
        "refused_state": refused_state,
        "cancelled": cancelled,
        "texts": texts == [tiny.RECITAL, tiny.ANSWER],
        "edge": edge,
        "partition": [report.requested, report.fallbacks, sorted(report.operators)],
        "position": engine.position,
        "weights_bytes": memory.weights_bytes.value,
        "refused": [
            code_of(
                lambda changes=changes: tvm_runtime.adapter.engine(
                    folder / "one", run_config(**changes)
                )
            )
            for changes in (
                {"kv_type": KvType.F16},
                {"context_length": 4096},
                {"hints": (("speed", "high"),)},
            )
        ],
        "refused_web": code_of(lambda: webllm.adapter.engine(folder / "one", run_config())),
    }


def number_formats(folder: Path) -> dict[str, Any]:
    model = tiny.make()
    source = tiny.write(folder / "hf", model)
    found = {}
    for name in ("q0f16", "q4f32_1", "q4f16_1"):
        chosen = numbers(name)
        made = export(tvm_runtime.adapter, source, folder / name, name)
        engine = tvm_runtime.adapter.engine(
            folder / name, run_config(kv_type=KvType(chosen.kv_type))
        )
        tokens = engine.tokenize(tiny.PROMPT + tiny.RECITAL, add_special=False, parse_special=False)
        logits = np.array([engine.prefill(tokens[:1]), *(engine.decode(t) for t in tokens[1:])])
        rounded = {key: _rounded(value, chosen) for key, value in model.weights.items()}
        wanted = reference.logits(model.config, rounded, tokens)
        found[name] = {
            "distance": distance(logits, wanted),
            "resolved": made.resolved.words,
            "types": made.types,
        }
    return found


def _rounded(weight: np.ndarray, chosen: Any) -> np.ndarray:
    if chosen.quantised and weight.ndim == 2:
        return unpack_groups(*pack_groups(weight, chosen.dtype))
    return weight.astype(chosen.dtype).astype(np.float32)


def refusals(folder: Path) -> dict[str, Any]:
    source = tiny.write(folder / "hf")
    told = {
        "int8": {"weights": "int8"},
        "group": {"weights": "int4-g64"},
        "asymmetric": {"weights": "int4-asym"},
        "kv": {"weights": "f32", "kv": KvType.F16},
        "overrides": {"weights": "f32", "overrides": ((".*", "f16"),)},
        "context": {"weights": "f32", "context_length": 100_000},
    }
    found = {
        name: code_of(
            lambda name=name, recipe=recipe: export(
                tvm_runtime.adapter, source, folder / name, recipe.pop("weights"), **recipe
            )
        )
        for name, recipe in told.items()
    }
    other = tiny.write(folder / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    found["layers"] = code_of(lambda: export(tvm_runtime.adapter, other, folder / "l", "f32"))
    (other / "config.json").write_text(json.dumps({**config, "architectures": ["GptForAll"]}))
    found["architecture"] = code_of(lambda: export(tvm_runtime.adapter, other, folder / "a", "f32"))
    left = [p.name for p in folder.iterdir() if p.name not in {"hf", "other"} and any(p.iterdir())]
    return {**found, "left": left}


def sampling(folder: Path) -> dict[str, Any]:
    """The GPU functions with their threads run one after the other on the processor."""
    import tvm
    from tvm import relax
    from tvm.script import from_source

    from edgewise.runtimes.webllm.sampling import add_sampling

    vocab = 97
    builder = relax.BlockBuilder()
    add_sampling(builder, vocab)
    bound = re.compile(r'T\.thread_binding\((.*), thread="[a-zA-Z.]+"\)')
    module = from_source(bound.sub(r"T.serial(\1)", builder.finalize().script()))
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())

    def call(name: str, *arrays: Any) -> Any:
        tensors = [tvm.runtime.tensor(np.asarray(array), tvm.cpu()) for array in arrays]
        out = machine[name](*tensors)
        first = tensors[0].numpy()
        return first if name.endswith("_inplace") else out

    random = np.random.default_rng(0)
    probs = random.random((2, vocab)).astype(np.float32)
    probs[0, 5] = probs[0, 60]
    probs /= probs.sum(-1, keepdims=True)
    values, indices = (tensor.numpy() for tensor in call("argsort_probs", probs))
    order = np.argsort(-probs, axis=-1, kind="stable")
    zero, top_p = np.zeros(1, np.int32), np.array([0.3, 0.9], np.float32)
    counts = np.zeros(vocab)
    for uniform in (np.arange(2000, dtype=np.float32) + 0.5) / 2000:
        drawn = call("sample_with_top_p", values, indices, uniform[None], zero, top_p)
        counts[int(drawn.numpy()[0])] += 1
    kept = int((np.cumsum(values[0]) < 0.3).sum()) + 1
    share = np.zeros(vocab)
    share[order[0, :kept]] = values[0, :kept] / values[0, :kept].sum()
    logits = random.normal(size=(1, vocab)).astype(np.float32)
    mask = np.array([[5, 0, 0, 1]], np.int32)
    masked = call("apply_bitmask_inplace", logits.copy(), zero, mask)
    places, tokens = np.zeros(2, np.int32), np.array([3, 4], np.int32)
    bias = np.array([1, -2], np.float32)
    biased = call("apply_logit_bias_inplace", logits.copy(), places, tokens, bias)
    penalties = np.array([[0.5, 0.25, 1.5]], np.float32)
    seen = np.array([1, 2], np.int32)
    lowered = call("apply_penalty_inplace", logits.copy(), zero, places, tokens, seen, penalties)
    wanted = logits[0, 3:5] - 0.5 - 0.25 * seen
    wanted = np.where(wanted > 0, wanted / 1.5, wanted * 1.5)
    return {
        "sorted": bool((indices == order).all())
        and bool((values == np.take_along_axis(probs, order, -1)).all()),
        "sampled": float(np.abs(counts / 2000 - share).max()),
        "outside": float(counts[share == 0].sum()),
        "masked": np.nonzero(masked[0] > -1e30)[0].tolist(),
        "biased": np.nonzero(biased - logits)[1].tolist(),
        "bias": float(np.abs(biased[0, 3:5] - logits[0, 3:5] - bias).max()),
        "penalty": float(np.abs(lowered[0, 3:5] - wanted).max()),
    }


def in_browser(folder: Path) -> dict[str, Any]:
    model = tiny.make()
    source = tiny.write(folder / "hf", model)
    made = export(webllm.adapter, source, folder / "web", "f32")
    engine: Any = webllm.adapter.engine(folder / "web", run_config())
    try:
        tokens = engine.tokenize(tiny.PROMPT + tiny.RECITAL, add_special=False, parse_special=False)
        wanted = reference.logits(model.config, model.weights, tokens)
        logits = np.array([engine.prefill(tokens[:9]), *(engine.decode(t) for t in tokens[9:])])
        engine.rewind(12)
        again = engine.prefill(tokens[12:]).copy()
        text = greedy(engine, tokens[:1]).decode()
        driver = engine._driver
        pieces: list[str] = []
        told = driver.generate({"prompt": tiny.PROMPT, "max_tokens": 60}, on_text=pieces.append)
        question = [{"role": "user", "content": tiny.QUESTION}]
        chat = driver.generate({"messages": question, "max_tokens": 60})
        forced = driver.generate(
            {"prompt": tiny.PROMPT, "max_tokens": 3, "logit_bias": {"65": 100}}
        )
        json_like = driver.generate(
            {"messages": question, "max_tokens": 8, "response_format": JSON_ONLY}
        )
        drawn = [
            driver.generate(
                {"prompt": "A", "max_tokens": 12, "temperature": 1.5, "top_p": 0.9, "seed": seed}
            )["text"]
            for seed in (1, 1, 2)
        ]
        checks = check_engine(engine, webllm.adapter.capabilities(), end_token_ids=[0, 2])
        console, refused = driver.console, driver.refused_requests
    finally:
        engine.close()
    return {
        "files": sorted(path.name for path in (folder / "web").iterdir()),
        "tools": sorted(made.tools),
        "fallbacks": list(made.partition.fallbacks),
        "distance": distance(logits, wanted[8:]),
        "agree": bool((logits.argmax(-1) == wanted[8:].argmax(-1)).all()),
        "rewound": distance(again, logits[-1]),
        "engine_text": text == tiny.RECITAL,
        "page_text": told["text"] == tiny.RECITAL,
        "pieces": "".join(pieces) == told["text"] and len(pieces) > 5,
        "told": {key: told[key] for key in ("finish", "tokens", "prompt_tokens")},
        "measured": told["ttft_ms"] > 0 and told["decode_tok_s"] > 0,
        "chat": [chat["text"] == tiny.ANSWER, chat["finish"]],
        "forced": forced["text"],
        "json": json_like["text"],
        "drawn": [drawn[0] == drawn[1], drawn[0] != drawn[2]],
        "limits": engine.browser["limits"]["maxStorageBuffersPerShaderStage"],
        "contract": {check.name: check.verdict for check in checks},
        "refused": list(refused),
        "errors": [line for line in console if line.startswith("error")],
    }


SCENARIOS = {
    "float_export": float_export,
    "number_formats": number_formats,
    "refusals": refusals,
    "sampling": sampling,
    "in_browser": in_browser,
}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(SCENARIOS[sys.argv[2]](Path(sys.argv[3]))) + "\n")
