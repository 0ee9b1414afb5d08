"""What the relax model needs to know of a checkpoint, read from its ``config.json``.

Only the llama architecture as its weights are used here: rotary embedding without scaling, no
biases, SiLU. Whatever differs is refused by name; nothing is assumed away.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from edgewise.errors import InputError, UnsupportedError

__all__ = ["LlamaConfig", "read_config"]

_ARCHITECTURES = ("LlamaForCausalLM",)
_ROPE_THETA_DEFAULT = 10_000.0


class LlamaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shape of a llama model; sizes in elements.

    Attributes:
        layers: Transformer blocks.
        heads: Query heads.
        kv_heads: Key and value heads; divides ``heads``.
        head_dim: Elements of one head.
        hidden: Width of the residual stream.
        intermediate: Width of the feed-forward part.
        vocab: Rows of the embedding, and logits of one step.
        rope_theta: Base of the rotary frequencies; a whole number.
        norm_eps: Term under the root of the RMS norm.
        tied: Whether the output matrix is the embedding.
        context_length: Tokens the model was trained with.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocab: int
    rope_theta: int
    norm_eps: float
    tied: bool
    context_length: int

    @property
    def qkv_rows(self) -> int:
        """Return the rows of the joined query, key and value matrix."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


def read_config(source: Path) -> LlamaConfig:
    """Return the shape that a checkpoint's ``config.json`` states.

    Raises:
        InputError: the file is missing, is no JSON object, or a number is missing or absurd.
        UnsupportedError: the architecture, or a variant of it, has no model definition here.
    """
    path = source / "config.json"
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(
            "config-unreadable", f"{path.name} of the checkpoint cannot be read: {error}"
        ) from error
    if not isinstance(found, dict):
        raise InputError("config-unreadable", f"{path.name} of the checkpoint is no JSON object")
    _refuse_variants(found)
    heads = _count(found, "num_attention_heads")
    kv_heads = _count(found, "num_key_value_heads", heads)
    hidden = _count(found, "hidden_size")
    if heads % kv_heads:
        raise _bad("num_key_value_heads", kv_heads)
    return LlamaConfig(
        layers=_count(found, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_count(found, "head_dim", hidden // heads),
        hidden=hidden,
        intermediate=_count(found, "intermediate_size"),
        vocab=_count(found, "vocab_size"),
        rope_theta=_rope_theta(found),
        norm_eps=_norm_eps(found),
        tied=bool(found.get("tie_word_embeddings", False)),
        context_length=_count(found, "max_position_embeddings"),
    )


def _refuse_variants(found: dict[str, Any]) -> None:
    names = found.get("architectures") or [found.get("model_type")]
    if names[0] not in _ARCHITECTURES:
        raise _unsupported(f"the architecture {names[0]!r}")
    if found.get("attention_bias") or found.get("mlp_bias"):
        raise _unsupported("matrices with a bias")
    if found.get("hidden_act", "silu") != "silu":
        raise _unsupported(f"the activation {found.get('hidden_act')!r}")
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise _unsupported(f"rotary embedding of the kind {kind!r}")


def _rope_theta(found: dict[str, Any]) -> int:
    rope = found.get("rope_parameters") or {}
    theta = rope.get("rope_theta", found.get("rope_theta", _ROPE_THETA_DEFAULT))
    if not isinstance(theta, (int, float)) or not 1 <= theta < 2**31:
        raise _bad("rope_theta", theta)
    if theta != int(theta):
        raise _unsupported(f"a rotary base that is no whole number ({theta})")
    return int(theta)


def _norm_eps(found: dict[str, Any]) -> float:
    eps = found.get("rms_norm_eps", 1e-6)
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise _bad("rms_norm_eps", eps)
    return eps


def _count(found: dict[str, Any], key: str, default: int | None = None) -> int:
    value = found.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise _bad(key, value)
    return value


def _bad(key: str, value: object) -> InputError:
    return InputError(
        "config-invalid",
        f"the checkpoint's config.json has {key} = {value!r}",
        context={"key": key},
    )


def _unsupported(what: str) -> UnsupportedError:
    return UnsupportedError(
        "architecture-unsupported",
        f"the TVM model definition does not cover {what}",
        hint=f"it covers {', '.join(_ARCHITECTURES)} with plain rotary embedding and no bias",
    )
