"""Scenes for the onnx-genai tests, run by the interpreter of its environment.

``python onnx_genai_scenarios.py SRC SCENE FOLDER`` prints one JSON line. The model is a small
random one, made on the spot: every norm and bias is away from its neutral value.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

import numpy as np

from edgewise.core.recipe import KvType, Recipe, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes.onnx_genai import adapter
from edgewise.runtimes.onnx_genai.formats import FORMATS
from edgewise.runtimes.protocol import CancelledError

TEXT = "The old bridge was closed for repairs last winter, so everyone took the long road. " * 4
CONTEXT = 512
RUN = RunConfig(context_length=CONTEXT, kv_type=KvType.F32, threads=2)


def make_checkpoint(folder: Path, *, tied: bool = True) -> None:
    """Write a random two-layer model with a byte-level tokenizer, and its own logits."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<|end|>": 0, **{letter: index + 1 for index, letter in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=tied,
        eos_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.add_(0.15 * noise)
        ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
        logits = model(torch.tensor([ids])).logits[0].numpy()
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 5]}))
    np.savez(folder.parent / f"{folder.name}.npz", ids=np.array(ids), logits=logits)


def export(source: Path, destination: Path, weights: str, **more: Any) -> dict[str, Any]:
    shutil.rmtree(destination, ignore_errors=True)
    destination.mkdir(parents=True)
    result = adapter.exporter().export(
        source, destination, Recipe(name=weights, weights=weights, **more), threads=2
    )
    return {
        "types": result.types,
        "deviations": len(result.deviations),
        "notes": result.notes,
        "context": result.context_length,
        "tools": sorted(result.tools),
        "files": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(destination.rglob("*"))
        },
        "end_tokens": json.loads((destination / "genai_config.json").read_text())["model"][
            "eos_token_id"
        ],
    }


def scene_export(folder: Path) -> dict[str, Any]:
    make_checkpoint(folder / "hf")
    make_checkpoint(folder / "untied", tied=False)
    made = {o.name: export(folder / "hf", folder / "art" / o.name, o.name) for o in FORMATS}
    return {
        "made": made,
        "again": {
            name: export(folder / "hf", folder / "again", name)["files"]
            for name in ("fp32", "rtn-int4", "kquant-int4")
        },
        "untied": export(folder / "untied", folder / "untied-art" / "rtn-int4", "rtn-int4"),
        "untied-fp32": export(folder / "untied", folder / "untied-art" / "fp32", "fp32"),
        "short": export(folder / "hf", folder / "short", "f32", context_length=128),
    }


def scene_refuse(folder: Path) -> dict[str, str]:
    """Damage a checkpoint in each way and return the codes."""
    safetensors: Any = importlib.import_module("safetensors.numpy")
    found = {}
    for damage in ("incomplete", "cut", "architecture", "tokenizer"):
        source = folder / damage
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(folder / "hf", source)
        weights, config = source / "model.safetensors", source / "config.json"
        if damage == "incomplete":
            tensors = safetensors.load_file(weights)
            del tensors["model.layers.1.mlp.up_proj.weight"]
            safetensors.save_file(tensors, weights, metadata={"format": "pt"})
        elif damage == "cut":
            weights.write_bytes(weights.read_bytes()[:-1000])
        else:
            key, value = {
                "architecture": ("architectures", ["MambaForCausalLM"]),
                "tokenizer": ("vocab_size", 100),
            }[damage]
            config.write_text(json.dumps({**json.loads(config.read_text()), key: value}))
        try:
            export(source, folder / "refused", "fp32")
            found[damage] = "none"
        except EdgewiseError as error:
            found[damage] = error.code
    return found


def scene_run(folder: Path) -> dict[str, Any]:
    return {
        path.name: observe(path, folder / "hf.npz") for path in sorted((folder / "art").iterdir())
    }


def scene_untied(folder: Path) -> dict[str, Any]:
    return {
        path.name: observe(path, folder / "untied.npz")
        for path in sorted((folder / "untied-art").iterdir())
    }


def scene_broken(folder: Path) -> dict[str, str]:
    """Damage an artifact in each way and return the codes."""
    found = {}
    for name in ("model.onnx", "model.onnx.data", "genai_config.json", "tokenizer.json"):
        copy = folder / "broken"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder / "art" / "rtn-int4", copy)
        (copy / name).write_bytes((copy / name).read_bytes()[:100])
        try:
            adapter.engine(copy, RUN)
            found[name] = "none"
        except EdgewiseError as error:
            found[name] = error.code
    return found


def scene_capabilities(_folder: Path) -> dict[str, Any]:
    found = adapter.capabilities()
    return {
        "can_run": found.can_run,
        "can_export": found.can_export,
        "backends": found.backends,
        "digest": adapter.operators_digest(),
        "version": adapter.version(),
    }


def log_softmax(logits: Any) -> Any:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def divergence(reference: Any, other: Any) -> Any:
    a, b = log_softmax(reference), log_softmax(other)
    return (np.exp(a) * (a - b)).sum(-1)


def observe(artifact: Path, reference: Path) -> dict[str, Any]:
    """Run an artifact through what every engine must do, and return what was seen."""
    stored = np.load(reference)
    ids, truth = [int(one) for one in stored["ids"]], stored["logits"]
    engine: Any = adapter.engine(artifact, RUN)
    steps = [engine.prefill(ids[:1]).copy(), *(engine.decode(one).copy() for one in ids[1:])]
    seen = np.stack(steps)
    engine.rewind(0)
    at_once = engine.prefill(ids).copy()
    engine.decode(7)
    engine.rewind(len(ids) - 1)
    again = engine.decode(ids[-1]).copy()
    cancelled, after = cancel(engine, ids)
    for _ in range(3):
        engine.rewind(0)
        engine.prefill(ids)
    before = engine.memory().resident_bytes.number
    for _ in range(30):
        engine.rewind(0)
        engine.prefill(ids)
        engine.decode(7)
    report = engine.partition()
    result = {
        "text": engine.tokenize("a é", add_special=False, parse_special=False),
        "top1": float((seen.argmax(-1) == truth.argmax(-1)).mean()),
        "kl": float(divergence(truth, seen).mean()),
        "prefill_kl": float(divergence(seen[-1], at_once)),
        "rewind_kl": float(divergence(at_once, again)),
        "cancelled": cancelled,
        "after_cancel": after,
        "growth_bytes": engine.memory().resident_bytes.number - before,
        "kv_bytes": engine.memory().kv_cache_bytes.number,
        "requested": report.requested,
        "fallbacks": report.fallbacks,
        "products": sum(report.weights.values()),
        "precision": report.precision,
        "refused": refused(engine, ids),
    }
    engine.close()
    return result


def cancel(engine: Any, ids: list[int]) -> tuple[bool, bool]:
    engine.rewind(0)
    engine.prefill(ids[:8])
    before = engine.decode(ids[8]).copy()
    engine.rewind(8)
    threads = []

    def stop(_done: int) -> None:
        threads.append(threading.Thread(target=engine.cancel))
        threads[-1].start()
        threads[-1].join()

    try:
        engine.prefill(ids[8:], progress=stop)
        cancelled = False
    except CancelledError:
        cancelled = engine.position == 8 and len(threads) == 1
    engine.clear_cancel()
    return cancelled, bool(np.array_equal(engine.decode(ids[8]), before))


def refused(engine: Any, ids: list[int]) -> dict[str, str]:
    engine.rewind(0)
    engine.prefill((ids * 9)[:CONTEXT])
    calls = {
        "full": lambda: engine.decode(5),
        "empty": lambda: engine.prefill([]),
        "token": lambda: engine.prefill([10**6]),
        "rewind": lambda: engine.rewind(CONTEXT + 1),
        "save": engine.save_state,
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = "none"
        except EdgewiseError as error:
            found[name] = error.code
    return found


if __name__ == "__main__":
    answer = globals()[f"scene_{sys.argv[2]}"](Path(sys.argv[3]))
    sys.stdout.write(json.dumps(answer) + "\n")
