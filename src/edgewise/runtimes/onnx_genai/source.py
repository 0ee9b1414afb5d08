"""What the builder can be given: a check of the checkpoint before minutes are spent.

The list below is of text decoders whose cache can be cut at any position. The builder also takes
mixtures, recurrent and multi-modal models; this adapter does not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.runtimes.hf_tokenizer import HfTokenizer

__all__ = [
    "VERIFIED",
    "HfSource",
    "read_json",
    "read_source",
    "require_tokenizer",
]

# Exported to f32 and compared with the source's own logits, teacher-forced, 2026-11-30: Llama and
# Gemma 3 with real weights, all of them with random ones, biases and norms included.
VERIFIED: Final = (
    "Ernie4_5ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "GemmaForCausalLM",
    "GraniteForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Phi3ForCausalLM",
    "PhiForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
# The builder takes these as well; what comes out was tried and is not the model.
_UNFAITHFUL: Final = {
    "OlmoForCausalLM": "its export does not compute what the model does (top-1 agreement 0.31)",
    "SmolLM3ForCausalLM": "the model builder fails on its layers without rotary positions",
}

# Rotary scaling that came out right, beside none. The builder ignores some kinds without a word.
_ROPE_TYPES: Final = {"LlamaForCausalLM": {"default", "llama3"}}

_JSON_BYTES_MAX: Final = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class HfSource:
    """A checkpoint folder and what its configuration says.

    Attributes:
        folder: Where it lies.
        architecture: Name of its model class.
        tied: Whether embedding and head are one matrix.
        vocab_size: Rows of the embedding.
        context_length: Longest context the model was trained for, in tokens.
        end_tokens: All tokens that end an answer, sorted.
    """

    folder: Path
    architecture: str
    tied: bool
    vocab_size: int
    context_length: int
    end_tokens: tuple[int, ...]


def read_source(folder: Path) -> HfSource:
    """Return what a checkpoint is, if it can be exported.

    Raises:
        InputError: the folder is no HF checkpoint.
        IntegrityError: one of its JSON files is malformed.
        UnsupportedError: the architecture is not supported, or the weights are quantised already.
    """
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise InputError(
            "source-not-hf",
            f"{folder.name} holds no config.json with safetensors weights",
            hint="give a checkpoint folder in the Hugging Face form",
        )
    if not (folder / "tokenizer.json").is_file():
        raise InputError("tokenizer-missing", f"{folder.name} holds no tokenizer.json")
    config = read_json(folder / "config.json")
    architecture = _architecture(config)
    _require_rope(config, architecture)
    if config.get("quantization_config") is not None:
        raise UnsupportedError(
            "source-quantised",
            "onnx-genai exports from float weights; these are quantised already",
            hint="give the checkpoint before quantisation",
        )
    return HfSource(
        folder=folder,
        architecture=architecture,
        tied=bool(config.get("tie_word_embeddings", False)),
        vocab_size=_count(config, "vocab_size"),
        context_length=_count(config, "max_position_embeddings"),
        end_tokens=_end_tokens(folder, config),
    )


def require_tokenizer(tokenizer: HfTokenizer, vocab_size: int) -> None:
    """Refuse a tokenizer that gives ids the model has no rows for.

    Raises:
        IntegrityError: it belongs to another model.
    """
    if tokenizer.vocab_size > vocab_size:
        raise IntegrityError(
            "tokenizer-mismatch",
            f"the tokenizer gives ids up to {tokenizer.vocab_size - 1}, "
            f"the model has {vocab_size} rows",
            context={"tokenizer": tokenizer.vocab_size, "model": vocab_size},
            hint="put the tokenizer.json beside the weights that it was made for",
        )


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file.

    Raises:
        IntegrityError: the file is missing, too large, or no JSON object.
    """
    try:
        if path.stat().st_size > _JSON_BYTES_MAX:
            raise IntegrityError("json-malformed", f"{path.name} is too large")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityError("json-malformed", f"{path.name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise IntegrityError("json-malformed", f"{path.name} is no JSON object")
    return value


def _architecture(config: dict[str, Any]) -> str:
    named = config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else None
    if architecture not in VERIFIED:
        reason = _UNFAITHFUL.get(str(architecture))
        raise UnsupportedError(
            "architecture-unsupported",
            f"onnx-genai cannot export the architecture {architecture!r}"
            + (f": {reason}" if reason else ""),
            context={"architecture": str(architecture), "supported": list(VERIFIED)},
            hint=f"it can: {', '.join(VERIFIED)}",
        )
    return str(architecture)


def _require_rope(config: dict[str, Any], architecture: str) -> None:
    stated = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(stated, dict):
        raise IntegrityError("config-malformed", "config.json states no readable rotary scaling")
    parts = [one for one in stated.values() if isinstance(one, dict)] or [stated]
    kinds = {str(one.get("rope_type") or one.get("type") or "default") for one in parts}
    unknown = kinds - _ROPE_TYPES.get(architecture, {"default"})
    if unknown:
        raise UnsupportedError(
            "rope-unsupported",
            f"onnx-genai cannot export {architecture} with {', '.join(sorted(unknown))} rotary "
            "scaling",
            context={"rope_type": sorted(kinds)},
            hint="another runtime may do: edgewise runtime list",
        )


def _count(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise IntegrityError("config-malformed", f"config.json names no {key}")
    return value


def _end_tokens(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    found: set[int] = set()
    for value in (config.get("eos_token_id"), generation.get("eos_token_id")):
        tokens = value if isinstance(value, list) else [value]
        found.update(token for token in tokens if isinstance(token, int))
    return tuple(sorted(found))
