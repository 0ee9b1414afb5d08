"""A tiny llama checkpoint of our own, made in a second, for tests on slow or simulated devices.

The body is random (seeded), the head is fitted: least squares on the body's states makes it say
one text by heart, so a test knows what a correct runtime answers, to the letter. The tokenizer is
a byte-level BPE with merges learnt from the same text.

``python -m edgewise.runtimes.webllm.tiny FOLDER`` writes it.
"""

from __future__ import annotations

import collections
import itertools
import json
import struct
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from edgewise.runtimes.webllm.config import LlamaConfig
from edgewise.runtimes.webllm.reference import hidden_states

__all__ = ["ANSWER", "PROMPT", "QUESTION", "RECITAL", "TinyModel", "make", "write"]

PROMPT: Final = "Edgewise"
RECITAL: Final = " carries one checkpoint to every device: a café's tablet, a 機械, a browser tab."
QUESTION: Final = "Who are you?"
ANSWER: Final = "A very small model, made for tests. 🙂"

_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_SHAPE: Final = LlamaConfig(
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=32,
    hidden=192,
    intermediate=256,
    vocab=320,
    rope_theta=10_000,
    norm_eps=1e-5,
    tied=False,
    context_length=512,
)
_SEED: Final = 20_261_130
_RIDGE: Final = 1e-4

Array = np.ndarray[Any, np.dtype[Any]]


class TinyModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model before it is written: shape, tensors by name, and the tokenizer's JSON."""

    config: LlamaConfig
    weights: dict[str, Any]
    tokenizer: dict[str, Any]


def make(config: LlamaConfig = _SHAPE) -> TinyModel:
    """Return the model; the same one every time, up to the rounding of the machine's algebra."""
    chat = (
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n",
        f"{ANSWER}<|im_end|>",
    )
    lessons = ((PROMPT, f"{RECITAL}<|endoftext|>"), chat)
    pieces, merges = _learn_merges(f"{PROMPT}{RECITAL} {QUESTION} {ANSWER}", config.vocab)
    vocab = {piece: index for index, piece in enumerate([*_SPECIALS, *pieces])}
    weights = _body(config)
    states, targets = [], []
    for given, wanted in lessons:
        start, rest = _encode(given, vocab, merges), _encode(wanted, vocab, merges)
        seen = hidden_states(config, weights, (start + rest)[:-1])
        states.append(seen[len(start) - 1 :])
        targets.extend(rest)
    weights["lm_head.weight"] = _head(np.concatenate(states), targets, config.vocab)
    return TinyModel(config=config, weights=weights, tokenizer=_tokenizer(vocab, merges))


def write(folder: Path, model: TinyModel | None = None) -> Path:
    """Write the model as an HF checkpoint into ``folder``, made if missing, and return it."""
    made = model or make()
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _hf_config(made.config))
    _write_json(folder / "generation_config.json", {"eos_token_id": [0, 2]})
    _write_json(folder / "tokenizer.json", made.tokenizer)
    _write_json(
        folder / "tokenizer_config.json",
        {
            "chat_template": _TEMPLATE,
            "eos_token": "<|im_end|>",
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    _write_safetensors(folder / "model.safetensors", made.weights)
    return folder


def _body(config: LlamaConfig) -> dict[str, Array]:
    random = np.random.default_rng(_SEED)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Array:
        drawn: Array = random.standard_normal((rows, columns)) * gain / np.sqrt(columns)
        return drawn.astype(np.float32)

    wide, inner, head = config.hidden, config.intermediate, config.head_dim
    weights = {"model.embed_tokens.weight": matrix(config.vocab, wide, gain=np.sqrt(wide))}
    for index in range(config.layers):
        name = f"model.layers.{index}."
        # Sharp attention tells positions of one text apart.
        weights[f"{name}self_attn.q_proj.weight"] = matrix(config.heads * head, wide, gain=1.5)
        weights[f"{name}self_attn.k_proj.weight"] = matrix(config.kv_heads * head, wide, gain=1.5)
        weights[f"{name}self_attn.v_proj.weight"] = matrix(config.kv_heads * head, wide, gain=2.0)
        weights[f"{name}self_attn.o_proj.weight"] = matrix(wide, config.heads * head, gain=2.0)
        weights[f"{name}mlp.gate_proj.weight"] = matrix(inner, wide)
        weights[f"{name}mlp.up_proj.weight"] = matrix(inner, wide)
        weights[f"{name}mlp.down_proj.weight"] = matrix(wide, inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}{norm}.weight"] = np.ones(wide, dtype=np.float32)
    weights["model.norm.weight"] = np.ones(wide, dtype=np.float32)
    return weights


def _head(states: Array, targets: list[int], vocab: int) -> Array:
    wanted = np.zeros((len(targets), vocab))
    wanted[np.arange(len(targets)), targets] = 8.0
    seen = states.astype(np.float64)
    gram = seen @ seen.T + _RIDGE * np.eye(len(targets))
    head = seen.T @ np.linalg.solve(gram, wanted)
    fitted: Array = np.ascontiguousarray(head.T, dtype=np.float32)
    return fitted


def _byte_letters() -> list[str]:
    """Return the letter that stands for each byte in a byte-level vocabulary."""
    plain = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)]


def _learn_merges(text: str, vocab: int) -> tuple[list[str], list[tuple[str, str]]]:
    letters = _byte_letters()
    pieces = list(letters)
    merges: list[tuple[str, str]] = []
    words = [[letters[byte] for byte in word.encode()] for word in _words(text)]
    while len(pieces) + len(_SPECIALS) < vocab:
        pairs = collections.Counter(pair for word in words for pair in itertools.pairwise(word))
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        pieces.append("".join(best))
        words = [_merged(word, best) for word in words]
    return pieces, merges


def _words(text: str) -> list[str]:
    """Split before every space, as the tokenizer's pre-tokenizer does here."""
    return text.replace(" ", "\0 ").split("\0")


def _merged(word: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    for letter in word:
        if out and (out[-1], letter) == pair:
            out[-1] += letter
        else:
            out.append(letter)
    return out


def _encode(text: str, vocab: dict[str, int], merges: list[tuple[str, str]]) -> list[int]:
    letters = _byte_letters()
    ids: list[int] = []
    for special in _SPECIALS:
        text = text.replace(special, f"\1{special}\1")
    for part in filter(None, text.split("\1")):
        if part in _SPECIALS:
            ids.append(vocab[part])
            continue
        for word in filter(None, _words(part)):
            symbols = [letters[byte] for byte in word.encode()]
            for pair in merges:
                symbols = _merged(symbols, pair)
            ids.extend(vocab[symbol] for symbol in symbols)
    return ids


def _tokenizer(vocab: dict[str, int], merges: list[tuple[str, str]]) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithNext"}
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocab[text],
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for text in _SPECIALS
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{**split, "invert": False}, level],
        },
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [" ".join(pair) for pair in merges],
        },
    }


def _hf_config(config: LlamaConfig) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context_length,
        "rope_theta": float(config.rope_theta),
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _write_safetensors(path: Path, weights: dict[str, Array]) -> None:
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in weights.items():
        end = offset + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in weights.values():
            file.write(np.ascontiguousarray(tensor, dtype="<f4").tobytes())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
