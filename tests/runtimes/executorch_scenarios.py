"""Scenarios of the ExecuTorch runtime, run by the interpreter of its environment.

``python executorch_scenarios.py SRC FOLDER`` runs all of them in one process, since an export
spends most of its time on warming up, and writes one JSON line. The model is random and has one
layer; the reference is written out here, so that the exporter is judged by nobody's code but ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from edgewise.core.recipe import KvType, Recipe, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes import coreml, executorch
from edgewise.runtimes.protocol import CancelledError

DIM, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 64, 96, 4, 2, 16, 1, 300
THETA, EPS, CONTEXT = 10_000.0, 1e-5, 160


def checkpoint(folder: Path, **changes) -> dict[str, torch.Tensor]:
    folder.mkdir(parents=True)
    torch.manual_seed(7)
    width = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    tensors = {
        "model.embed_tokens.weight": 0.3 * torch.randn(VOCAB, DIM),
        "model.norm.weight": 1 + 0.2 * torch.randn(DIM),
        "lm_head.weight": 0.3 * torch.randn(VOCAB, DIM),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, rows in width.items():
            tensors[f"{at}self_attn.{name}_proj.weight"] = 0.3 * torch.randn(rows, DIM)
        tensors[f"{at}self_attn.o_proj.weight"] = 0.3 * torch.randn(DIM, width["q"])
        for name in ("gate", "up"):
            tensors[f"{at}mlp.{name}_proj.weight"] = 0.3 * torch.randn(HIDDEN, DIM)
        tensors[f"{at}mlp.down_proj.weight"] = 0.3 * torch.randn(DIM, HIDDEN)
        for name in ("input", "post_attention"):
            tensors[f"{at}{name}_layernorm.weight"] = 1 + 0.2 * torch.randn(DIM)
    save_file(tensors, str(folder / "model.safetensors"))
    config = {
        "model_type": "llama",
        "hidden_size": DIM,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "max_position_embeddings": CONTEXT,
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return tensors


def reference(tensors: dict[str, torch.Tensor], ids: list[int]) -> np.ndarray:
    """Logits after each token, ``(len(ids), VOCAB)``, by the textbook."""

    def norm(values: torch.Tensor, name: str) -> torch.Tensor:
        return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + EPS) * tensors[name]

    n = len(ids)
    steps = THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.outer(torch.arange(n), steps).repeat(1, 2)[:, None]

    def rotate(values: torch.Tensor) -> torch.Tensor:
        low, high = values.chunk(2, -1)
        return values * angles.cos() + torch.cat((-high, low), -1) * angles.sin()

    x = tensors["model.embed_tokens.weight"][torch.tensor(ids)]
    mask = torch.full((n, n), float("-inf")).triu(1)
    for layer in range(LAYERS):
        w = {k.split(f"layers.{layer}.")[1]: v for k, v in tensors.items() if f".{layer}." in k}
        h = norm(x, f"model.layers.{layer}.input_layernorm.weight")
        q = rotate((h @ w["self_attn.q_proj.weight"].T).view(n, HEADS, HEAD_DIM))
        k = rotate((h @ w["self_attn.k_proj.weight"].T).view(n, KV_HEADS, HEAD_DIM))
        v = (h @ w["self_attn.v_proj.weight"].T).view(n, KV_HEADS, HEAD_DIM)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / HEAD_DIM**0.5 + mask
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(n, -1)
        x = x + mixed @ w["self_attn.o_proj.weight"].T
        h = norm(x, f"model.layers.{layer}.post_attention_layernorm.weight")
        gate = torch.nn.functional.silu(h @ w["mlp.gate_proj.weight"].T)
        x = x + (gate * (h @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
    logits = norm(x, "model.norm.weight") @ tensors["lm_head.weight"].T
    return np.asarray(logits)


def export(source: Path, out: Path, weights: str, **more):
    out.mkdir()
    recipe = Recipe(name=weights, weights=weights, **more)
    return executorch.adapter.exporter().export(source, out, recipe, threads=2)


def code(call) -> str:
    try:
        call()
    except EdgewiseError as error:
        return error.code
    except CancelledError:
        return "cancelled"
    return "none"


def config(context: int = CONTEXT, **more) -> RunConfig:
    return RunConfig(context_length=context, kv_type=KvType.F32, threads=2, **more)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def float_export(folder: Path) -> dict[str, object]:
    tensors = checkpoint(folder / "hf")
    first = export(folder / "hf", folder / "8da4w", "f32")
    again = export(folder / "hf", folder / "again", "f32@xnnpack")
    ids = torch.randint(0, VOCAB, (CONTEXT,)).tolist()
    want = reference(tensors, ids)
    engine = executorch.adapter.engine(folder / "8da4w", config(CONTEXT - 10))
    stepped = np.stack([engine.decode(token).copy() for token in ids[: CONTEXT - 10]])
    engine.rewind(0)
    whole = engine.prefill(ids[:140]).copy()
    engine.rewind(60)
    turned = engine.prefill(ids[60:140]).copy()
    engine.rewind(60)
    repeated = engine.prefill(ids[60:140]).copy()
    engine.rewind(140)
    results = {
        "files": files(folder / "8da4w"),
        "same_bytes": all(
            (folder / "8da4w" / name).read_bytes() == (folder / "again" / name).read_bytes()
            for name in files(folder / "8da4w")
        ),
        "format": [first.resolved.name, again.resolved.name],
        "stepped": float(np.abs(stepped - want[: CONTEXT - 10]).max()),
        "whole": float(np.abs(whole - want[139]).max()),
        "turned": float(np.abs(turned - want[139]).max()),
        "repeatable": bool((turned == repeated).all()),
        "edge": [
            code(lambda: engine.prefill(ids[140:151])),
            code(lambda: engine.prefill(ids[140:150])),
        ],
        "full": [engine.position, code(lambda: engine.decode(1))],
        "text": engine.token_bytes(engine.tokenize("é", add_special=False, parse_special=False)[0])[
            0
        ],
    }
    engine.rewind(3)
    results["cancelled"] = code(
        lambda: engine.prefill(ids[:140], progress=lambda _done: engine.cancel())
    )
    engine.clear_cancel()
    results["after_cancel"] = [
        engine.position,
        float(np.abs(engine.decode(ids[3]) - want[3]).max()),
    ]
    results["state"] = code(engine.save_state)
    report = engine.partition()
    results["partition"] = [
        report.requested,
        report == first.partition,
        report.weights,
        report.fallbacks,
    ]
    engine.close()
    program = folder / "again" / "model.pte"
    program.chmod(0o644)
    program.write_bytes(program.read_bytes()[:-100])
    results["cut"] = code(lambda: executorch.adapter.engine(folder / "again", config()))
    results["refused"] = [
        code(lambda: executorch.adapter.engine(folder / "8da4w", config(CONTEXT + 1))),
        code(lambda: executorch.adapter.engine(folder / "8da4w", RunConfig(context_length=32))),
        code(lambda: executorch.adapter.engine(folder / "8da4w", config(hints=(("a", "b"),)))),
    ]
    return results


def quantised(folder: Path) -> dict[str, object]:
    tensors = checkpoint(folder / "hf")
    ids = torch.randint(0, VOCAB, (100,)).tolist()
    want = reference(tensors, ids)
    found: dict[str, object] = {}
    for name in ("8da8w-channel", "f32@portable"):
        made = export(folder / "hf", folder / name.replace("@", "-"), name, context_length=128)
        engine = executorch.adapter.engine(folder / name.replace("@", "-"), config(128))
        got = np.stack([engine.decode(token).copy() for token in ids])
        noise = float(np.sqrt(((got - want) ** 2).mean() / want.var()))
        report = engine.partition()
        found[name] = {
            "noise": noise,
            "linears": report.weights,
            "linear_fallbacks": [op for op in report.fallbacks if "linear" in op or "mm" in op],
            "types": made.types,
            "context": engine.context_length,
        }
        engine.close()
    return found


def elsewhere(folder: Path) -> dict[str, object]:
    checkpoint(folder / "hf")
    vulkan = export(folder / "hf", folder / "vulkan", "8da4w-g32@vulkan", context_length=64)
    out = folder / "coreml"
    out.mkdir()
    apple = coreml.adapter.exporter().export(
        folder / "hf", out, Recipe(name="f16", weights="f16", context_length=64), threads=2
    )
    return {
        "vulkan": [vulkan.partition.requested, vulkan.partition.weights],
        "coreml": [apple.partition.requested, apple.partition.delegated > 0, files(out)],
        "run": [
            code(lambda name=name: executorch.adapter.engine(folder / name, config(64)))
            for name in ("vulkan", "coreml")
        ],
        "capabilities": [
            list(executorch.adapter.capabilities().backends),
            coreml.adapter.capabilities().can_run,
        ],
    }


def bad_input(folder: Path) -> dict[str, object]:
    source = folder / "hf"
    tensors = checkpoint(source)
    found: dict[str, object] = {}
    outs = iter(range(99))

    def attempt(**more) -> str:
        return code(lambda: export(source, folder / f"out{next(outs)}", "f32", **more))

    missing = {name: value for name, value in tensors.items() if "o_proj" not in name}
    save_file(missing, str(source / "model.safetensors"))
    found["missing"] = attempt()
    save_file(
        {**tensors, "model.norm.weight": torch.ones(DIM + 1)}, str(source / "model.safetensors")
    )
    found["shape"] = attempt()
    save_file({**tensors, "model.more.weight": torch.ones(4)}, str(source / "model.safetensors"))
    found["unknown"] = attempt()
    (source / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json at all!")
    found["damaged"] = attempt()
    (source / "model.safetensors").unlink()
    found["absent"] = attempt()
    found["left"] = [name for out in folder.glob("out*") for name in files(out)]
    save_file(tensors, str(source / "model.safetensors"))
    config_file = source / "config.json"
    config_file.write_text(json.dumps({**json.loads(config_file.read_text()), "vocab_size": 200}))
    found["tokenizer"] = attempt()
    config_file.write_text(json.dumps({**json.loads(config_file.read_text()), "vocab_size": VOCAB}))
    return found


SCENARIOS = (float_export, quantised, elsewhere, bad_input)

if __name__ == "__main__":
    result = {call.__name__: call(Path(sys.argv[2]) / call.__name__) for call in SCENARIOS}
    sys.stdout.write(json.dumps(result) + "\n")
