"""llama.cpp's memory lines, against figures computed by hand from its allocation rules."""

from __future__ import annotations

import dataclasses

import pytest
from tests.unit.core.values import GEMMA3, SMOLLM2

from edgewise.core.quantity import Estimated
from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.errors import UnsupportedError
from edgewise.models.architecture import ModelShape
from edgewise.runtimes.llamacpp.footprint import footprint

MIB = 1 << 20


def config(context_length: int, kv_type: KvType = KvType.F16, batch_tokens: int = 128) -> RunConfig:
    return RunConfig(
        context_length=context_length,
        kv_type=kv_type,
        flash_attention=True,
        batch_tokens=batch_tokens,
    )


def kv_cache(shape: ModelShape, run_config: RunConfig) -> int:
    line = footprint(shape, run_config).kv_cache_bytes
    assert isinstance(line, Estimated)
    assert isinstance(line.value, int)
    return line.value


@pytest.mark.parametrize(
    ("context_length", "expected"),
    [
        (2048, 45 * MIB),  # 2048 cells x 30 layers x 3 heads x (64 + 64) x 2 bytes
        (8192, 180 * MIB),
        (2047, 45 * MIB),  # cells are padded to 256
        (2049, 45 * MIB * 9 // 8),
        (1, 45 * MIB // 8),
        (256, 45 * MIB // 8),
    ],
)
def test_kv_cache_of_smollm2(context_length: int, expected: int) -> None:
    assert kv_cache(SMOLLM2, config(context_length)) == expected


@pytest.mark.parametrize("context_length", [2048, 8192])
def test_q8_0_is_34_bytes_for_32_elements(context_length: int) -> None:
    f16 = kv_cache(SMOLLM2, config(context_length))
    assert kv_cache(SMOLLM2, config(context_length, KvType.Q8_0)) * 64 == f16 * 34


def test_sliding_layers_keep_their_window_and_one_batch() -> None:
    # 15 layers slide: pad(512 + 128) = 768 cells; 3 are global. One head of 256 + 256 elements.
    assert kv_cache(GEMMA3, config(2048)) == (15 * 768 + 3 * 2048) * 512 * 2
    assert kv_cache(GEMMA3, config(32768)) == (15 * 768 + 3 * 32768) * 512 * 2
    assert kv_cache(GEMMA3, config(2048, batch_tokens=512)) == (15 * 1024 + 3 * 2048) * 512 * 2
    # A context below the window leaves nothing to slide.
    assert kv_cache(GEMMA3, config(512)) == 18 * 512 * 512 * 2


def test_a_window_without_sliding_layers_changes_nothing() -> None:
    still = dataclasses.replace(GEMMA3, is_sliding=(False,) * 18)
    assert kv_cache(still, config(2048)) == 18 * 2048 * 512 * 2


def test_heads_per_layer_are_added_layer_by_layer() -> None:
    uneven = dataclasses.replace(SMOLLM2, n_kv_heads=(1, 5) + (3,) * 28)
    assert kv_cache(uneven, config(2048)) == 45 * MIB


def test_keys_and_values_of_other_widths() -> None:
    wide = dataclasses.replace(SMOLLM2, head_dim_k=96, head_dim_v=32)
    assert kv_cache(wide, config(2048)) == 45 * MIB


@pytest.mark.parametrize(
    ("types", "mapped", "read"),
    [
        ({"F16": 60, "Q6_K": 40}, 100, 100),
        ({"Q4_K": 60, "Q6_K": 40}, 160, 100),  # repacked for the kernels beside the mapped file
        ({"Q4_0": 100}, 200, 100),
    ],
)
def test_weights_that_are_repacked_beside_a_mapped_file(
    types: dict[str, int], mapped: int, read: int
) -> None:
    shape = dataclasses.replace(SMOLLM2, weights_bytes=100, bytes_by_type=types)
    for mode, expected in ((LoadMode.MMAP, mapped), (LoadMode.MALLOC, read)):
        weights = footprint(shape, RunConfig(load_mode=mode)).weights_bytes
        assert isinstance(weights, Estimated)
        assert weights.value == expected


def test_the_other_lines() -> None:
    lines = footprint(SMOLLM2, config(2048))
    assert isinstance(lines.runtime_bytes, Estimated)
    assert lines.runtime_bytes.value == 69 * MIB + 133 * 49152
    assert "measured" in lines.runtime_bytes.source
    # 16 rows of 49152 logits, a 2048-cell f16 mask of 128 tokens, and the feed-forward phase.
    assert isinstance(lines.workspace_bytes, Estimated)
    feed_forward = 128 * 4 * (4 * 1536 + 1.4 * 576)
    attention = 128 * 4 * (3 * 9 * 64 + 2 * 3 * 64 + 1.5 * 576)
    logits = 16 * 49152 * 4
    assert feed_forward > max(attention, logits)
    assert lines.workspace_bytes.value == int(logits + 128 * 2048 * 2 + feed_forward)


def test_each_of_several_requests_has_a_whole_cache_and_a_row() -> None:
    one, eight = (
        footprint(GEMMA3, RunConfig(context_length=2048, flash_attention=True, parallel=n))
        for n in (1, 8)
    )
    assert isinstance(one.kv_cache_bytes, Estimated)
    assert isinstance(eight.kv_cache_bytes, Estimated)
    # 141,312 KiB is what llama.cpp logged for eight sequences, 17,664 KiB for one (2026-11-30).
    assert (one.kv_cache_bytes.value, eight.kv_cache_bytes.value) == (17664 << 10, 141312 << 10)
    assert isinstance(one.workspace_bytes, Estimated)
    assert isinstance(eight.workspace_bytes, Estimated)
    assert eight.workspace_bytes.value > one.workspace_bytes.value


def test_a_model_with_a_sliding_window_reserves_one_row() -> None:
    line = footprint(GEMMA3, config(2048)).workspace_bytes
    still = footprint(dataclasses.replace(GEMMA3, is_sliding=(False,) * 18), config(2048))
    assert isinstance(line, Estimated)
    assert isinstance(still.workspace_bytes, Estimated)
    assert still.workspace_bytes.number - line.number > 15 * GEMMA3.vocab_size * 4 - (1 << 20)


def test_without_flash_attention_the_scores_are_held() -> None:
    with_it = footprint(SMOLLM2, config(8192)).workspace_bytes
    without = footprint(SMOLLM2, RunConfig(context_length=8192)).workspace_bytes
    assert isinstance(with_it, Estimated)
    assert isinstance(without, Estimated)
    scores = 9 * 128 * 8192 * 4
    assert without.number - with_it.number > scores


def test_a_cache_that_llama_cpp_does_not_offer_is_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        footprint(SMOLLM2, config(512, KvType.U4))
    assert caught.value.code == "kv-type-unsupported"
