"""Small checkpoints with random weights, for the conversions between GGUF and the HF form."""

from __future__ import annotations

import ctypes
import json
import random
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from edgewise.models.hf_form.byte_alphabet import CHAR_OF_BYTE

WIDTH, FEED_FORWARD, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 4, 2, 16
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>")
MERGES = (
    "t h",
    "th e",
    "Ġ the",
    "Ġ a",
    "i n",
    "Ġ Ġ",
    "ĠĠ ĠĠ",
    "Ċ Ċ",
    "1 2",
    "' s",
    "e r",
    "Ã ©",
    "ì ķ",
)

HARD_TEXTS = (
    "",
    " ",
    "   a",
    "Hello, world!",
    "Crème brûlée à la façade",
    unicodedata.normalize("NFD", "Crème brûlée à Ångström"),
    "😀👩\u200d👩\u200d👧\u200d👦🏳️\u200d🌈 ok",
    "日本語のテキストと漢字\uff0c。\uff01",
    "한국어 텍스트 안녕",
    "العربية نص",
    "1234567890 12 3 4.56 1,234,567 ①②③ ½ Ⅷ ٣٤٥",
    "x\n\n\n\ny\r\n\tz\t\t",
    "trailing   ",
    "\u00a0nbsp\u2003em\u200bzero",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|>text right after",
    "<bos>x<eos>y<start_of_turn>user\n<end_of_turn>",
    "don't I'LL we've they're IT'S",
    "def f(x):\n    return x**2  # ok\n",
    "<0x0A> <0xFF> <unk> [PAD1] <tool>x",
    "\x01\x7f",
    "▁lower ▁▁ one",
    "<table><td>x</td></table>",
)


def fuzzed_texts(count: int, seed: int) -> list[str]:
    """Return random strings of parts that tokenizers trip over."""
    rng = random.Random(seed)
    parts = ["a", "e", "the", " ", "  ", "\n", "\t", "1", "23", "é", "e\u0301", "日", "본", "😀"]
    parts += ["'s", "<|im_end|>", "<eos>", "<", "|", ">", ".", "!!", "-", "_", "\r\n", "ß", "Ω"]
    parts += ["\u2028", "ﬁ", "\u00a0", "②", "अ", "▁", "<0x41>", "<tool>", "er", "in"]
    return ["".join(rng.choices(parts, k=rng.randint(1, 30))) for _ in range(count)]


def byte_level_vocabulary() -> dict[str, Any]:
    """Return ``tokenizer.ggml.*`` of a byte-level BPE vocabulary with a few merges."""
    tokens = [*SPECIALS, *CHAR_OF_BYTE.values(), *(merge.replace(" ", "") for merge in MERGES)]
    types = [3, 3, 3, 4] + [1] * (len(tokens) - 4)
    return {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": types,
        "merges": list(MERGES),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": 2,
        "add_bos_token": False,
    }


def sentencepiece_vocabulary(*, add_space_prefix: bool) -> dict[str, Any]:
    """Return ``tokenizer.ggml.*`` of a SentencePiece vocabulary with byte fallback."""
    tokens = ["<unk>", "<bos>", "<eos>", "<tool>", "  "]
    types = [2, 3, 3, 4, 4]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    types += [6] * 256
    words = ["th", "the", "▁the", "▁a", "in", "er", "▁▁", "aa", "aaa", "ab", "bc", "abc", "ed"]
    letters = sorted({*"▁abcdefghijklmnopqrstuvwxyzHT.,!é1234日本", *"".join(words)})
    tokens += words + letters
    types += [1] * (len(words) + len(letters))
    first = len(tokens) - len(words) - len(letters)
    scores = [-1000.0] * 5 + [0.0] * 256 + [-float(n) for n in range(len(tokens) - first)]
    return {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "scores": scores,
        "token_type": types,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": True,
        "add_space_prefix": add_space_prefix,
    }


def random_tensors(
    architecture: str, *, rows: int, n_layers: int = 2, tied: bool = True, seed: int = 7
) -> dict[str, np.ndarray]:
    """Return float32 tensors by GGUF name, in numpy order."""
    rng = np.random.default_rng(seed)
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (rows, WIDTH)}
    for layer in range(n_layers):
        block = f"blk.{layer}."
        names: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (WIDTH,),
            "attn_q.weight": (queries, WIDTH),
            "attn_k.weight": (keys, WIDTH),
            "attn_v.weight": (keys, WIDTH),
            "attn_output.weight": (WIDTH, queries),
            "ffn_norm.weight": (WIDTH,),
            "ffn_gate.weight": (FEED_FORWARD, WIDTH),
            "ffn_up.weight": (FEED_FORWARD, WIDTH),
            "ffn_down.weight": (WIDTH, FEED_FORWARD),
        }
        if architecture == "qwen2":
            names |= {f"attn_{one}.bias": names[f"attn_{one}.weight"][:1] for one in "qkv"}
        if architecture in {"qwen3", "gemma3"}:
            names |= {f"attn_{one}_norm.weight": (HEAD_DIM,) for one in "qk"}
        if architecture == "gemma3":
            names |= {"post_attention_norm.weight": (WIDTH,), "post_ffw_norm.weight": (WIDTH,)}
        shapes |= {block + name: shape for name, shape in names.items()}
    shapes["output_norm.weight"] = (WIDTH,)
    if not tied:
        shapes["output.weight"] = (rows, WIDTH)
    made = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape).astype(np.float32) * 0.1
        # Norm weights lie around one, as in a trained model.
        made[name] = 1 + values if name.endswith("norm.weight") else values
    return made


def random_gguf(
    path: Path,
    architecture: str = "llama",
    *,
    vocabulary: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    n_layers: int = 2,
    matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model with random weights by the reference package, and return its path."""
    words = dict(byte_level_vocabulary() if vocabulary is None else vocabulary)
    made = tensors or random_tensors(architecture, rows=len(words["tokens"]), n_layers=n_layers)
    writer = gguf.GGUFWriter(path, architecture)
    values: dict[str, Any] = {
        "general.name": "Random",
        "general.license": "apache-2.0",
        f"{architecture}.block_count": n_layers,
        f"{architecture}.context_length": 256,
        f"{architecture}.embedding_length": WIDTH,
        f"{architecture}.feed_forward_length": FEED_FORWARD,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.key_length": HEAD_DIM,
        f"{architecture}.attention.value_length": HEAD_DIM,
        f"{architecture}.rope.dimension_count": HEAD_DIM,
        f"{architecture}.rope.freq_base": 20000.0,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
    }
    if architecture == "gemma3":
        values["gemma3.attention.sliding_window"] = 8
    values |= {f"tokenizer.ggml.{key}": value for key, value in words.items()}
    for key, value in {**values, **(metadata or {})}.items():
        _add(writer, key, value)
    for name, array in made.items():
        if array.ndim == 1:
            writer.add_tensor(name, array)
            continue
        data = gguf.quants.quantize(array, matrices)
        writer.add_tensor(name, data, raw_dtype=matrices)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; a value of ``...`` removes the key."""
    value = json.loads(path.read_text(encoding="utf-8"))
    for key, change in changes.items():
        value.pop(key, None)
        if change is not ...:
            value[key] = change
    path.write_text(json.dumps(value), encoding="utf-8")


class LlamaVocabulary:
    """llama.cpp's own tokenizer of a GGUF file, without its weights."""

    def __init__(self, bindings: Any, vocab: Any) -> None:
        self._n = bindings
        self._vocab = vocab
        self.size = bindings.llama_vocab_n_tokens(vocab)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode()
        buffer = (self._n.llama_token * (len(raw) + 8))()
        count = self._n.llama_tokenize(
            self._vocab, raw, len(raw), buffer, len(buffer), add_special, parse_special
        )
        assert count >= 0
        return list(buffer[:count])

    def token_bytes(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(512)
        count = self._n.llama_token_to_piece(self._vocab, token, buffer, 512, 0, False)
        assert count >= 0
        return buffer.raw[:count]


@contextmanager
def llama_vocabulary(path: Path) -> Iterator[LlamaVocabulary]:
    """Yield llama.cpp's tokenizer of a file."""
    from edgewise.runtimes.llamacpp import native

    bindings = native.load()
    native.native_log()
    bindings.llama_backend_init()
    params = bindings.llama_model_default_params()
    params.vocab_only = True
    model = bindings.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp refuses {path}"
    try:
        yield LlamaVocabulary(bindings, bindings.llama_model_get_vocab(model))
    finally:
        bindings.llama_model_free(model)


def llama_logits(path: Path, ids: Sequence[int]) -> np.ndarray:
    """Return llama.cpp's logits after each token, with a cache of 32-bit floats."""
    from edgewise.runtimes.llamacpp import native

    bindings = native.load()
    native.native_log()
    bindings.llama_backend_init()
    model = bindings.llama_model_load_from_file(
        str(path).encode(), bindings.llama_model_default_params()
    )
    assert model, f"llama.cpp refuses {path}"
    params = bindings.llama_context_default_params()
    params.n_ctx = params.n_batch = 256
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = 0
    params.flash_attn_type = 0
    context = bindings.llama_init_from_model(model, params)
    batch = bindings.llama_batch_init(len(ids), 0, 1)
    for at, token in enumerate(ids):
        batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, at, 1
        batch.seq_id[at][0] = 0
        batch.logits[at] = 1
    batch.n_tokens = len(ids)
    try:
        assert bindings.llama_decode(context, batch) == 0
        size = bindings.llama_vocab_n_tokens(bindings.llama_model_get_vocab(model))
        found = bindings.llama_get_logits(context)
        return np.ctypeslib.as_array(found, shape=(len(ids), size)).astype(np.float64)
    finally:
        bindings.llama_batch_free(batch)
        bindings.llama_free(context)
        bindings.llama_model_free(model)


def disagreements(
    ours: Any, theirs: LlamaVocabulary, texts: Sequence[str]
) -> list[tuple[str, bool, bool]]:
    """Return the texts and options for which two tokenizers give other ids."""
    return [
        (text, add_special, parse_special)
        for text in texts
        for add_special in (False, True)
        for parse_special in (False, True)
        if ours.tokenize(text, add_special=add_special, parse_special=parse_special)
        != theirs.tokenize(text, add_special=add_special, parse_special=parse_special)
    ]
