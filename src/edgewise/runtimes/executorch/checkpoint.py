"""From a Hugging Face checkpoint to what ExecuTorch's decoder reads.

The decoder is one transformer whose parameters switch its variants. Only architectures whose
every setting it can express are taken; a setting that would change what the model computes and
that it cannot express is refused by name, before any weight is read.

Llama-style checkpoints rotate the two halves of a head; ExecuTorch's default rotates neighbours.
The rows of the query and key matrices are reordered accordingly, which changes no result. Qwen
keeps its order, since its query and key norms and biases follow it; the decoder has a switch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgewise.errors import InputError, IntegrityError, UnsupportedError

if TYPE_CHECKING:
    import torch

__all__ = ["ARCHITECTURES", "Checkpoint", "read_checkpoint", "weights"]

# Verified against the reference implementation on 2026-11-30.
ARCHITECTURES: Final = ("llama", "mistral", "qwen2", "qwen3")
_LLAMA3_FIXED: Final = {"low_freq_factor": 1.0, "original_max_position_embeddings": 8192}
_COUNT_MAX: Final = 1 << 24

_OUTER: Final = {
    "model.embed_tokens.weight": "tok_embeddings.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "output.weight",
}
_INNER: Final = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "self_attn.q_norm": "attention.q_norm_fn",
    "self_attn.k_norm": "attention.k_norm_fn",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that the decoder can express.

    Attributes:
        folder: Where it lies.
        architecture: ``model_type`` of config.json.
        params: The decoder's parameters, in ExecuTorch's names.
        reorders: Whether rows of query and key matrices are reordered.
        tied: Whether the head is the embedding.
        context_length_trained: Tokens, if the checkpoint says.
    """

    folder: Path
    architecture: str
    params: dict[str, Any]
    reorders: bool
    tied: bool
    context_length_trained: int | None

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the bytes one token takes in a KV cache of f32."""
        p = self.params
        return int(2 * 4 * p["n_layers"] * p["n_kv_heads"] * p["head_dim"])

    @property
    def linear_widths(self) -> tuple[int, ...]:
        """Return the row lengths of the matrices, and so of their groups' rows."""
        p = self.params
        return (p["dim"], p["hidden_dim"], p["n_heads"] * p["head_dim"])


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return what the folder's config.json says, checked against what can be expressed.

    Raises:
        InputError: the folder holds no config.json.
        IntegrityError: config.json is damaged or contradicts itself.
        UnsupportedError: the architecture or one of its settings cannot be expressed.
    """
    config = _config(folder)
    architecture = config.get("model_type")
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            "architecture-unsupported",
            f"executorch cannot export the architecture {architecture!r}",
            context={"architecture": architecture, "supported": list(ARCHITECTURES)},
            hint=f"it exports {', '.join(ARCHITECTURES)} (SmolLM2 is a llama); "
            "choose another runtime for this model",
        )
    _refuse_variants(config)
    qwen = architecture in {"qwen2", "qwen3"}
    heads = _count(config, "num_attention_heads")
    dim = _count(config, "hidden_size")
    params: dict[str, Any] = {
        "dim": dim,
        "n_layers": _count(config, "num_hidden_layers"),
        "n_heads": heads,
        "n_kv_heads": _count(config, "num_key_value_heads", heads),
        "head_dim": _count(config, "head_dim", dim // heads),
        "hidden_dim": _count(config, "intermediate_size"),
        "vocab_size": _count(config, "vocab_size"),
        "norm_eps": _positive(config, "rms_norm_eps", 1e-6),
        **_rope(config),
    }
    if qwen:
        params["use_hf_rope"] = True
        if params["use_scaled_rope"]:
            raise _setting("rope_scaling llama3")  # the decoder scales its own rotation only
    if architecture == "qwen2":
        params["attention_qkv_bias"] = True
    if architecture == "qwen3":
        params |= {"use_qk_norm": True, "qk_norm_before_rope": True}
    trained = config.get("max_position_embeddings")
    return Checkpoint(
        folder=folder,
        architecture=architecture,
        params=params,
        reorders=not qwen,
        tied=bool(config.get("tie_word_embeddings", False)),
        context_length_trained=trained if isinstance(trained, int) else None,
    )


def weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Return the tensors under ExecuTorch's names, in f32.

    Raises:
        InputError: there are no weights.
        IntegrityError: a tensor is missing, unknown, or of another shape than config.json says.
    """
    import torch  # noqa: PLC0415

    found: dict[str, torch.Tensor] = {}
    shapes = _shapes(checkpoint)
    for name, tensor in _tensors(checkpoint.folder):
        target = _target(name)
        if target is None or target not in shapes:
            if name.endswith("rotary_emb.inv_freq"):
                continue  # follows from the parameters
            raise _tensor(name, "the architecture has no such tensor")
        if tuple(tensor.shape) != shapes[target]:
            raise _tensor(name, f"it has the shape {tuple(tensor.shape)}, not {shapes[target]}")
        values = tensor.to(torch.float32)
        if checkpoint.reorders and (".wq." in target or ".wk." in target):
            values = _neighbours(values, checkpoint.params["head_dim"])
        found[target] = values.contiguous()
    if checkpoint.tied:
        found["output.weight"] = found.get("output.weight", found.get("tok_embeddings.weight"))
    missing = sorted(name for name in shapes if found.get(name) is None)
    if missing:
        raise _tensor(missing[0], "it is missing")
    return found


def _neighbours(values: torch.Tensor, head_dim: int) -> torch.Tensor:
    halves = values.view(-1, 2, head_dim // 2, *values.shape[1:])
    return halves.transpose(1, 2).reshape(values.shape)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError("hf-config-missing", f"{folder} holds no config.json") from error
    except (ValueError, RecursionError) as error:
        raise IntegrityError("hf-config-invalid", f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise IntegrityError("hf-config-invalid", f"{path} holds no object")
    return config


def _refuse_variants(config: Mapping[str, Any]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise _setting(f"hidden_act {config['hidden_act']!r}")
    for flag in ("attention_bias", "mlp_bias"):
        if config.get(flag):
            raise _setting(flag)
    slides = config.get("use_sliding_window", config.get("model_type") == "mistral")
    if slides and config.get("sliding_window"):
        raise _setting(f"sliding_window {config['sliding_window']}")
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        raise _setting("layer_types other than full_attention")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        raise _setting("partial_rotary_factor")
    if config.get("quantization_config"):
        raise _setting("quantization_config: already quantised weights")


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    stated = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(stated, dict):
        raise IntegrityError("hf-config-invalid", "rope_parameters is no object")
    kind = stated.get("rope_type", stated.get("type", "default"))
    base = {**config, **stated}
    rope: dict[str, Any] = {
        "rope_theta": _positive(base, "rope_theta", 10_000.0),
        "use_scaled_rope": kind == "llama3",
    }
    if kind == "llama3":
        for key, fixed in _LLAMA3_FIXED.items():
            if stated.get(key, fixed) != fixed:
                raise _setting(f"{key} {stated[key]} (only {fixed})")
        rope["rope_scale_factor"] = _positive(stated, "factor", 8.0)
        rope["high_freq_factor"] = _positive(stated, "high_freq_factor", 4.0)
    elif kind != "default":
        raise _setting(f"rope scaling {kind!r}")
    return rope


def _shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    p = checkpoint.params
    dim, hidden, vocab = p["dim"], p["hidden_dim"], p["vocab_size"]
    query, key = p["n_heads"] * p["head_dim"], p["n_kv_heads"] * p["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "tok_embeddings.weight": (vocab, dim),
        "norm.weight": (dim,),
        "output.weight": (vocab, dim),
    }
    block: dict[str, tuple[int, ...]] = {
        "attention.wq.weight": (query, dim),
        "attention.wk.weight": (key, dim),
        "attention.wv.weight": (key, dim),
        "attention.wo.weight": (dim, query),
        "attention_norm.weight": (dim,),
        "ffn_norm.weight": (dim,),
        "feed_forward.w1.weight": (hidden, dim),
        "feed_forward.w2.weight": (dim, hidden),
        "feed_forward.w3.weight": (hidden, dim),
    }
    if p.get("attention_qkv_bias"):
        block |= {"attention.wq.bias": (query,)}
        block |= {f"attention.{name}.bias": (key,) for name in ("wk", "wv")}
    if p.get("use_qk_norm"):
        block |= {f"attention.{name}_norm_fn.weight": (p["head_dim"],) for name in ("q", "k")}
    for layer in range(p["n_layers"]):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def _target(name: str) -> str | None:
    outer = _OUTER.get(name)
    if outer is not None:
        return outer
    match = _LAYER.fullmatch(name)
    inner = _INNER.get(match[2]) if match else None
    return f"layers.{int(match[1])}.{inner}.{match[3]}" if match and inner else None


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError("hf-weights-missing", f"{folder} holds no .safetensors file")
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise IntegrityError(
                "hf-weights-damaged", f"{path.name} cannot be read: {error}", hint="fetch it again"
            ) from error


def _count(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _COUNT_MAX:
        raise IntegrityError("hf-config-invalid", f"config.json says {key} = {value!r}")
    return value


def _positive(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise IntegrityError("hf-config-invalid", f"config.json says {key} = {value!r}")
    return float(value)


def _setting(what: str) -> UnsupportedError:
    return UnsupportedError(
        "architecture-setting-unsupported",
        f"ExecuTorch's decoder cannot express {what}",
        hint="choose another runtime for this model",
    )


def _tensor(name: str, why: str) -> IntegrityError:
    return IntegrityError(
        "hf-tensor-wrong",
        f"the tensor {name} does not fit config.json: {why}",
        context={"tensor": name},
        hint="weights and config.json are of different models, or one of them is damaged",
    )
