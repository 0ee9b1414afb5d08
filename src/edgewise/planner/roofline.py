"""How fast a model can be at best: decode by memory bandwidth, prefill by arithmetic.

Decode of one token reads every weight that the step uses once, and the keys and values of all
earlier tokens, so its rate cannot exceed bandwidth over those bytes (the roofline model,
Williams, Waterman and Patterson 2009). Prefill does two operations per weight and token.
Both are bounds on the memory or the arithmetic alone; a real runtime stays below.
"""

from __future__ import annotations

import math

import msgspec

from edgewise.core.quantity import Estimated, Quantity, Unknown
from edgewise.models.architecture import ModelShape

__all__ = ["DecodeBound", "PrefillBound", "decode_bound", "prefill_bound"]


class DecodeBound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ceiling of the decode rate.

    Attributes:
        ceiling_tok_s: With an empty context.
        ceiling_full_context_tok_s: With the reserved context full.
        weights_bytes_per_token: What one step reads of the weights.
        kv_bytes_full_context: What one step reads of the KV cache when it is full.
        bandwidth_bytes_s: The memory bandwidth used.
    """

    ceiling_tok_s: Quantity
    ceiling_full_context_tok_s: Quantity
    weights_bytes_per_token: Quantity
    kv_bytes_full_context: Quantity
    bandwidth_bytes_s: Quantity


class PrefillBound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ceiling of the prefill rate, and the time a full context's prompt takes at least."""

    ceiling_tok_s: Quantity
    full_context_s: Quantity
    compute_gflops: Quantity


def decode_bound(
    shape: ModelShape | None, kv_cache_bytes: Quantity, bandwidth_bytes_s: Quantity
) -> DecodeBound:
    """Return the decode ceiling; what is not known makes it unknown, by name."""
    weights: Quantity = (
        Estimated(value=shape.weights_bytes_per_token, source="tensor index")
        if shape is not None
        else Unknown(reason="the model's shape is not known")
    )
    return DecodeBound(
        ceiling_tok_s=_rate(bandwidth_bytes_s, (weights,), "bandwidth / weights per token"),
        ceiling_full_context_tok_s=_rate(
            bandwidth_bytes_s,
            (weights, kv_cache_bytes),
            "bandwidth / (weights per token + full KV cache)",
        ),
        weights_bytes_per_token=weights,
        kv_bytes_full_context=kv_cache_bytes,
        bandwidth_bytes_s=bandwidth_bytes_s,
    )


def prefill_bound(
    shape: ModelShape | None, context_length: int, compute_gflops: Quantity
) -> PrefillBound:
    """Return the prefill ceiling for prompts up to ``context_length`` tokens."""
    if shape is None:
        unknown = Unknown(reason="the model's shape is not known")
        return PrefillBound(
            ceiling_tok_s=unknown, full_context_s=unknown, compute_gflops=compute_gflops
        )
    if isinstance(compute_gflops, Unknown):
        unknown = Unknown(reason=f"compute throughput: {compute_gflops.reason}")
        return PrefillBound(
            ceiling_tok_s=unknown, full_context_s=unknown, compute_gflops=compute_gflops
        )
    embedding = shape.vocab_size * shape.n_embd  # looked up, or used once for the last token
    operations = 2 * max(1, shape.parameter_count - embedding)
    rate = compute_gflops.number * 1e9 / operations
    source = "f32 throughput / (2 x parameters outside the embedding); quantised kernels differ"
    return PrefillBound(
        ceiling_tok_s=_estimate(rate, 1, source),
        full_context_s=_estimate(context_length / rate if rate > 0 else math.inf, 2, source),
        compute_gflops=compute_gflops,
    )


def _rate(bandwidth: Quantity, reads: tuple[Quantity, ...], source: str) -> Quantity:
    if isinstance(bandwidth, Unknown):
        return Unknown(reason=f"memory bandwidth: {bandwidth.reason}")
    total = 0.0
    for read in reads:
        if isinstance(read, Unknown):
            return Unknown(reason=read.reason)
        total += read.number
    if total <= 0:
        return Unknown(reason="nothing is read, so nothing bounds the rate")
    return _estimate(bandwidth.number / total, 1, source)


def _estimate(value: float, digits: int, source: str) -> Quantity:
    if not math.isfinite(value):
        return Unknown(reason=f"{source}: the inputs give no finite number")
    return Estimated(value=round(value, digits), source=source)
