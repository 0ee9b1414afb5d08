"""The llama forward pass in plain numpy: what the compiled models are checked against.

Slow, and for small models only. It also gives the tiny test model its features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgewise.runtimes.webllm.config import LlamaConfig

__all__ = ["hidden_states", "logits"]

Array = np.ndarray[Any, np.dtype[Any]]


def logits(config: LlamaConfig, weights: Mapping[str, Array], tokens: list[int]) -> Array:
    """Return the logits after every token, ``(len(tokens), vocab)`` float32.

    Args:
        config: Shape of the model.
        weights: Its tensors under their names in the checkpoint.
        tokens: Token ids.
    """
    head = weights["model.embed_tokens.weight" if config.tied else "lm_head.weight"]
    return hidden_states(config, weights, tokens) @ head.T


def hidden_states(config: LlamaConfig, weights: Mapping[str, Array], tokens: list[int]) -> Array:
    """Return the normalised states before the head, ``(len(tokens), hidden)`` float32."""
    x = weights["model.embed_tokens.weight"][tokens]
    for index in range(config.layers):
        name = f"model.layers.{index}."
        normal = _norm(x, weights[f"{name}input_layernorm.weight"], config.norm_eps)
        x = x + _attention(config, weights, f"{name}self_attn.", normal)
        normal = _norm(x, weights[f"{name}post_attention_layernorm.weight"], config.norm_eps)
        gate = normal @ weights[f"{name}mlp.gate_proj.weight"].T
        up = normal @ weights[f"{name}mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{name}mlp.down_proj.weight"].T
    return _norm(x, weights["model.norm.weight"], config.norm_eps)


def _norm(x: Array, weight: Array, eps: float) -> Array:
    scaled: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight
    return scaled


def _attention(config: LlamaConfig, weights: Mapping[str, Array], name: str, x: Array) -> Array:
    length, repeat = len(x), config.heads // config.kv_heads

    def heads(part: str, count: int) -> Array:
        rows = x @ weights[f"{name}{part}_proj.weight"].T
        return rows.reshape(length, count, config.head_dim).transpose(1, 0, 2)

    query = _rotate(heads("q", config.heads), config.rope_theta)
    key = _rotate(heads("k", config.kv_heads), config.rope_theta).repeat(repeat, axis=0)
    value = heads("v", config.kv_heads).repeat(repeat, axis=0)
    scores = query @ key.transpose(0, 2, 1) / np.float32(np.sqrt(config.head_dim))
    scores += np.triu(np.full((length, length), -np.inf, dtype=np.float32), k=1)
    share = np.exp(scores - scores.max(axis=-1, keepdims=True))
    share /= share.sum(axis=-1, keepdims=True)
    mixed = (share @ value).transpose(1, 0, 2).reshape(length, -1)
    out: Array = mixed @ weights[f"{name}o_proj.weight"].T
    return out


def _rotate(x: Array, theta: float) -> Array:
    """Return ``(heads, length, head_dim)`` with each pair (i, i + half) turned by its position."""
    _, length, width = x.shape
    half = width // 2
    speed = theta ** (-np.arange(half, dtype=np.float32) / half)
    angle = np.outer(np.arange(length, dtype=np.float32), speed)
    cos, sin = np.cos(angle), np.sin(angle)
    left, right = x[..., :half], x[..., half:]
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
