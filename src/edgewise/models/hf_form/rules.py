"""How each architecture's tensors and settings are called in GGUF and in the Hugging Face form.

Facts only. Row order and norm conventions are those of llama.cpp's own converter and graphs
(llama-cpp-python 0.3.36) and of transformers 5.24; the tests run both on the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edgewise.errors import UnsupportedError

__all__ = ["HF_ARCHITECTURES", "HfRules", "TensorPlace", "rules_for_gguf", "rules_for_hf"]

EMBEDDING: Final = "token_embd.weight"
OUTPUT: Final = "output.weight"
ROPE_FACTORS: Final = "rope_freqs.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class HfRules:
    """How one architecture differs between the two forms.

    Attributes:
        gguf: ``general.architecture``.
        model_type: ``model_type`` in config.json.
        class_name: The class under ``architectures``.
        permuted: Whether GGUF interleaves the two rotary halves in the rows of q and k.
        qkv_bias: Whether q, k and v have biases.
        head_norms: Whether q and k have norms per head.
        post_norms: Whether norms also follow attention and feed-forward.
        norm_offset: What GGUF adds to every norm weight.
        sliding: Whether some layers see a window only.
        rope_skip_step: Every such layer has no rotary embedding; 0 for none.
    """

    gguf: str
    model_type: str
    class_name: str
    permuted: bool = False
    qkv_bias: bool = False
    head_norms: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    sliding: bool = False
    rope_skip_step: int = 0


_RULES: Final = (
    HfRules(gguf="llama", model_type="llama", class_name="LlamaForCausalLM", permuted=True),
    # The same model by another name; read only, since GGUF calls both llama.
    HfRules(gguf="llama", model_type="mistral", class_name="MistralForCausalLM", permuted=True),
    HfRules(gguf="qwen2", model_type="qwen2", class_name="Qwen2ForCausalLM", qkv_bias=True),
    HfRules(gguf="qwen3", model_type="qwen3", class_name="Qwen3ForCausalLM", head_norms=True),
    HfRules(
        gguf="smollm3",
        model_type="smollm3",
        class_name="SmolLM3ForCausalLM",
        permuted=True,
        rope_skip_step=4,
    ),
    HfRules(
        gguf="gemma3",
        model_type="gemma3_text",
        class_name="Gemma3ForCausalLM",
        head_norms=True,
        post_norms=True,
        norm_offset=1.0,
        sliding=True,
    ),
)

HF_ARCHITECTURES: Final = tuple(sorted({rules.gguf for rules in _RULES}))


def rules_for_gguf(architecture: str) -> HfRules:
    """Return the rules of a GGUF architecture.

    Raises:
        UnsupportedError: there are none (``hf-architecture-unsupported``).
    """
    for rules in _RULES:
        if rules.gguf == architecture:
            return rules
    raise _unknown(architecture, list(HF_ARCHITECTURES))


def rules_for_hf(model_type: str) -> HfRules:
    """Return the rules of a ``model_type``.

    Raises:
        UnsupportedError: there are none (``hf-architecture-unsupported``).
    """
    for rules in _RULES:
        if rules.model_type == model_type:
            return rules
    raise _unknown(model_type, [rules.model_type for rules in _RULES])


def _unknown(name: str, known: list[str]) -> UnsupportedError:
    return UnsupportedError(
        "hf-architecture-unsupported",
        f"the architecture {name!r} cannot be turned into or read from the Hugging Face form",
        context={"architecture": name, "known": known},
        hint=f"it can be done for {', '.join(known)}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """One tensor's two names, and what happens to its values on the way.

    Attributes:
        gguf: Name in GGUF.
        hf: Name in the Hugging Face form.
        heads: Heads whose rows GGUF interleaves; 0 when rows are the same in both.
        offset: What GGUF adds to every value.
    """

    gguf: str
    hf: str
    heads: int = 0
    offset: float = 0.0


def tensor_places(
    rules: HfRules, *, n_layers: int, n_heads: int, n_kv_heads: int, tied: bool
) -> tuple[TensorPlace, ...]:
    """Return every tensor a model of these rules has, in the order in which GGUF gets them."""
    offset = rules.norm_offset
    places = [TensorPlace(gguf=EMBEDDING, hf="model.embed_tokens.weight")]
    for layer in range(n_layers):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        places += [
            TensorPlace(
                gguf=ours + place.gguf, hf=theirs + place.hf, heads=place.heads, offset=place.offset
            )
            for place in _layer_places(rules, n_heads, n_kv_heads)
        ]
    places.append(TensorPlace(gguf="output_norm.weight", hf="model.norm.weight", offset=offset))
    if not tied:
        places.append(TensorPlace(gguf=OUTPUT, hf="lm_head.weight"))
    return tuple(places)


def _layer_places(rules: HfRules, n_heads: int, n_kv_heads: int) -> list[TensorPlace]:
    offset = rules.norm_offset
    queries, keys = (n_heads, n_kv_heads) if rules.permuted else (0, 0)

    def norm(gguf: str, hf: str) -> TensorPlace:
        return TensorPlace(gguf=f"{gguf}.weight", hf=f"{hf}.weight", offset=offset)

    places = [norm("attn_norm", "input_layernorm")]
    places += [
        TensorPlace(gguf=f"attn_{short}.weight", hf=f"self_attn.{short}_proj.weight", heads=heads)
        for short, heads in (("q", queries), ("k", keys), ("v", 0))
    ]
    if rules.qkv_bias:
        places += [
            TensorPlace(gguf=f"attn_{short}.bias", hf=f"self_attn.{short}_proj.bias")
            for short in "qkv"
        ]
    if rules.head_norms:
        places += [norm("attn_q_norm", "self_attn.q_norm"), norm("attn_k_norm", "self_attn.k_norm")]
    places.append(TensorPlace(gguf="attn_output.weight", hf="self_attn.o_proj.weight"))
    if rules.post_norms:
        places += [
            norm("post_attention_norm", "post_attention_layernorm"),
            norm("ffn_norm", "pre_feedforward_layernorm"),
            norm("post_ffw_norm", "post_feedforward_layernorm"),
        ]
    else:
        places.append(norm("ffn_norm", "post_attention_layernorm"))
    places += [
        TensorPlace(gguf=f"ffn_{short}.weight", hf=f"mlp.{short}_proj.weight")
        for short in ("gate", "up", "down")
    ]
    return places
