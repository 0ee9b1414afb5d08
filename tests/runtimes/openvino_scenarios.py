"""The scene of the openvino tests, run by the interpreter of its environment.

``python openvino_scenarios.py SRC FOLDER`` prints one JSON line. The model is a small random one,
made on the spot.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

import numpy as np

from edgewise.core.recipe import KvType, Recipe, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes.openvino import adapter, native
from edgewise.runtimes.protocol import CancelledError

TEXT = "The old bridge was closed for repairs last winter, so everyone took the long road. " * 3
CONTEXT = 512
CASES = ("f32", "f16", "int8", "int8-channel-asym", "int4-g32", "w4a8-g32-sym", "w8a8s")


def make_checkpoint(folder: Path) -> tuple[list[int], Any]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    native.quiet_export_imports()
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
        tie_word_embeddings=True,
        eos_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        logits = model(torch.tensor([ids])).logits[0].numpy()
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return ids, logits


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def export(source: Path, destination: Path, weights: str, calibration: Path) -> dict[str, Any]:
    destination.mkdir(parents=True)
    recipe = Recipe(name=weights, weights=weights)
    static = weights == "w8a8s"
    result = adapter.exporter().export(
        source, destination, recipe, threads=2, calibration=calibration if static else None
    )
    report = result.calibration
    return {
        "deviations": len(result.deviations),
        "files": digests(destination),
        "types": result.types,
        "tools": sorted(result.tools),
        "ranges": [[r.low, r.high, r.clipped.value] for r in report.ranges] if report else [],
    }


def divergence(source: Any, mine: Any) -> tuple[float, float]:
    def log_softmax(x: Any) -> Any:
        x = x.astype(np.float64)
        x = x - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    left, right = log_softmax(source), log_softmax(mine)
    kl = (np.exp(left) * (left - right)).sum(-1).mean()
    return float(kl), float((left.argmax(-1) == right.argmax(-1)).mean())


def code_of(call: Any) -> str:
    try:
        call()
    except EdgewiseError as error:
        return error.code
    return "accepted"


def run(artifact: Path, ids: list[int], logits: Any, kv: KvType) -> dict[str, Any]:
    engine: Any = adapter.engine(artifact, RunConfig(context_length=CONTEXT, kv_type=kv, threads=2))
    mine = np.array([engine.decode(token).copy() for token in ids])
    kl, top1 = divergence(logits, mine)
    engine.rewind(0)
    engine.prefill(ids[:40])
    state = engine.save_state()
    after = engine.prefill(ids[40:70]).copy()
    engine.rewind(40)
    rewound = float(np.abs(engine.prefill(ids[40:70]) - after).max())
    engine.restore_state(state)
    restored = float(np.abs(engine.prefill(ids[40:70]) - after).max())
    engine.rewind(40)
    timer = threading.Timer(0.05, engine.cancel)
    timer.start()
    cancelled = False
    try:
        while True:
            engine.prefill(ids[:100])
            engine.rewind(40)
    except CancelledError:
        cancelled = True
    timer.join()
    engine.clear_cancel()
    found = {
        "kl": kl,
        "top1": top1,
        "rewound": rewound,
        "restored": restored,
        "cancelled": cancelled,
        "position": engine.position,
        "after_cancel": float(np.abs(engine.prefill(ids[40:70]) - after).max()),
        "damaged": code_of(lambda: engine.restore_state(state[:-1])),
    }
    report = engine.partition()
    found |= {
        "precision": report.precision,
        "fallbacks": report.fallbacks,
        "products": sum(report.weights.values()),
    }
    engine.close()
    return found


def main(folder: Path) -> dict[str, Any]:
    source = folder / "hf"
    ids, logits = make_checkpoint(source)
    calibration = folder / "calibration.txt"
    calibration.write_text("\n".join([TEXT[:120], TEXT[7:200], TEXT[20:180]]))
    found: dict[str, Any] = {"made": {}, "ran": {}}
    for name in CASES:
        found["made"][name] = export(source, folder / name, name, calibration)
        found["ran"][name] = run(folder / name, ids, logits, KvType.F16)
    found["again"] = export(source, folder / "again", "int8", calibration)["files"]
    u8: Any = adapter.engine(folder / "f32", RunConfig(kv_type=KvType.U8, threads=2))
    u8.prefill(ids)
    hint = (("INFERENCE_PRECISION_HINT", "f64"),)
    found["refused"] = {
        "rewind-u8": code_of(lambda: u8.rewind(10)),
        "save-u8": code_of(u8.save_state),
        "hint": code_of(lambda: adapter.engine(folder / "f32", RunConfig(hints=(("X", "1"),)))),
        "precision": code_of(lambda: adapter.engine(folder / "f32", RunConfig(hints=hint))),
    }
    u8.close()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[2]))))
