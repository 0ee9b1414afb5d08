"""Small valid files for tests, written with the reference ``gguf`` package."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

N_LAYERS = 2
N_EMBD = 32
N_FF = 64
N_HEADS = 4
N_KV_HEADS = 2
HEAD_DIM = 8

TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "\u0120", "\u010a")
TOKEN_TYPES = (3, 3, 3, 1, 1, 1, 1, 1)
MERGES = ("a b",)

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tiny_tensors(
    *,
    n_layers: int = N_LAYERS,
    n_kv_heads: int = N_KV_HEADS,
    head_dim: int = HEAD_DIM,
    tied: bool = True,
) -> dict[str, tuple[int, ...]]:
    """Return the shapes (numpy order, rows first) of a small llama-like model by tensor name."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(TOKENS), N_EMBD)}
    for layer in range(n_layers):
        block = f"blk.{layer}."
        shapes[block + "attn_norm.weight"] = (N_EMBD,)
        shapes[block + "attn_q.weight"] = (N_HEADS * head_dim, N_EMBD)
        shapes[block + "attn_k.weight"] = (n_kv_heads * head_dim, N_EMBD)
        shapes[block + "attn_v.weight"] = (n_kv_heads * head_dim, N_EMBD)
        shapes[block + "attn_output.weight"] = (N_EMBD, N_HEADS * head_dim)
        shapes[block + "ffn_norm.weight"] = (N_EMBD,)
        shapes[block + "ffn_gate.weight"] = (N_FF, N_EMBD)
        shapes[block + "ffn_up.weight"] = (N_FF, N_EMBD)
        shapes[block + "ffn_down.weight"] = (N_EMBD, N_FF)
    shapes["output_norm.weight"] = (N_EMBD,)
    if not tied:
        shapes["output.weight"] = (len(TOKENS), N_EMBD)
    return shapes


def tiny_metadata(architecture: str = "llama") -> dict[str, Any]:
    """Return the metadata of that model, without ``general.architecture``."""
    return {
        "general.name": "Tiny",
        "general.license": "apache-2.0",
        f"{architecture}.block_count": N_LAYERS,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": N_EMBD,
        f"{architecture}.feed_forward_length": N_FF,
        f"{architecture}.attention.head_count": N_HEADS,
        f"{architecture}.attention.head_count_kv": N_KV_HEADS,
        f"{architecture}.rope.freq_base": 10000.0,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": list(TOKENS),
        "tokenizer.ggml.token_type": list(TOKEN_TYPES),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        (writer.add_uint32 if value >= 0 else writer.add_int32)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def tiny_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    metadata: Mapping[str, Any] | None = None,
    drop: Sequence[str] = (),
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    alignment: int | None = None,
) -> Path:
    """Write a two-layer model of a few kilobytes, and return its path.

    Args:
        path: Where.
        architecture: Also the prefix of its keys.
        metadata: Values to add or to put in place of the usual ones.
        drop: Keys to leave out.
        shapes: Tensors in place of those of :func:`tiny_tensors`, in numpy order.
        alignment: Named in the file when given.
    """
    writer = gguf.GGUFWriter(path, architecture)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    values = {**tiny_metadata(architecture), **(metadata or {})}
    for key, value in values.items():
        if key not in drop:
            _add(writer, key, value)
    for name, shape in (tiny_tensors() if shapes is None else shapes).items():
        writer.add_tensor(name, np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def string_bytes(text: str | bytes) -> bytes:
    """Return a text as GGUF stores it."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def raw_gguf(
    *,
    version: int = 3,
    kvs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    n_kv: int | None = None,
    n_tensors: int | None = None,
    data_bytes: int = 0,
    alignment: int = 32,
) -> bytes:
    """Return the bytes of a GGUF file made of parts that need not be right."""
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(kvs) if n_kv is None else n_kv,
    )
    body = head + b"".join(kvs) + b"".join(tensors)
    if tensors:
        body += b"\0" * (-len(body) % alignment)
    return body + b"\0" * data_bytes


def raw_kv(key: str | bytes, kind: int, value: bytes) -> bytes:
    """Return one key with its value."""
    return string_bytes(key) + struct.pack("<I", kind) + value


def raw_tensor(
    name: str | bytes,
    shape: Sequence[int],
    kind: int = 0,
    offset: int = 0,
    n_dims: int | None = None,
) -> bytes:
    """Return one entry of the tensor index."""
    dims = len(shape) if n_dims is None else n_dims
    return (
        string_bytes(name)
        + struct.pack("<I", dims)
        + struct.pack(f"<{len(shape)}Q", *shape)
        + struct.pack("<IQ", kind, offset)
    )


def raw_safetensors(header: Any, data: bytes = b"") -> bytes:
    """Return the bytes of a safetensors file; ``header`` is JSON-able, or the bytes themselves."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data
