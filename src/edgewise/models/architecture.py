"""The shape of a model: what its metadata claims, checked against the tensors it has.

Invariants: every number that planning uses is present, in range, and agrees with the tensors;
an architecture without rules here is refused by name, never guessed. Sliding windows follow what
the llama.cpp loader does with the same file (``src/models/*.cpp`` in llama-cpp-python 0.3.36).

Not covered: mixtures of experts and split files, which are refused.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final, NoReturn

from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.models.gguf_types import GgufFile, TensorInfo
from edgewise.models.metadata_keys import MetadataKeys

__all__ = ["KNOWN_ARCHITECTURES", "ModelShape", "model_shape"]

# LLAMA_MAX_LAYERS.
LAYERS_MAX: Final = 512
# Far above any model; keeps products small and a typo visible.
WIDTH_MAX: Final = 1 << 20
HEADS_MAX: Final = 1 << 14
CONTEXT_MAX: Final = 1 << 31
# The loader's own default, when a file names none.
ROPE_THETA_DEFAULT: Final = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """How one architecture differs from the common decoder.

    Attributes:
        swa_period: Every such layer is global and the others slide; 0 when no layer slides.
        swa_window_default: Window in tokens when the file names none; 0 means no sliding then.
        fused_gate: Whether ``ffn_up`` holds the gate too.
    """

    swa_period: int = 0
    swa_window_default: int = 0
    fused_gate: bool = False


_RULES: Final = {
    "gemma": _Rules(),
    "gemma2": _Rules(swa_period=2, swa_window_default=4096),
    "gemma3": _Rules(swa_period=6),
    "llama": _Rules(),
    "mistral3": _Rules(),
    "phi3": _Rules(fused_gate=True),
    "qwen2": _Rules(),
    "qwen3": _Rules(),
    "smollm3": _Rules(),
}

KNOWN_ARCHITECTURES: Final = tuple(sorted(_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What a decoder-only language model is made of.

    Attributes:
        architecture: ``general.architecture``.
        n_layers: Transformer blocks.
        n_embd: Width of the residual stream.
        n_ff: Width of the feed-forward part, per layer.
        n_heads: Query heads, per layer.
        n_kv_heads: Key and value heads, per layer.
        head_dim_k: Elements of one key.
        head_dim_v: Elements of one value.
        vocab_size: Rows of the token embedding.
        context_length_trained: Tokens.
        rope_theta: Base of the rotary frequencies.
        sliding_window: Tokens that a sliding layer sees, or ``None`` when no layer slides.
        is_sliding: Whether the layer keeps only the window, per layer.
        tied_embeddings: Whether the output matrix is the token embedding.
        parameter_count: Elements of all tensors.
        weights_bytes: Bytes of all tensors, without padding.
        weights_bytes_per_token: Bytes that one decode step reads: everything but the token
            embedding, of which it reads one row, or all when it is the output matrix too.
        bytes_by_type: Tensor bytes per encoding, by its ggml name, largest first.
        name: ``general.name``, if the file has one.
        licence: ``general.license``, if the file has one.
    """

    architecture: str
    n_layers: int
    n_embd: int
    n_ff: tuple[int, ...]
    n_heads: tuple[int, ...]
    n_kv_heads: tuple[int, ...]
    head_dim_k: int
    head_dim_v: int
    vocab_size: int
    context_length_trained: int
    rope_theta: float
    sliding_window: int | None
    is_sliding: tuple[bool, ...]
    tied_embeddings: bool
    parameter_count: int
    weights_bytes: int
    weights_bytes_per_token: int
    bytes_by_type: dict[str, int]
    name: str | None
    licence: str | None


def model_shape(file: GgufFile) -> ModelShape:
    """Return the shape that the metadata states and the tensors confirm.

    Raises:
        IntegrityError: a key is missing (``gguf-missing-metadata``) or absurd
            (``gguf-bad-metadata``); a tensor is missing (``gguf-missing-tensor``), has another
            shape than the metadata says (``gguf-tensor-shape-mismatch``), or belongs to no
            layer (``gguf-unexpected-tensor``).
        UnsupportedError: there are no rules for this architecture
            (``architecture-unsupported``), or the file is one of several (``gguf-split``).
    """
    keys = MetadataKeys(file)
    architecture = keys.text("general.architecture")
    if architecture is None:
        keys.missing("general.architecture")
    rules = _RULES.get(architecture)
    if rules is None:
        raise UnsupportedError(
            "architecture-unsupported",
            f"there are no shape rules for the architecture {architecture!r}",
            context={"path": file.path, "architecture": architecture, "known": _known()},
            hint=f"the architectures with rules are {', '.join(KNOWN_ARCHITECTURES)}",
        )
    prefix = architecture + "."
    _refuse_variants(file, keys, prefix)

    n_layers = keys.count(prefix + "block_count", LAYERS_MAX)
    n_embd = keys.count(prefix + "embedding_length", WIDTH_MAX)
    n_ff = keys.per_layer(prefix + "feed_forward_length", n_layers, WIDTH_MAX)
    n_heads = keys.per_layer(prefix + "attention.head_count", n_layers, HEADS_MAX)
    n_kv_heads = keys.per_layer(
        prefix + "attention.head_count_kv", n_layers, HEADS_MAX, default=n_heads
    )
    for queries, shared in zip(n_heads, n_kv_heads, strict=True):
        if queries % shared:
            keys.bad(prefix + "attention.head_count_kv", f"{shared} does not divide {queries}")
    head_dim = n_embd // n_heads[0]
    head_dim_k = keys.count(prefix + "attention.key_length", WIDTH_MAX, default=head_dim)
    head_dim_v = keys.count(prefix + "attention.value_length", WIDTH_MAX, default=head_dim)
    window, is_sliding = _sliding(keys, prefix, rules, n_layers)

    tensors = {tensor.name: tensor for tensor in file.tensors}
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        _tensor_missing(file, "token_embd.weight")
    tied = "output.weight" not in tensors
    shape = ModelShape(
        architecture=architecture,
        n_layers=n_layers,
        n_embd=n_embd,
        n_ff=n_ff,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim_k=head_dim_k,
        head_dim_v=head_dim_v,
        vocab_size=_vocab_size(file, embedding),
        context_length_trained=keys.count(prefix + "context_length", CONTEXT_MAX),
        rope_theta=_rope_theta(keys, prefix),
        sliding_window=window,
        is_sliding=is_sliding,
        tied_embeddings=tied,
        parameter_count=sum(tensor.n_elements for tensor in file.tensors),
        weights_bytes=sum(tensor.size_bytes for tensor in file.tensors),
        weights_bytes_per_token=_bytes_per_token(file.tensors, embedding, tied=tied),
        bytes_by_type=_bytes_by_type(file.tensors),
        name=keys.text("general.name"),
        licence=keys.text("general.license"),
    )
    _check_tensors(file, tensors, shape, rules)
    return shape


def _known() -> list[str]:
    return list(KNOWN_ARCHITECTURES)


def _refuse_variants(file: GgufFile, keys: MetadataKeys, prefix: str) -> None:
    parts = keys.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise UnsupportedError(
            "gguf-split",
            f"{file.path} is one of {parts} parts",
            context={"path": file.path, "parts": parts},
            hint="join the parts first, with llama-gguf-split --merge",
        )
    if keys.get(prefix + "expert_count"):
        raise UnsupportedError(
            "architecture-unsupported",
            f"{file.path} is a mixture of experts, for which there are no shape rules",
            context={"path": file.path, "field": prefix + "expert_count", "known": _known()},
            hint="choose a dense model",
        )


def _sliding(
    keys: MetadataKeys, prefix: str, rules: _Rules, n_layers: int
) -> tuple[int | None, tuple[bool, ...]]:
    """Return the window in tokens and, per layer, whether it applies."""
    nowhere = (False,) * n_layers
    key = prefix + "attention.sliding_window"
    window = keys.get(key)
    if window is None:
        window = rules.swa_window_default
    if rules.swa_period == 0 or window == 0:
        return None, nowhere
    window = keys.in_range(key, window, CONTEXT_MAX)

    key = prefix + "attention.sliding_window_pattern"
    pattern = keys.get(key)
    if isinstance(pattern, tuple):
        if len(pattern) != n_layers:
            keys.bad(key, f"{len(pattern)} values for {n_layers} layers")
        is_sliding = tuple([bool(flag) for flag in pattern])
    else:
        period = rules.swa_period if pattern is None else keys.in_range(key, pattern, LAYERS_MAX)
        is_sliding = tuple([layer % period < period - 1 for layer in range(n_layers)])
    return (window if any(is_sliding) else None), is_sliding


def _rope_theta(keys: MetadataKeys, prefix: str) -> float:
    key = prefix + "rope.freq_base"
    value = keys.get(key)
    if value is None:
        return ROPE_THETA_DEFAULT
    if isinstance(value, bool) or not isinstance(value, int | float):
        keys.bad(key, "it is not a number")
    if not math.isfinite(value) or value <= 0:
        keys.bad(key, f"{value} is not a positive number")
    return float(value)


def _vocab_size(file: GgufFile, embedding: TensorInfo) -> int:
    size = embedding.shape[1] if len(embedding.shape) == 2 else 0
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, tuple) and len(tokens) != size:
        _tensor_wrong(file, embedding, f"{len(tokens)} rows, one per token of the vocabulary")
    return size


def _bytes_per_token(tensors: tuple[TensorInfo, ...], embedding: TensorInfo, *, tied: bool) -> int:
    total = sum(tensor.size_bytes for tensor in tensors)
    if tied:
        return total
    rows = (
        embedding.n_elements // embedding.shape[0]
        if embedding.shape and embedding.size_bytes
        else 1
    )
    return total - embedding.size_bytes + embedding.size_bytes // rows


def _bytes_by_type(tensors: tuple[TensorInfo, ...]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.type.name] += tensor.size_bytes
    return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))


def _tensor_missing(file: GgufFile, name: str) -> NoReturn:
    raise IntegrityError(
        "gguf-missing-tensor",
        f"{file.path} has no tensor {name}",
        context={"path": file.path, "field": name},
        hint="the file is damaged or was converted wrongly: fetch or convert it again",
    )


def _tensor_wrong(file: GgufFile, tensor: TensorInfo, expected: str) -> NoReturn:
    raise IntegrityError(
        "gguf-tensor-shape-mismatch",
        f"the tensor {tensor.name} has the shape {tensor.shape}; expected: {expected}",
        context={
            "path": file.path,
            "field": tensor.name,
            "offset_bytes": tensor.offset_bytes,
            "found": list(tensor.shape),
            "expected": expected,
        },
        hint="metadata and tensors are of different models: fetch or convert it again",
    )


def _check_tensors(
    file: GgufFile, tensors: dict[str, TensorInfo], shape: ModelShape, rules: _Rules
) -> None:
    """Compare the tensors that planning relies on with the shape."""

    def expect(name: str, *dimensions: int) -> None:
        tensor = tensors.get(name)
        if tensor is None:
            _tensor_missing(file, name)
        if tensor.shape != dimensions:
            _tensor_wrong(file, tensor, str(dimensions))

    expect("token_embd.weight", shape.n_embd, shape.vocab_size)
    expect("output_norm.weight", shape.n_embd)
    if not shape.tied_embeddings:
        expect("output.weight", shape.n_embd, shape.vocab_size)
    for layer in range(shape.n_layers):
        block = f"blk.{layer}."
        queries = shape.n_heads[layer] * shape.head_dim_k
        keys = shape.n_kv_heads[layer] * shape.head_dim_k
        values = shape.n_kv_heads[layer] * shape.head_dim_v
        if block + "attn_qkv.weight" in tensors:
            expect(block + "attn_qkv.weight", shape.n_embd, queries + keys + values)
        else:
            expect(block + "attn_q.weight", shape.n_embd, queries)
            expect(block + "attn_k.weight", shape.n_embd, keys)
            expect(block + "attn_v.weight", shape.n_embd, values)
        expect(block + "attn_norm.weight", shape.n_embd)
        expect(block + "attn_output.weight", shape.n_heads[layer] * shape.head_dim_v, shape.n_embd)
        expect(block + "ffn_norm.weight", shape.n_embd)
        expect(block + "ffn_down.weight", shape.n_ff[layer], shape.n_embd)
        if rules.fused_gate:
            expect(block + "ffn_up.weight", shape.n_embd, 2 * shape.n_ff[layer])
        else:
            expect(block + "ffn_up.weight", shape.n_embd, shape.n_ff[layer])
            expect(block + "ffn_gate.weight", shape.n_embd, shape.n_ff[layer])
    for tensor in file.tensors:
        head, _, rest = tensor.name.partition(".")
        number = rest.partition(".")[0]
        if head == "blk" and not (number.isdecimal() and int(number[:9]) < shape.n_layers):
            raise IntegrityError(
                "gguf-unexpected-tensor",
                f"the tensor {tensor.name} belongs to none of the {shape.n_layers} layers",
                context={
                    "path": file.path,
                    "field": tensor.name,
                    "offset_bytes": tensor.offset_bytes,
                },
                hint="metadata and tensors are of different models: fetch or convert it again",
            )
