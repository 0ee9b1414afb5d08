"""The ceilings, computed by hand, and no number where there is none."""

from __future__ import annotations

import dataclasses

import pytest
from tests.unit.core.values import SMOLLM2, UNKNOWN, size

from edgewise.core.quantity import Estimated, Unknown
from edgewise.planner.roofline import decode_bound, prefill_bound

TINY = dataclasses.replace(
    SMOLLM2,
    vocab_size=10,
    n_embd=8,
    parameter_count=1080,
    weights_bytes=3000,
    weights_bytes_per_token=2000,
)


def test_decode() -> None:
    bound = decode_bound(TINY, size(500), size(1e6))
    assert bound.ceiling_tok_s == Estimated(value=500.0, source="bandwidth / weights per token")
    assert isinstance(bound.ceiling_full_context_tok_s, Estimated)
    assert bound.ceiling_full_context_tok_s.value == 400.0
    assert isinstance(bound.weights_bytes_per_token, Estimated)
    assert bound.weights_bytes_per_token.value == 2000
    assert bound.kv_bytes_full_context == size(500)
    assert bound.bandwidth_bytes_s == size(1e6)


def test_prefill() -> None:
    # 1000 parameters outside the embedding, 2 operations each: 1e9 / 2000 tokens a second.
    bound = prefill_bound(TINY, 2048, size(1))
    assert isinstance(bound.ceiling_tok_s, Estimated)
    assert isinstance(bound.full_context_s, Estimated)
    assert bound.ceiling_tok_s.value == 500_000.0
    assert bound.full_context_s.value == round(2048 / 500_000, 2)
    slow = prefill_bound(TINY, 2048, size(1e-6))
    assert isinstance(slow.full_context_s, Estimated)
    assert slow.full_context_s.value == 4096.0


def test_smollm2_on_a_device_of_10_gb_s_and_50_gflops() -> None:
    decode = decode_bound(SMOLLM2, size(45 << 20), size(10e9))
    assert isinstance(decode.ceiling_tok_s, Estimated)
    assert decode.ceiling_tok_s.value == 100.0
    assert isinstance(decode.ceiling_full_context_tok_s, Estimated)
    assert decode.ceiling_full_context_tok_s.value == 67.9  # 10e9 / (100e6 + 47_185_920)
    prefill = prefill_bound(SMOLLM2, 2048, size(50))
    assert isinstance(prefill.ceiling_tok_s, Estimated)
    assert prefill.ceiling_tok_s.value == 235.4  # 50e9 / (2 x 106_203_456)


def test_what_is_missing_is_named() -> None:
    no_bandwidth = decode_bound(TINY, size(1), UNKNOWN).ceiling_tok_s
    assert no_bandwidth == Unknown(reason="memory bandwidth: nobody looked")
    no_shape = decode_bound(None, size(1), size(1e9))
    assert isinstance(no_shape.ceiling_tok_s, Unknown)
    assert "shape" in no_shape.ceiling_tok_s.reason
    no_cache = decode_bound(TINY, UNKNOWN, size(1e6))
    assert no_cache.ceiling_full_context_tok_s == UNKNOWN
    assert isinstance(no_cache.ceiling_tok_s, Estimated)
    no_compute = prefill_bound(TINY, 1, UNKNOWN)
    assert no_compute.ceiling_tok_s == Unknown(reason="compute throughput: nobody looked")
    assert isinstance(prefill_bound(None, 1, size(1)).full_context_s, Unknown)


def test_nothing_to_read_has_no_ceiling() -> None:
    empty = dataclasses.replace(TINY, weights_bytes_per_token=0)
    assert isinstance(decode_bound(empty, size(0), size(1e9)).ceiling_tok_s, Unknown)


@pytest.mark.parametrize("gflops", [0, 0.0, -0.0, 5e-324, 1e-300, 1.7e308])
def test_absurd_throughput_gives_no_nan_and_no_error(gflops: float) -> None:
    bound = prefill_bound(TINY, 2**31, size(gflops))
    for quantity in (bound.ceiling_tok_s, bound.full_context_s):
        assert isinstance(quantity, Estimated | Unknown)
    if gflops < 1e-310:
        assert isinstance(bound.full_context_s, Unknown)


@pytest.mark.parametrize("bandwidth", [0, 5e-324, 1.7e308])
def test_absurd_bandwidth(bandwidth: float) -> None:
    bound = decode_bound(TINY, size(1), size(bandwidth))
    assert isinstance(bound.ceiling_tok_s, Estimated)
    assert bound.ceiling_tok_s.number >= 0
