"""config.json from GGUF metadata, and GGUF metadata from config.json.

Invariants: a setting that changes what the model computes is carried or refused; one that does
not is named in the notes when it is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.models.architecture import LAYERS_MAX, ModelShape
from edgewise.models.gguf_types import GgufFile, GgufValue
from edgewise.models.hf_form.rope import F32_MAX, Rope, rope_of_config, unsupported_scaling
from edgewise.models.hf_form.rules import HfRules

__all__ = ["config_of_gguf", "metadata_of_config", "rope_of_gguf"]

_COUNT_MAX: Final = 1 << 31
# Bases where a configuration names none: each architecture's class in transformers.
_THETA: Final = {"smollm3": 2_000_000.0, "gemma3": 1_000_000.0}
_THETA_SLIDING: Final = 10_000.0
_SLIDING_PERIOD: Final = 6
# The size whose attention scale follows from its width instead of its head dimension.
_GEMMA3_27B_LAYERS: Final = 62

# What config.json says in other words, or what the tensors say themselves.
_CARRIED: Final = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "final_logit_softcapping",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.freq_base_swa",
        "rope.scaling.factor",
        "rope.scaling.type",
        "vocab_size",
    }
)
# What these classes of transformers have no setting for, and what would change the outcome.
_REFUSED: Final = frozenset(
    {
        "attention.clamp_kqv",
        "attention.scale",
        "attention.temperature_scale",
        "attn_logit_softcapping",
        "embedding_scale",
        "logit_scale",
        "residual_scale",
    }
)


def config_of_gguf(
    file: GgufFile, shape: ModelShape, rules: HfRules, rope: Rope, *, n_layers: int
) -> tuple[dict[str, Any], list[str]]:
    """Return config.json for the first ``n_layers`` layers, and what was dropped.

    Special tokens and the number format are added by the caller.

    Raises:
        UnsupportedError: the file has a setting that config.json cannot say
            (``hf-setting-unsupported``).
    """
    notes = _check_keys(file, rules)
    for name in ("n_ff", "n_heads", "n_kv_heads"):
        if len(set(getattr(shape, name))) != 1:
            raise _setting(f"{name} differs between layers")
    if shape.head_dim_k != shape.head_dim_v:
        raise _setting("keys and values have heads of different size")
    rotated = file.metadata.get(f"{rules.gguf}.rope.dimension_count", shape.head_dim_k)
    if rotated != shape.head_dim_k:
        raise _setting("only a part of each head is rotated")
    config: dict[str, Any] = {
        "architectures": [rules.class_name],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": shape.head_dim_k,
        "hidden_size": shape.n_embd,
        "initializer_range": 0.02,
        "intermediate_size": shape.n_ff[0],
        "max_position_embeddings": shape.context_length_trained,
        "model_type": rules.model_type,
        "num_attention_heads": shape.n_heads[0],
        "num_hidden_layers": n_layers,
        "num_key_value_heads": shape.n_kv_heads[0],
        "rms_norm_eps": _number(file, f"{rules.gguf}.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": shape.tied_embeddings,
        "use_cache": True,
        "vocab_size": shape.vocab_size,
        **rope.to_config(),
        **_own_settings(file, shape, rules, n_layers),
    }
    if shape.name is not None:
        config["_name_or_path"] = shape.name
    return config, notes


def rope_of_gguf(
    file: GgufFile, rules: HfRules, theta: float, llama3: dict[str, float] | None
) -> Rope:
    """Return the rotary settings of a file.

    Raises:
        UnsupportedError: a scaling that cannot be carried (``rope-scaling-unsupported``).
        IntegrityError: a setting is not a number (``gguf-bad-metadata``).
    """
    prefix = f"{rules.gguf}.rope."
    kind = file.metadata.get(prefix + "scaling.type", "none")
    factor = 1.0
    if kind == "linear":
        factor = _number(file, prefix + "scaling.factor")
    elif kind != "none":
        raise unsupported_scaling(str(kind))
    sliding = None
    if rules.sliding:
        key = prefix + "freq_base_swa"
        sliding = _number(file, key) if key in file.metadata else _THETA_SLIDING
    return Rope(theta=theta, theta_sliding=sliding, linear_factor=factor, llama3=llama3)


def metadata_of_config(config: Mapping[str, Any], rules: HfRules) -> dict[str, GgufValue]:
    """Return the architecture's GGUF metadata for a configuration.

    Raises:
        IntegrityError: a value is missing or absurd (``hf-config-invalid``).
        UnsupportedError: GGUF has no place for a setting (``hf-setting-unsupported``).
    """
    _check_config(config, rules)
    heads = count(config, "num_attention_heads")
    width = count(config, "hidden_size")
    n_layers = layer_count(config)
    head_dim = count(config, "head_dim", width // heads)
    rope = config_rope(config, rules)
    prefix = rules.gguf + "."
    found: dict[str, GgufValue] = {
        "block_count": n_layers,
        "context_length": count(config, "max_position_embeddings"),
        "embedding_length": width,
        "feed_forward_length": count(config, "intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": count(config, "num_key_value_heads", heads),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": _float(config, "rms_norm_eps", 1e-6),
        "rope.dimension_count": head_dim,
        "rope.freq_base": float(rope.theta),
        "vocab_size": count(config, "vocab_size"),
    }
    if rope.linear_factor != 1.0:
        found["rope.scaling.type"] = "linear"
        found["rope.scaling.factor"] = float(rope.linear_factor)
    if rules.sliding:
        found.update(_sliding_metadata(config, n_layers))
        if rope.theta_sliding not in {None, _THETA_SLIDING}:
            found["rope.freq_base_swa"] = float(rope.theta_sliding or 0)
    cap = config.get("final_logit_softcapping")
    if cap:
        found["final_logit_softcapping"] = _float(config, "final_logit_softcapping", 0.0)
    return {prefix + key: value for key, value in found.items()}


def config_rope(config: Mapping[str, Any], rules: HfRules) -> Rope:
    """Return the rotary settings of a configuration; errors as :func:`rope_of_config`."""
    return rope_of_config(
        config,
        theta_default=_THETA.get(rules.gguf, 10_000.0),
        theta_sliding_default=_THETA_SLIDING if rules.sliding else None,
    )


def count(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Return a number from 1 up.

    Raises:
        IntegrityError: it is missing or no such number (``hf-config-invalid``).
    """
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < _COUNT_MAX:
        raise invalid(key, f"{value!r} is not a number from 1 up")
    return value


def layer_count(config: Mapping[str, Any]) -> int:
    """Return the number of layers; so many are possible that listing their tensors ends.

    Raises:
        IntegrityError: it is missing or absurd (``hf-config-invalid``).
    """
    layers = count(config, "num_hidden_layers")
    if layers > LAYERS_MAX:
        raise invalid("num_hidden_layers", f"{layers} layers; {LAYERS_MAX} are the most")
    return layers


def invalid(field: str, why: str) -> IntegrityError:
    """Return the error for a value of config.json that cannot be right."""
    return IntegrityError(
        "hf-config-invalid",
        f"{field} in config.json cannot be right: {why}",
        context={"field": field},
        hint="the folder is damaged or incomplete: fetch or convert the checkpoint again",
    )


def _own_settings(
    file: GgufFile, shape: ModelShape, rules: HfRules, n_layers: int
) -> dict[str, Any]:
    if rules.gguf == "gemma3":
        return _gemma3_settings(file, shape, n_layers)
    own: dict[str, Any] = {"hidden_act": "silu"}
    if rules.gguf == "llama":
        own["mlp_bias"] = False
    else:
        own["use_sliding_window"] = False
    if rules.rope_skip_step:
        step = rules.rope_skip_step
        own["no_rope_layer_interval"] = step
        own["no_rope_layers"] = [int(rotated) for rotated in _periodic(n_layers, step)]
    return own


def _gemma3_settings(file: GgufFile, shape: ModelShape, n_layers: int) -> dict[str, Any]:
    wide = shape.n_layers == _GEMMA3_27B_LAYERS
    own: dict[str, Any] = {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": [
            "sliding_attention" if sliding else "full_attention"
            for sliding in shape.is_sliding[:n_layers]
        ],
        "query_pre_attn_scalar": shape.n_embd // shape.n_heads[0] if wide else shape.head_dim_k,
        # A window that no layer uses still has to be a number.
        "sliding_window": shape.sliding_window or shape.context_length_trained,
    }
    key = "gemma3.final_logit_softcapping"
    if file.metadata.get(key):
        own["final_logit_softcapping"] = _number(file, key)
    if shape.is_sliding == tuple(
        [(layer + 1) % _SLIDING_PERIOD != 0 for layer in range(shape.n_layers)]
    ):
        own["sliding_window_pattern"] = _SLIDING_PERIOD
    return own


def _periodic(n_layers: int, period: int) -> tuple[bool, ...]:
    """Return false for every ``period``-th layer and true for the others."""
    return tuple([(layer + 1) % period != 0 for layer in range(n_layers)])


def _sliding_metadata(config: Mapping[str, Any], n_layers: int) -> dict[str, GgufValue]:
    kinds = config.get("layer_types")
    if kinds is None:
        period = count(config, "sliding_window_pattern", _SLIDING_PERIOD)
        slides = _periodic(n_layers, period)
    elif (
        isinstance(kinds, list)
        and len(kinds) == n_layers
        and all(kind in ("sliding_attention", "full_attention") for kind in kinds)
    ):
        slides = tuple([kind == "sliding_attention" for kind in kinds])
    else:
        raise invalid("layer_types", f"it is not one kind of attention for each of {n_layers}")
    if not any(slides):
        return {}
    found: dict[str, GgufValue] = {"attention.sliding_window": count(config, "sliding_window")}
    if slides != _periodic(n_layers, _SLIDING_PERIOD):
        found["attention.sliding_window_pattern"] = slides
    return found


def _check_keys(file: GgufFile, rules: HfRules) -> list[str]:
    """Refuse settings that matter and have no place; return notes on those that do not matter."""
    prefix = rules.gguf + "."
    notes = []
    for key, value in file.metadata.items():
        name = key.removeprefix(prefix)
        if name == key or name in _CARRIED:
            continue
        if name in _REFUSED and value:
            raise _setting(f"{key} is {value}")
        notes.append(f"{key} has no place in config.json and was dropped")
    return notes


def _check_config(config: Mapping[str, Any], rules: HfRules) -> None:
    """Refuse what changes the outcome and has no place in GGUF."""
    if config.get("quantization_config"):
        raise UnsupportedError(
            "hf-quantized",
            "the checkpoint is quantised already, in a format of its own",
            hint="use the original, unquantised checkpoint",
        )
    if (config.get("attention_bias") and not rules.qkv_bias) or config.get("mlp_bias"):
        raise _setting("it has biases where this architecture has none in GGUF")
    if config.get("use_sliding_window") or config.get("attn_logit_softcapping"):
        raise _setting("sliding windows or capped scores, which GGUF cannot say for it")
    if config.get("use_bidirectional_attention"):
        raise _setting("attention in both directions")
    key, usual = (
        ("hidden_activation", "gelu_pytorch_tanh") if rules.sliding else ("hidden_act", "silu")
    )
    if config.get(key, usual) != usual:
        raise _setting(f"the activation {config[key]!r}")
    if config.get("partial_rotary_factor") not in {None, 1}:
        raise _setting("only a part of each head is rotated")
    _check_layers(config, rules)


def _check_layers(config: Mapping[str, Any], rules: HfRules) -> None:
    windowed = rules.model_type == "mistral" and config.get("sliding_window") is not None
    longest = count(config, "max_position_embeddings")
    if windowed and count(config, "sliding_window") < longest:
        raise _setting("every layer sees a window only, which llama.cpp does not do for it")
    skipped = config.get("no_rope_layers")
    if skipped and rules.rope_skip_step:
        usual = _periodic(layer_count(config), rules.rope_skip_step)
        stated = skipped if isinstance(skipped, list) else []
        if [bool(rotated) for rotated in stated] != list(usual):
            raise _setting("the layers without rotary embedding are not every fourth")
    if rules.sliding:
        heads, width = count(config, "num_attention_heads"), count(config, "hidden_size")
        scale = count(config, "head_dim", width // heads)
        if config.get("num_hidden_layers") == _GEMMA3_27B_LAYERS:
            scale = width // heads
        if config.get("query_pre_attn_scalar", scale) != scale:
            raise _setting("query_pre_attn_scalar is not what llama.cpp takes for this size")


def _setting(what: str) -> UnsupportedError:
    return UnsupportedError(
        "hf-setting-unsupported",
        f"this checkpoint cannot be carried over: {what}",
        context={"setting": what},
        hint="use the checkpoint in the form it has",
    )


def _number(file: GgufFile, key: str) -> float:
    value = file.metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= F32_MAX:
        raise IntegrityError(
            "gguf-bad-metadata" if key in file.metadata else "gguf-missing-metadata",
            f"{key} in {file.path} is {value!r}, not a positive number",
            context={"path": file.path, "field": key},
            hint="convert the checkpoint again with a current converter",
        )
    return float(value)


def _float(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= F32_MAX:
        raise invalid(key, f"{value!r} is not a positive number")
    return float(value)
